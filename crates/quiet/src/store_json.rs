//! Values of the store as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::QuietFailure;
use crate::files::Store;

/// The saved value, or the default if nothing was saved.
///
/// # Errors
/// The store's, or the saved value cannot be parsed: then nothing may be changed, because the values to restore are not
/// known.
pub(crate) fn load<T: Default + DeserializeOwned>(store: &dyn Store, name: &str) -> Result<T, QuietFailure> {
    match store.load(name).map_err(QuietFailure::of("read the record", name))? {
        Some(text) => serde_json::from_str(&text).map_err(QuietFailure::record(name)),
        None => Ok(T::default()),
    }
}

pub(crate) fn save<T: Serialize>(store: &dyn Store, name: &str, value: &T) -> Result<(), QuietFailure> {
    let text = serde_json::to_string(value).map_err(QuietFailure::record(name))?;
    store
        .save(name, &text)
        .map_err(QuietFailure::of("write the record", name))
}
