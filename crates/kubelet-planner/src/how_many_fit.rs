//! How many pods of one kind fit on a node.

use super::admission::{ContainerAllocation, Rejection, admit};
use super::node::Node;
use super::pod::Pod;

/// Pods of one kind, admitted one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Fill {
    /// What each pod's containers get.
    pub pods: Vec<Vec<ContainerAllocation>>,
    /// Why kubelet rejects the next pod; `None`: all `limit` pods were admitted.
    pub end: Option<Box<Rejection>>,
}

/// Admits the pod again and again until kubelet rejects it, at most `limit` times. Each pod has its own UID.
///
/// kubelet's managers alone decide. What the scheduler counts in addition, such as requests on the shared pool and pods
/// per node, is not considered, so a pod without exclusive resources always fits.
pub fn until_full(node: &Node, pod: &Pod, limit: usize) -> Fill {
    let (mut node, mut pod) = (node.clone(), pod.clone());
    let uid = std::mem::take(&mut pod.uid);
    let mut pods = Vec::new();
    while pods.len() < limit {
        pod.uid = format!("{uid}-{}", pods.len());
        match admit(&node, &pod) {
            Ok(admission) => {
                pods.push(admission.containers);
                node = admission.node;
            }
            Err(rejection) => {
                return Fill {
                    pods,
                    end: Some(rejection),
                };
            }
        }
    }
    Fill { pods, end: None }
}
