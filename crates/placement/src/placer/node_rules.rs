//! The rules of the reservations: each node would decide as in [`stelia_placement_rules`].

use stelia_cpus::CpuSet;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::{Cluster, RequestId};
use stelia_placement_rules::evaluate::{Arrival, OwnCpus, Placement, Refusal};
use stelia_placement_rules::node::{NodeError, ParsedNode};
use stelia_placement_rules::request::{Request, SharedRequest};
use stelia_reservations::{Held, Rules};

/// The nodes, with a cache of their answers.
#[derive(Debug, Default)]
pub struct NodeRules {
    pub cluster: Cluster,
}

impl NodeRules {
    /// Makes the node's answers count what is held there.
    pub fn update_held(&mut self, node: &str, held: &[Held<'_, SharedRequest>]) {
        let same = self
            .cluster
            .on_their_way(node)
            .eq(held.iter().map(|held| (held.pod, held.cpus)));
        if same {
            return;
        }
        let arrival = |held: &Held<'_, SharedRequest>| {
            let arrival = Arrival {
                request: held.request.clone(),
                cpus: held.cpus.cloned(),
            };
            (held.pod, arrival)
        };
        self.cluster.set_held(node, held.iter().map(arrival).collect());
    }

    /// The request's id, also if the request was dropped meanwhile.
    pub fn request_id(&mut self, request: &SharedRequest) -> RequestId {
        self.cluster.request(Request::clone(request))
    }
}

impl Rules for NodeRules {
    type Node = Result<ParsedNode, NodeError>;
    type Request = SharedRequest;
    type Placement = Placement;
    type Rejection = Refusal;

    fn put_node(&mut self, node: &str, described: Option<Self::Node>) -> bool {
        match described {
            Some(described) => self.cluster.put_parsed(node, described).is_ok(),
            None => {
                self.cluster.remove(node);
                false
            }
        }
    }

    fn place(
        &mut self,
        node: &str,
        held: &[Held<'_, SharedRequest>],
        request: &SharedRequest,
    ) -> Result<Placement, Refusal> {
        self.update_held(node, held);
        let id = self.request_id(request);
        self.cluster.explain(node, id)
    }

    fn assigned_cpus(&self, place: &Placement) -> Option<CpuSet> {
        place.assigned_cpus.clone()
    }

    fn gets_own_cpus(&self, node: &str, request: &SharedRequest) -> bool {
        self.cluster
            .own_cpus(node, request)
            .is_none_or(|own| own != OwnCpus::Never)
    }

    fn object_shows(&self, node: &str, pod: Uid) -> bool {
        self.cluster.shows_pod(node, pod)
    }

    fn cpus_at_container_start(&self, node: &str, request: &SharedRequest) -> bool {
        self.cluster.own_cpus(node, request) == Some(OwnCpus::AtRegistration)
    }
}
