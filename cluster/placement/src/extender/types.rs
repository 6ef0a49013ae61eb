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

/// `ExtenderPreemptionArgs`, as kube-scheduler sends them to an extender that is `nodeCacheCapable`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderPreemptionArgs<'a> {
    #[serde(borrow)]
    pub(super) pod: &'a RawValue,
    #[serde(default, borrow)]
    pub(super) node_name_to_meta_victims: Option<BTreeMap<&'a str, Option<MetaVictims<'a>>>>,
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
