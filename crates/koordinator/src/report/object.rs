//! NodeResourceTopology, of either version, as the API server takes and gives it. Reading passes over fields that are not here.

use serde::de::{Deserializer, Error, Unexpected};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stelia_cpus::text::named;

use super::meta::{ObjectMeta, or_default};

pub(crate) const KIND: &str = "NodeResourceTopology";
pub(crate) const GROUP: &str = "topology.node.k8s.io";

named! {
    /// A version of the API.
    #[derive(Default)]
    pub enum ApiVersion {
        /// With `topologyPolicies`; the version that Koordinator reads.
        #[default]
        V1Alpha1 = "v1alpha1",
        /// With `attributes` instead.
        V1Alpha2 = "v1alpha2",
    }
}

impl ApiVersion {
    /// The object's `apiVersion`.
    pub fn api_version(self) -> String {
        format!("{GROUP}/{}", self.name())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceTopology {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    /// Its name is the Node's.
    pub metadata: ObjectMeta,
    /// The topology manager's policy by the API's name. v1alpha1 demands it; v1alpha2 has it for old readers only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_policies: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    #[serde(default, deserialize_with = "or_default")]
    pub zones: Vec<Zone>,
}

/// An attribute of the node as a whole (v1alpha2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    pub name: String,
    pub value: String,
}

impl Attribute {
    pub(crate) fn new(name: &str, value: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// A NUMA node, or what another writer means by a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// `node-` and its id.
    pub name: String,
    /// `Node` of a NUMA node.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The distances to every node, itself included.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
}

/// The distance to a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    pub name: String,
    /// As the firmware reports it: 10 within a node.
    pub value: i64,
}

/// A resource's amounts, which are quantities: CPUs of a whole number, memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// The name by which pods request it.
    pub name: String,
    #[serde(deserialize_with = "amount")]
    pub capacity: String,
    /// What pods may have in all; absent: all.
    #[serde(default, deserialize_with = "optional", skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<String>,
    /// What new pods may still have.
    #[serde(deserialize_with = "amount")]
    pub available: String,
}

impl Resource {
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
