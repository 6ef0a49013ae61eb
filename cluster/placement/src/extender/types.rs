//! kube-scheduler's published types (`k8s.io/kube-scheduler/extender/v1`, of Kubernetes 1.36). They have no JSON tags, so the members
//! have the names of Go's fields, and members that are not set are `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// `ExtenderArgs`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderArgs<'a> {
    #[serde(borrow)]
    pub(super) pod: &'a RawValue,
    /// Sent where `nodeCacheCapable` is false: it is not read.
    #[serde(default)]
    pub(super) nodes: Option<serde::de::IgnoredAny>,
    #[serde(default, borrow)]
    pub(super) node_names: Option<Vec<&'a str>>,
}

/// `ExtenderFilterResult`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderFilterResult<'a> {
    pub(super) nodes: Option<()>,
    #[serde(borrow)]
    pub(super) node_names: Option<Vec<&'a str>>,
    #[serde(borrow)]
    pub(super) failed_nodes: BTreeMap<&'a str, &'a str>,
    #[serde(borrow)]
    pub(super) failed_and_unresolvable_nodes: BTreeMap<&'a str, &'a str>,
    pub(super) error: String,
}

/// `HostPriority`.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostPriority<'a> {
    pub(super) host: &'a str,
    /// From 0 to 10.
    pub(super) score: i64,
}

/// `ExtenderBindingResult`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderBindingResult {
    pub(super) error: String,
}

/// `ExtenderPreemptionArgs`. kube-scheduler sets one of the two maps.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderPreemptionArgs<'a> {
    #[serde(borrow)]
    pub(super) pod: &'a RawValue,
    /// Sent where `nodeCacheCapable` is false.
    #[serde(default, borrow)]
    pub(super) node_name_to_victims: Option<BTreeMap<&'a str, Option<Victims<'a>>>>,
    #[serde(default, borrow)]
    pub(super) node_name_to_meta_victims: Option<BTreeMap<&'a str, Option<MetaVictims<'a>>>>,
}

/// The part of a pod that says for which node kube-scheduler evicted victims for it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NominatedPod {
    pub(super) status: NominatedStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NominatedStatus {
    pub(super) nominated_node_name: Option<String>,
}

/// `Victims`, of whose pods the UIDs alone are read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Victims<'a> {
    #[serde(default, borrow)]
    pub(super) pods: Option<Vec<Victim<'a>>>,
    #[serde(default, rename = "NumPDBViolations")]
    pub(super) pdb_violations: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Victim<'a> {
    #[serde(borrow)]
    pub(super) metadata: VictimMetadata<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct VictimMetadata<'a> {
    pub(super) uid: &'a str,
}

/// `MetaVictims`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MetaVictims<'a> {
    #[serde(default, borrow)]
    pub(super) pods: Option<Vec<MetaPod<'a>>>,
    #[serde(default, rename = "NumPDBViolations")]
    pub(super) pdb_violations: i64,
}

/// `MetaPod`.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct MetaPod<'a> {
    #[serde(rename = "UID")]
    pub(super) uid: &'a str,
}

/// `ExtenderPreemptionResult`.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderPreemptionResult<'a> {
    #[serde(borrow)]
    pub(super) node_name_to_meta_victims: BTreeMap<&'a str, MetaVictims<'a>>,
}

impl<'a> From<Victims<'a>> for MetaVictims<'a> {
    fn from(victims: Victims<'a>) -> Self {
        let pods = victims.pods.into_iter().flatten();
        Self {
            pods: Some(pods.map(|pod| MetaPod { uid: pod.metadata.uid }).collect()),
            pdb_violations: victims.pdb_violations,
        }
    }
}
