//! NodeResourceTopology as the API server gives it: the fields that are read, all others are passed over.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected};
use serde_json::Value;

use crate::report::meta::{ObjectMeta, or_default};

/// A NodeResourceTopology, of either version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredObject {
    #[serde(default)]
    pub api_version: String,
    /// Its name is the Node's.
    pub metadata: ObjectMeta,
    /// In v1alpha1, and in what was once written as that.
    pub topology_policies: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_default")]
    pub attributes: Vec<StoredAttribute>,
    #[serde(default, deserialize_with = "or_default")]
    pub zones: Vec<StoredZone>,
}

/// An attribute of the node as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredAttribute {
    pub name: String,
    pub value: String,
}

/// A zone: a NUMA node, or what another writer means by it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredZone {
    pub name: String,
    /// `Node` of a NUMA node.
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub costs: Vec<StoredCost>,
    #[serde(default, deserialize_with = "or_default")]
    pub resources: Vec<StoredResource>,
}

/// The distance to a zone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredCost {
    pub name: String,
    pub value: i64,
}

/// A resource's amounts, which are quantities: CPUs of a whole number, memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredResource {
    pub name: String,
    #[serde(deserialize_with = "amount")]
    pub capacity: String,
    /// What pods may have in all; absent: all.
    #[serde(default, deserialize_with = "optional")]
    pub allocatable: Option<String>,
    #[serde(deserialize_with = "amount")]
    pub available: String,
}

impl StoredResource {
    /// What pods may have in all.
    pub fn allocatable(&self) -> &str {
        self.allocatable.as_deref().unwrap_or(&self.capacity)
    }
}

/// The API server keeps a quantity as it was written: as a text or as a number.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
        other => Err(D::Error::invalid_type(
            Unexpected::Other(&other.to_string()),
            &"a quantity",
        )),
    }
}

fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    amount(deserializer).map(Some)
}
