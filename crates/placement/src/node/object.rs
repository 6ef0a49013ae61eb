//! The object as the API server gives it: the fields that are read, all others are passed over.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// A NodeResourceTopology (v1alpha2).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    pub metadata: Metadata,
    #[serde(default)]
    pub attributes: Vec<Attribute>,
    #[serde(default)]
    pub zones: Vec<Zone>,
}

/// The part of `ObjectMeta` that is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The Node's name.
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    pub name: String,
    pub value: String,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    pub name: String,
    #[serde(default)]
    pub costs: Vec<Cost>,
    #[serde(default)]
    pub resources: Vec<Resource>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    pub name: String,
    pub value: i64,
}

/// A resource's amounts are quantities; CPUs of a whole number, memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    pub name: String,
    #[serde(deserialize_with = "amount")]
    pub capacity: String,
    /// What pods may have in all; absent: all.
    #[serde(default, deserialize_with = "optional")]
    pub allocatable: Option<String>,
    #[serde(deserialize_with = "amount")]
    pub available: String,
}

/// The API takes a quantity as a text or a number.
fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Amount;
    impl Visitor<'_> for Amount {
        type Value = String;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a quantity")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }
    deserializer.deserialize_any(Amount)
}

fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    amount(deserializer).map(Some)
}
