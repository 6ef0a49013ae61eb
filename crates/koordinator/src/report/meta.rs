//! The metadata of Kubernetes objects.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// The part of `ObjectMeta` that is read of an object, of whatever kind; all other fields are passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    pub name: String,
    /// `None` where the object has none, or does not tell it.
    pub namespace: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub uid: String,
    #[serde(default, deserialize_with = "or_default")]
    pub resource_version: String,
    #[serde(default, deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

/// A field that may be `null`.
pub(crate) fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
