//! How many of a pod fit.

use super::admission::{ContainerAllocation, Rejection, admit};
use super::node::Node;
use super::pod::Pod;

/// Pods of one kind, admitted one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Fill {
    /// What each of them gets.
    pub pods: Vec<Vec<ContainerAllocation>>,
    /// Why there is not one more; `None` at the most that was asked for.
    pub end: Option<Box<Rejection>>,
}

/// Admit the pod again and again until kubelet rejects it, at most `most` times. Each has a UID of its own.
///
/// kubelet's managers alone decide. What the scheduler counts besides, such as requests on the shared pool and pods a node, is
/// not looked at, so a pod without anything of its own fits for ever.
pub fn until_full(node: &Node, pod: &Pod, most: usize) -> Fill {
    let (mut node, mut pod) = (node.clone(), pod.clone());
    let uid = std::mem::take(&mut pod.uid);
    let mut pods = Vec::new();
    while pods.len() < most {
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
