//! The rules that reservations ask: every node decides as it would itself.

use kubelet_planner::CpuManager;
use stelia_allocator::Qos;
use stelia_cpus::CpuSet;
use stelia_kubelet::QosClass;

use crate::cluster::{Cluster, RequestId};
use crate::evaluate::{Arrival, Placement, Refusal, arrival};
use crate::node::{Described, NodeError};
use crate::request::{Request, Shared, Vm};
use crate::reservations::{Held, Rules, Uid};

/// The nodes, with their answers kept.
#[derive(Debug, Default)]
pub struct NodeRules {
    pub cluster: Cluster,
}

/// What a pod would get, and what its node is to be told.
#[derive(Debug)]
pub struct Place {
    pub placement: Placement,
    pub told: Option<CpuSet>,
}

impl NodeRules {
    /// Lets the node's answers count what is held there.
    pub fn expect(&mut self, node: &str, held: &[Held<'_, Shared>]) {
        let same = self.cluster.on_their_way(node).eq(held.iter().map(|held| (held.pod, held.cpus)));
        if !same {
            let arrival = |held: &Held<'_, Shared>| Arrival {
                request: held.request.clone(),
                cpus: held.cpus.cloned(),
            };
            self.cluster.expect(node, held.iter().map(|held| (held.pod, arrival(held))).collect());
        }
    }

    /// The number of a request that was asked before, or of one that is forgotten and asked again.
    pub fn number(&mut self, request: &Shared) -> RequestId {
        self.cluster.request(Request::clone(&request.0))
    }
}

impl Rules for NodeRules {
    type Node = Result<Described, NodeError>;
    type Request = Shared;
    type Place = Place;
    type Rejection = Refusal;

    fn put(&mut self, node: &str, described: Option<Self::Node>) -> bool {
        match described {
            Some(described) => self.cluster.put_read(node, described).is_ok(),
            None => {
                self.cluster.remove(node);
                false
            }
        }
    }

    fn place(&mut self, node: &str, held: &[Held<'_, Shared>], request: &Shared) -> Result<Place, Refusal> {
        self.expect(node, held);
        let number = self.number(request);
        let placement = self.cluster.explain(node, number)?;
        let shape = self.cluster.standing(node).map(|(shape, _)| shape);
        let told = shape.and_then(|shape| arrival(shape, request.clone(), &placement).cpus);
        Ok(Place { placement, told })
    }

    fn chosen(&self, place: &Place) -> Option<CpuSet> {
        place.told.clone()
    }

    fn owns(&self, node: &str, request: &Shared) -> bool {
        self.by_kubelet(node, request) || self.by_steliad(node, request)
    }

    fn shows(&self, node: &str, pod: Uid) -> bool {
        self.cluster.pods(node).binary_search(&pod).is_ok()
    }

    fn at_start(&self, node: &str, request: &Shared) -> bool {
        !self.by_kubelet(node, request)
    }
}

impl NodeRules {
    /// kubelet's static policy gives exclusive CPUs to containers of Guaranteed pods that ask for whole ones.
    fn by_kubelet(&self, node: &str, request: &Shared) -> bool {
        let Some((shape, _)) = self.cluster.standing(node) else { return false };
        let pod = &request.0.pod;
        let whole = |milli: Option<u64>| milli.is_some_and(|milli| milli > 0 && milli % 1000 == 0);
        let mut containers = pod.containers.iter().map(|container| container.resources.requests.milli_cpus);
        matches!(shape.kubelet.settings().cpu_manager, CpuManager::Static { .. })
            && pod.qos() == QosClass::Guaranteed
            && (containers.any(whole) || pod.own().is_some_and(|own| whole(own.requests.milli_cpus)))
    }

    /// steliad chooses for VMs of the classes LSE and LSR.
    fn by_steliad(&self, node: &str, request: &Shared) -> bool {
        let policies = self.cluster.standing(node).and_then(|(shape, _)| shape.allocator.as_ref());
        let class = |vm: &Vm| {
            let default = || policies.filter(|_| request.0.pod.qos() == QosClass::Guaranteed).map(|policies| policies.qos);
            vm.allocation.qos.or_else(default)
        };
        let vm = request.0.vm.as_ref().filter(|_| policies.is_some());
        vm.and_then(class).is_some_and(Qos::is_exclusive)
    }
}
