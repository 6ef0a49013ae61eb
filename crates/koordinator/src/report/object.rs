//! NodeResourceTopology as the API server takes it. Fields that are never set here (a zone's parent and attributes) are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_cpus::text::named;

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeResourceTopology {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    /// The topology manager's policy by the API's name. v1alpha1 demands it; v1alpha2 has it for old readers only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topology_policies: Option<Vec<String>>,
    /// Attributes of the node as a whole (v1alpha2).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) zones: Vec<Zone>,
}

/// The part of `ObjectMeta` that a writer sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl Attribute {
    pub(crate) fn new(name: &str, value: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zone {
    /// `node-` and its id.
    pub(crate) name: String,
    /// `Node`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The distances to every node, itself included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) costs: Vec<Cost>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) resources: Vec<Resource>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cost {
    pub(crate) name: String,
    /// As the firmware reports it: 10 within a node.
    pub(crate) value: i64,
}

/// A resource; the amounts are quantities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resource {
    /// The name by which pods request it.
    pub(crate) name: String,
    pub(crate) capacity: String,
    /// What pods may have in all.
    pub(crate) allocatable: String,
    /// What new pods may still have.
    pub(crate) available: String,
}
