//! The configuration of steliad: every key, its default, what it may be, and the files it is read from.
//!
//! [`Settings`] and [`Policies`] hold the values; the table below them in `settings.rs` has each key once. [`load`] reads the
//! files; later ones win: `/etc/stelia/steliad.toml`, then `*.toml` in `/usr/lib`, `/run` and `/etc` `stelia/steliad.toml.d`,
//! where a file name in a later directory hides the same name in an earlier one.
//!
//! ```
//! use std::path::Path;
//! use stelia_settings::{FloatPolicy, Fragment};
//!
//! # fn main() -> Result<(), stelia_settings::SettingsError> {
//! let shipped = Fragment::parse("float-policy = \"node\"", Path::new("steliad.toml"))?;
//! let drop_in = Fragment::parse("float-policy = \"numa\"", Path::new("50-numa.toml"))?;
//! let loaded = shipped.merge(drop_in).check()?;
//! assert_eq!(loaded.settings.policies.float, FloatPolicy::Numa);
//!
//! let wrong = Fragment::parse("\nfloat-policy = \"all\"", Path::new("steliad.toml"))?.check();
//! assert_eq!(
//!     wrong.map_err(|error| error.to_string()),
//!     Err("steliad.toml: line 2: float-policy = \"all\": expected node, numa or pod".into()),
//! );
//! # Ok(())
//! # }
//! ```

mod file;
mod float;
mod partition;
mod placement;
mod settings;
#[cfg(test)]
mod tests;

pub use file::{Fragment, Loaded, SettingsError, load};
pub use float::FloatPolicy;
pub use partition::{Partition, isolated_is_safe};
pub use placement::PlacementPolicy;
pub use settings::{Policies, Settings};
