//! What the search is about: the nodes where the pod may run, the VMs on them that may move.

use std::collections::{BTreeMap, HashMap, HashSet};

use kubelet_planner::{Amounts, ContainerKind};
use serde_json::Value;
use stelia_kubelet::Uid;
use stelia_placement_rules::Cluster as Nodes;
use stelia_placement_rules::rebalance::{Departure, Resident, Residents};
use stelia_placement_rules::request::{Request, RequestedVm, SharedRequest, VM_RESOURCE};

use super::{RebalanceLimits, Staying, eligible};
use crate::chooser::Refusal;
use crate::cluster::Cluster;
use crate::eligible::Used;
use crate::pod_request::PodRequest;
use crate::verdict::{Group, fixed, groups};

/// A VM that may move.
#[derive(Debug)]
pub(super) struct Vm {
    /// `namespace/name`.
    pub(super) name: String,
    /// What the scheduler counts.
    requests: Amounts,
}

pub(super) struct RebalanceInput {
    pub(super) nodes: Nodes,
    pub(super) residents: Residents,
    pub(super) vms: BTreeMap<Uid, Vm>,
    /// Nodes that the pod may not use, or of which too little is known.
    pub(super) refused: Vec<Group>,
    /// Containers without a VM, which cannot move.
    pub(super) staying: Vec<Staying>,
}

impl RebalanceInput {
    pub(super) fn of(pod_request: &PodRequest, cluster: &Cluster, may: RebalanceLimits) -> Self {
        let mut nodes = Nodes::default();
        let mut refused: Vec<(&str, Refusal)> = Vec::new();
        for member in &cluster.members {
            let text = cluster.whole.reports.get(&member.name);
            let why = match (fixed(pod_request, member).into_iter().next(), text) {
                (Some(refusal), _) => refusal,
                (None, None) => reason("it has no NodeResourceTopology", String::new()),
                (None, Some(text)) => match nodes.put(&member.name, text.as_bytes()) {
                    Ok(_) => continue,
                    Err(cause) => {
                        nodes.remove(&member.name);
                        reason(
                            "its NodeResourceTopology does not tell enough (profile stelia does)",
                            cause.to_string(),
                        )
                    }
                },
            };
            refused.push((&member.name, why));
        }
        let mut input = Self {
            residents: Residents::new(),
            vms: BTreeMap::new(),
            refused: groups(refused.iter().map(|(node, refusal)| (*node, refusal))),
            staying: staying(cluster, &nodes),
            nodes,
        };
        input.vms(cluster, may);
        input
    }

    /// Pods without a VM, and those that are not understood, stay where they are.
    fn vms(&mut self, cluster: &Cluster, may: RebalanceLimits) {
        // Whatever their manifests ask for.
        let containers: HashSet<Uid> = self.staying.iter().filter_map(|one| Uid::parse(&one.pod_uid)).collect();
        // The search keeps what it learns of a request by its place, so equal ones are one.
        let mut known: HashMap<String, SharedRequest> = HashMap::new();
        for ((namespace, name), text) in &cluster.whole.pods {
            let Ok(document) = serde_json::from_str::<Value>(text) else {
                continue;
            };
            let is_leaving = !document["metadata"]["deletionTimestamp"].is_null();
            let uid = document["metadata"]["uid"].as_str().and_then(Uid::parse);
            let node = document["spec"]["nodeName"].as_str();
            let (Some(uid), Some(node), false) = (uid, node, is_leaving) else {
                continue;
            };
            let Ok(request) = Request::of_pod(&document, Default::default()) else {
                continue;
            };
            if request.vm.is_none() || containers.contains(&uid) || !self.nodes.shows_pod(node, uid) {
                continue;
            }
            let vm = Vm {
                name: format!("{namespace}/{name}"),
                requests: request.pod.requests(),
            };
            let key = format!("{request:?}");
            let request = known.entry(key).or_insert_with(|| SharedRequest::new(request)).clone();
            self.vms.insert(uid, vm);
            self.residents.entry(node.to_owned()).or_default().push(Resident {
                uid,
                request,
                rebinds: may.rebind,
                migrates: may.migrate,
            });
        }
    }
}

