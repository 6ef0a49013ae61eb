//! Pods that stay where they are although their CPUs are their own: containers without a VM.

use serde::Serialize;
use stelia_table::TextStyle;

use crate::cluster::{Cluster, called};

/// How many of them have a line as text, unless all are asked for.
const MAX_NAMED: usize = 3;

/// A pod that is not moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Staying {
    pub pod_uid: String,
    /// `namespace/name`; empty where no pod of that UID was read.
    pub pod: String,
    pub node: String,
    /// Whose the CPUs are, as in the instance's property `Isolation`.
    pub isolation: &'static str,
    pub reason: String,
}

impl Staying {
    pub(super) fn container(node: &str, uid: &str, cluster: &Cluster) -> Self {
        let known = cluster.pods.get(uid);
        Self {
            pod_uid: uid.to_owned(),
            pod: known
                .map(|((namespace, name), _)| format!("{namespace}/{name}"))
                .unwrap_or_default(),
            node: node.to_owned(),
            isolation: "container",
            reason: "a container without a VM: it cannot be migrated live".to_owned(),
        }
    }

    fn called(&self) -> &str {
        if self.pod.is_empty() { &self.pod_uid } else { &self.pod }
    }
}

/// A line for each; without `-o wide` of the first few only.
pub(super) fn in_words(staying: &[Staying], style: TextStyle) -> impl Iterator<Item = String> {
    let most = if style.wide { staying.len() } else { MAX_NAMED };
    let more = staying.len().saturating_sub(most);
    let told = staying.iter().take(most);
    told.map(move |one| format!("{} on {}: {}", one.called(), called(&one.node, style), one.reason))
        .chain((more > 0).then(|| format!("and {more} more (-o wide)")))
}
