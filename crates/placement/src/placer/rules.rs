//! The rules that reservations ask: every node decides as it would itself.

use stelia_cpus::CpuSet;

use stelia_kubelet::Uid;
use stelia_placement_rules::cluster::{Cluster, RequestId};
use stelia_placement_rules::evaluate::{Arrival, Placement, Refusal};
use stelia_placement_rules::node::{NodeError, ParsedNode};
use stelia_placement_rules::request::{Request, SharedRequest};
use stelia_reservations::{Held, Rules};

/// The nodes, with their answers kept.
#[derive(Debug, Default)]
pub struct NodeRules {
    pub cluster: Cluster,
}

impl NodeRules {
    /// Lets the node's answers count what is held there.
    pub fn expect(&mut self, node: &str, held: &[Held<'_, SharedRequest>]) {
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
        self.cluster.hold(node, held.iter().map(arrival).collect());
    }

    /// The number of a request that was asked before, or of one that is forgotten and asked again.
    pub fn number(&mut self, request: &SharedRequest) -> RequestId {
        self.cluster.request(Request::clone(&request.0))
    }
}

impl Rules for NodeRules {
    type Node = Result<ParsedNode, NodeError>;
    type Request = SharedRequest;
    type Place = Placement;
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

    fn place(
        &mut self,
        node: &str,
        held: &[Held<'_, SharedRequest>],
        request: &SharedRequest,
    ) -> Result<Placement, Refusal> {
        self.expect(node, held);
        let number = self.number(request);
        self.cluster.explain(node, number)
    }

    fn chosen(&self, place: &Placement) -> Option<CpuSet> {
        place.told.clone()
    }

    fn owns(&self, node: &str, request: &SharedRequest) -> bool {
        self.cluster.owns(node, &request.0).is_none_or(|(owns, _)| owns)
    }

    fn shows(&self, node: &str, pod: Uid) -> bool {
        self.cluster.shows(node, pod)
    }

    fn at_start(&self, node: &str, request: &SharedRequest) -> bool {
        self.cluster
            .owns(node, &request.0)
            .is_some_and(|(_, at_start)| at_start)
    }
}