/// The containers without a VM on nodes that are searched, by node and name.
fn staying(cluster: &Cluster, nodes: &Nodes) -> Vec<Staying> {
    let searched: HashSet<&str> = nodes.names().collect();
    let members = cluster
        .members
        .iter()
        .filter(|member| searched.contains(member.name.as_str()));
    let mut staying: Vec<Staying> = members
        .flat_map(|member| {
            let holders = member.report.iter().flat_map(|report| &report.stored.holders);
            let containers = holders.filter(|holder| holder.is_container == Some(true));
            containers.map(|holder| Staying::container(&member.name, holder.pod.as_str(), cluster))
        })
        .collect();
    staying.sort_by(|a, b| (&a.node, &a.pod, &a.pod_uid).cmp(&(&b.node, &b.pod, &b.pod_uid)));
    staying
}

fn reason(what: &str, detail: String) -> Refusal {
    Refusal {
        what: what.to_owned(),
        detail,
    }
}

/// What the pod asks. Its VM is in the container that asks for one, else in that with the most CPUs, as for the other commands.
pub(super) fn request(pod_request: &PodRequest) -> Request {
    let mut pod = pod_request.pod.clone();
    let lasting = pod.containers.iter().filter(|one| one.kind != ContainerKind::Init);
    let limit_of = |limits: &Amounts| limits.milli_cpus.unwrap_or(0);
    let asks = |limits: &Amounts| limits.devices.get(VM_RESOURCE).is_some_and(|count| *count > 0);
    let with_vm = lasting.max_by_key(|one| (asks(&one.resources.limits), limit_of(&one.resources.limits)));
    let vm = with_vm.map(|one| RequestedVm {
        container: one.name.clone(),
        allocation: pod_request.allocation.clone(),
        follows_scheduler: false,
    });
    for container in &mut pod.containers {
        container.resources.limits.devices.remove(VM_RESOURCE);
        container.resources.requests.devices.remove(VM_RESOURCE);
    }
    Request::new(pod, vm, Default::default())
}

/// Whether the scheduler, which counts requests, would bind the pod to this node and each VM to its own, once these VMs have left.
pub(super) fn is_within_requests(
    pod_request: &PodRequest,
    cluster: &Cluster,
    vms: &BTreeMap<Uid, Vm>,
    node: &str,
    departures: &[Departure<'_>],
) -> bool {
    let mut used = cluster
        .member(node)
        .map(|member| member.used.clone())
        .unwrap_or_default();
    let mut coming: BTreeMap<&str, Vec<&Amounts>> = BTreeMap::new();
    for (uid, to) in departures {
        let Some(vm) = vms.get(uid) else { continue };
        used.remove(&vm.requests);
        if let Some(to) = to {
            coming.entry(to).or_default().push(&vm.requests);
        }
    }
    has_left(cluster, node, used, [&pod_request.requests])
        && coming.into_iter().all(|(to, requests)| {
            let used = cluster.member(to).map(|member| member.used.clone()).unwrap_or_default();
            has_left(cluster, to, used, requests)
        })
}

/// Whether a node has enough left for all of these. Without its Node that is not known, and taken for granted.
fn has_left<'a>(
    cluster: &Cluster,
    node: &str,
    mut used: Used,
    requests: impl IntoIterator<Item = &'a Amounts>,
) -> bool {
    let Some(node) = cluster.member(node).and_then(|member| member.node.as_ref()) else {
        return true;
    };
    requests.into_iter().all(|requests| {
        let fits = eligible::requests(requests, node, &used).is_empty();
        used.add(requests);
        fits
    })
}
