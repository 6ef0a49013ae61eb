#![doc = include_str!("../README.md")]
//!
//! [`Settings`] and [`Policies`] hold the values; `KEYS` in `settings.rs` has each key once, `RULE_KEYS` in `adopt/keys.rs` those of `[[adopt]]`,
//! `CLASS_KEYS` in `classes.rs` those of `[cache-class.NAME]`. [`load`] reads the files; later ones win: `/etc/stelia/steliad.toml`, then `*.toml` in `/usr/lib`, `/run` and `/etc` `stelia/steliad.toml.d`,
//! where a file name in a later directory hides the same name in an earlier one.

mod adopt;
mod classes;
mod device_plugin;
mod file;
mod float;
mod key;
mod latency;
mod ledger;
mod partition;
mod publish;
mod quiet;
mod settings;
#[cfg(test)]
mod tests;
mod tree;
mod vcpu_placement;

pub use adopt::{
    AdoptKind, AdoptPartition, AdoptPlacement, AdoptRule, MAX_THREAD_NAME_BYTES, Pattern, ReadyMade, ThreadName,
    is_name,
};
pub use classes::CacheLimits;
pub use device_plugin::DevicePluginSettings;
pub use file::{Files, Fragment, Loaded, SettingsError, files, load};
pub use float::FloatPolicy;
pub use latency::LatencyLevel;
pub use ledger::{Every, LedgerSettings, Sample};
pub use partition::Partition;
pub use publish::Publish;
pub use quiet::{IrqSteering, QuietRequest, QuietSettings, VfioIrqs};
pub use settings::{Policies, Settings};
pub use tree::{Isolation, TreeChoice, TreeHome};
pub use vcpu_placement::PlacementPolicy;
