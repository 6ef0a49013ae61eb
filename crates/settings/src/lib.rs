#![doc = include_str!("../README.md")]
//!
//! [`Settings`] and [`Policies`] hold the values; `KEYS` in `settings.rs` has each key once, `RULE_KEYS` in `adopt/keys.rs` those of `[[adopt]]`,
//! `CLASS_KEYS` in `classes.rs` those of `[cache-class.NAME]`. [`load`] reads the files; later ones win: `/etc/stelia/steliad.toml`, then `*.toml` in `/usr/lib`, `/run` and `/etc` `stelia/steliad.toml.d`,
//! where a file name in a later directory hides the same name in an earlier one.

mod adopt;
mod classes;
mod device_plugin;
mod file;
mod key;
mod ledger;
mod names;
mod quiet;
mod settings;
#[cfg(test)]
mod tests;

pub use adopt::{
    AdoptKind, AdoptPartition, AdoptPlacement, AdoptRule, MAX_THREAD_NAME_BYTES, Pattern, ReadyMade, ThreadName,
    is_name,
};
pub use classes::CacheLimits;
pub use device_plugin::DevicePluginSettings;
pub use file::{Files, Fragment, Loaded, SettingsError, files, load};
pub use ledger::{Every, LedgerSettings, Sample};
pub use names::{FloatPolicy, Isolation, LatencyLevel, Partition, PlacementPolicy, Publish, TreeChoice, TreeHome};
pub use quiet::{IrqSteering, QuietRequest, QuietSettings, VfioIrqs};
pub use settings::{Policies, Settings};
