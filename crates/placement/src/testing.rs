//! Nodes and requests for tests and benchmarks.

use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
use stelia_allocator::AllocationRequest;
use stelia_node_report::ApiVersion;
use stelia_node_report::Facts;
use stelia_node_report::fingerprint::Method;
use stelia_node_report::profile::{Profile, object};

use crate::request::{Request, Vm};

/// The node's object of profile `stelia`, JSON.
#[allow(clippy::unwrap_used)]
pub fn published(facts: &Facts) -> String {
    serde_json::to_string(&object(facts, Profile::Stelia, ApiVersion::V1Alpha2, Method::default())).unwrap()
}

/// A Guaranteed pod of one container, of so many CPUs and GiB.
pub fn pod(milli_cpus: u64, memory_gib: u64) -> Pod {
    let amounts = Amounts {
        milli_cpus: Some(milli_cpus),
        memory: Some(memory_gib << 30),
        ..Amounts::default()
    };
    Pod {
        containers: vec![Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts))],
        ..Pod::default()
    }
}

/// A VM whose runner asks for nothing in particular.
pub fn vm(cpus: u64) -> Request {
    vm_with(cpus, AllocationRequest::default(), true)
}

/// A VM with options, that follows what a scheduler chose or not.
pub fn vm_with(cpus: u64, allocation: AllocationRequest, follows: bool) -> Request {
    let vm = Vm {
        container: "vm".to_owned(),
        allocation,
        follows,
    };
    Request::new(pod(cpus * 1000, 8), Some(vm), Default::default())
}
