//! A node: kubelet admits, steliad's allocator chooses where it is its turn, a publisher tells of both, late.

use std::collections::BTreeMap;

use kubelet_planner::{Node, admit, manifest};
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_koordinator::allocator::{AllocationRequest, AllocatorNode, HeldCpus, Pools, Requester};
use stelia_koordinator::report::{Allocator, Facts};
use stelia_kubelet::{PodUid, QosClass};
use stelia_placement_rules::testing::{allocate, facts_of, published};

use super::node_kind::{self, Kind};

/// What it knows, and what it gave.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    kubelet: Node,
    /// What steliad gave.
    chosen: BTreeMap<String, CpuSet>,
}

impl Machine {
    pub(crate) fn new(name: String, kind: Kind) -> Self {
        Self {
            name,
            kind,
            kubelet: node_kind::kubelet(kind),
            chosen: BTreeMap::new(),
        }
    }

    /// kubelet's answer to a pod that is bound to it.
    pub(crate) fn admit(&mut self, uid: &str, document: &Value) -> Result<(), String> {
        let mut pod = manifest::pod(document).unwrap();
        pod.uid = uid.to_owned();
        for container in &mut pod.containers {
            container.resources.limits.devices.clear();
            container.resources.requests.devices.clear();
        }
        let admission = admit(&self.kubelet, &pod);
        self.kubelet = admission
            .map_err(|no| no.reason().unwrap_or("NoAnswer").to_owned())?
            .node;
        Ok(())
    }

    /// steliad's answer to a VM that starts: `told` are the CPUs in its annotation.
    pub(crate) fn register(&mut self, uid: &str, cpus: u32, told: Option<CpuSet>) -> Result<(), String> {
        let Some(policies) = node_kind::policies(self.kind) else {
            return Ok(());
        };
        let topology = node_kind::topology();
        let pools = Pools::new(&topology, &policies.reserved, &self.taken(), &CpuSet::new());
        let node = AllocatorNode::new(&topology, pools, &HeldCpus::default(), policies);
        let mut request = AllocationRequest::default();
        request.schedule.cpus = told;
        let requester = Requester {
            class: QosClass::Guaranteed,
            limit_milli: Some(u64::from(cpus) * 1000),
            bound: true,
            memory: None,
            devices: Default::default(),
        };
        let given = node.allot(&request, &requester);
        let (given, _) = given.map_err(|refusal| refusal.kind.name().to_owned())?;
        self.chosen.insert(uid.to_owned(), given);
        Ok(())
    }

    pub(crate) fn end(&mut self, uid: &str) {
        self.chosen.remove(uid);
        self.kubelet = self.kubelet.without(uid);
    }

    /// The CPUs of each pod.
    pub(crate) fn given(&self) -> BTreeMap<String, CpuSet> {
        let of_kubelet = self.kubelet.state().cpus.entries.iter();
        let of_kubelet = of_kubelet.map(|(pod, all)| (pod.clone(), all.values().flat_map(CpuSet::iter).collect()));
        of_kubelet.chain(self.chosen.clone()).collect()
    }

    fn taken(&self) -> CpuSet {
        self.given().values().fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }

    /// Free CPUs by NUMA node.
    pub(crate) fn free(&self) -> Vec<usize> {
        let topology = node_kind::topology();
        let free = topology.online().difference(&node_kind::reserved());
        let free = free.difference(&self.taken());
        let count = |node| free.iter().filter(|cpu| topology.cpus[cpu].node == node).count();
        vec![count(0), count(1)]
    }

    /// Its object as it would be published now.
    pub(crate) fn object(&self) -> Value {
        let (topology, options) = (node_kind::topology(), node_kind::option_texts(self.kind));
        let facts = facts_of(&self.name, &self.kubelet, &topology, options);
        serde_json::from_str(&published(&self.with_chosen(facts))).unwrap()
    }

    fn with_chosen(&self, facts: Facts) -> Facts {
        let Some(policies) = node_kind::policies(self.kind) else {
            return facts;
        };
        let mut facts = Facts {
            exclusive: CpuSet::new(),
            allocations: Vec::new(),
            reserved: node_kind::reserved(),
            allocator: Some(Allocator {
                policies,
                held: HeldCpus::default(),
                lsr: CpuSet::new(),
            }),
            ..facts
        };
        for (uid, cpus) in &self.chosen {
            allocate(&mut facts, PodUid::parse(uid).unwrap(), cpus);
        }
        facts.kubelet.cpu_policy = "none".to_owned();
        facts.kubelet.reserved = CpuSet::new();
        facts
    }

    pub(crate) fn holds(&self, uid: &str) -> bool {
        match self.kind {
            Kind::Steliad => self.chosen.contains_key(uid),
            _ => self.kubelet.state().cpus.entries.contains_key(uid),
        }
    }
}

/// Whether any CPUs are in two of them.
pub(crate) fn overlap(sets: &BTreeMap<String, CpuSet>) -> bool {
    let mut all = CpuSet::new();
    sets.values().any(|cpus| {
        let twice = !all.is_disjoint(cpus);
        all.union_with(cpus);
        twice
    })
}
