//! NodeResourceTopology as the API server takes it. Fields that are never set here (a zone's parent and attributes) are left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stelia_text::named;

/// The object's kind.
pub const KIND: &str = "NodeResourceTopology";
const GROUP: &str = "topology.node.k8s.io";

/// A version of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ApiVersion {
    /// With `topologyPolicies`; Koordinator's.
    #[default]
    V1Alpha1,
    /// With `attributes` instead.
    V1Alpha2,
}

named!(ApiVersion {
    V1Alpha1 = "v1alpha1",
    V1Alpha2 = "v1alpha2"
});

impl ApiVersion {
    /// The object's `apiVersion`.
    pub fn api_version(self) -> String {
        format!("{GROUP}/{}", self.name())
    }
}

/// The object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeResourceTopology {
    /// Group and version.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Name, labels and annotations.
    pub metadata: Metadata,
    /// The topology manager's policy by the API's name. v1alpha1 demands it; v1alpha2 has it for old readers only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_policies: Option<Vec<String>>,
    /// What there is to say of the node as a whole (v1alpha2).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// The NUMA nodes.
    pub zones: Vec<Zone>,
}

/// The part of `ObjectMeta` that is the writer's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The Node's name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// `node-` and its id.
    pub name: String,
    /// `Node`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The distances to every node, itself included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
    /// What it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resource>,
}

/// The distance to a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The zone.
    pub name: String,
    /// As the firmware tells it: 10 within a node.
    pub value: i64,
}

/// A resource; the amounts are quantities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// By the name that pods request it by.
    pub name: String,
    /// All there is.
    pub capacity: String,
    /// What pods may have.
    pub allocatable: String,
    /// What new pods may have.
    pub available: String,
}
