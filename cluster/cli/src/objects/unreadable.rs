//! Nodes and NodeResourceTopologies that were there and could not be read.

use std::collections::BTreeMap;

use stelia_koordinator::report::name;

/// Why they could not be read, by the node's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreadable {
    pub nodes: BTreeMap<String, String>,
    pub reports: BTreeMap<String, String>,
    /// How many objects or texts do not say which node they describe.
    pub without_name: u64,
}

impl Unreadable {
    pub(super) fn add(&mut self, kind: &str, name: Option<&str>, cause: &str) {
        let name = name.and_then(|name| name::check(name.to_owned()).ok());
        match (kind, name) {
            // No node's health depends on one pod.
            ("Pod", _) => {}
            ("Node", Some(name)) => {
                self.nodes.insert(name, cause.to_owned());
            }
            ("NodeResourceTopology", Some(name)) => {
                self.reports.insert(name, cause.to_owned());
            }
            (_, _) => self.without_name += 1,
        }
    }
}
