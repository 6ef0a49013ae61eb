//! The search on one node.

use std::collections::BTreeMap;
use std::sync::Arc;

use stelia_cpus::CpuSet;
use stelia_kubelet::Uid;

use super::{
    Binds, Departure, Gain, Limits, Move, MoveKind, NO_VMS, Plan, REQUESTED, Resident, TOO_SMALL, UNUSABLE,
    evaluate_unweighted,
};
use crate::cluster::{Cluster, NodeVerdict};
use crate::evaluate::{Arrival, NodeForecast, Placement};
use crate::node::{FreeResources, NodeShape};
use crate::request::{Request, SharedRequest};

/// Limit of the nodes that are evaluated as a VM's destination: those with the best scores now.
const MAX_DESTINATIONS: usize = 16;

/// A VM that may move, and the CPUs it has.
#[derive(Debug, Clone)]
pub(super) struct Victim {
    pub(super) resident: Resident,
    pub(super) cpus: CpuSet,
}

pub(super) struct Searcher<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) names: &'a [String],
    pub(super) request: &'a Request,
    pub(super) limits: Limits,
    pub(super) binds: &'a Binds<'a>,
    pub(super) tries: usize,
    /// The best nodes for a VM, by the address of its request, which is kept once.
    pub(super) destinations: BTreeMap<usize, Vec<String>>,
}

/// Nodes to which VMs go by the plan that is being made.
type Overlay = BTreeMap<String, (Arc<NodeShape>, NodeForecast)>;

impl Searcher<'_> {
    /// How many CPUs are missing there, and the VMs that may move, smallest first.
    pub(super) fn candidate(&self, name: &str, residents: &[Resident]) -> Result<(usize, Vec<Victim>), &'static str> {
        let (_, forecast) = self.cluster.forecast(name).ok_or(UNUSABLE)?;
        let mut tenants: BTreeMap<Uid, CpuSet> = self
            .cluster
            .tenants(name)
            .into_iter()
            .map(|tenant| (tenant.uid, tenant.cpus))
            .collect();
        let victims = residents.iter().filter(|one| one.rebinds || one.migrates);
        let mut victims: Vec<Victim> = victims
            .filter_map(|resident| {
                let cpus = tenants.remove(&resident.uid).filter(|cpus| !cpus.is_empty())?;
                let resident = resident.clone();
                Some(Victim { resident, cpus })
            })
            .collect();
        if victims.is_empty() {
            return Err(NO_VMS);
        }
        victims.sort_by_key(|victim| (victim.cpus.len(), victim.resident.uid));
        let (free, wanted) = (forecast.expected.free.len(), whole_cpus(self.request));
        let all: usize = victims.iter().map(|victim| victim.cpus.len()).sum();
        // A rebind makes room only for whole cores or within a NUMA node, a migration always: with rebinds alone the pod must fit by number.
        let most = if victims.iter().any(|victim| victim.resident.migrates) {
            free + all
        } else {
            free
        };
        if most < wanted {
            return Err(TOO_SMALL);
        }
        let migrating = victims.iter().filter(|victim| victim.resident.migrates);
        let all: Vec<Departure<'_>> = migrating.map(|victim| (victim.resident.uid, None)).collect();
        if (self.binds)(name, &all) {
            Ok((wanted.saturating_sub(free), victims))
        } else {
            Err(REQUESTED)
        }
    }

    /// The best plan with so many of these VMs, which are not fewer.
    pub(super) fn plan(&mut self, name: &str, victims: &[Victim], size: usize) -> Option<Plan> {
        let mut chosen: Vec<usize> = (0..size).collect();
        let mut best: Option<Plan> = None;
        while self.tries < self.limits.tries {
            let set: Vec<&Victim> = chosen.iter().filter_map(|at| victims.get(*at)).collect();
            if let Some(plan) = self.without(name, &set).filter(|plan| self.is_bound(plan)) {
                let cost = |plan: &Plan| (plan.gain.copied, plan.gain.moved_cpus);
                if best.as_ref().is_none_or(|known| cost(&plan) < cost(known)) {
                    best = Some(plan);
                }
            }
            if !next_combination(&mut chosen, victims.len()) {
                break;
            }
        }
        best
    }

    /// Whether the scheduler would do what the plan needs.
    fn is_bound(&self, plan: &Plan) -> bool {
        let migrating = plan.moves.iter().filter(|one| one.how == MoveKind::Migrate);
        let departures: Vec<Departure<'_>> = migrating.map(|one| (one.uid, Some(one.to.as_str()))).collect();
        (self.binds)(&plan.node, &departures)
    }

    /// The plan that moves these.
    fn without(&mut self, name: &str, set: &[&Victim]) -> Option<Plan> {
        let (shape, forecast) = self.cluster.forecast(name)?;
        let (shape, now) = (Arc::clone(shape), forecast.clone());
        let mut emptied = now.published.clone();
        for victim in set {
            emptied = emptied.freed(&shape, &victim.cpus, Some(&victim.resident.request.pod));
        }
        let emptied = NodeForecast::new(&shape, emptied, now.arrivals.clone());
        if emptied.arrivals.len() < now.arrivals.len() {
            return None;
        }
        self.tries += 1;
        let placement = evaluate_unweighted(&shape, &emptied, self.request).ok()?;
        let mut forecast = with_pod(&shape, &emptied, self.request, &placement)?;
        let mut overlay = Overlay::new();
        let (mut migrations, mut rebinds): (Vec<Move>, Vec<Move>) = (Vec::new(), Vec::new());
        // What is free before a rebind: now, and what VMs left that are migrated before.
        let mut free = now.expected.free.clone();
        let mut order: Vec<&&Victim> = set.iter().collect();
        order.sort_by_key(|victim| std::cmp::Reverse(victim.cpus.len()));
        for victim in order {
            let request = &victim.resident.request;
            if victim.resident.rebinds && shape.steliad_chooses() {
                self.tries += 1;
                let open = free.union(&victim.cpus);
                let there = evaluate_unweighted(&shape, &forecast, request);
                let there = there
                    .ok()
                    .filter(|there| there.vm_cpus.is_subset(&open) && there.vm_cpus != victim.cpus);
                let next = there.and_then(|there| Some((with_pod(&shape, &forecast, request, &there)?, there)));
                if let Some((next, there)) = next {
                    forecast = next;
                    free = open.difference(&there.vm_cpus);
                    rebinds.push(make_move(victim, MoveKind::Rebind, name, &there));
                    continue;
                }
            }
            if !victim.resident.migrates {
                return None;
            }
            let (to, there) = self.destination(name, victim, &mut overlay)?;
            free.union_with(&victim.cpus);
            migrations.push(make_move(victim, MoveKind::Migrate, &to, &there));
        }
        let moves: Vec<Move> = migrations.into_iter().chain(rebinds).collect();
        let cores =
            |available: &FreeResources| shape.host.whole_cores(&available.free).len() / shape.host.threads().max(1);
        Some(Plan {
            node: name.to_owned(),
            gain: Gain {
                cpus: placement.cpus.len(),
                moved_cpus: moves.iter().map(|one| one.from_cpus.len()).sum(),
                copied: moves.iter().map(|one| one.memory).fold(0, u64::saturating_add),
                free_cores: (cores(&now.expected), cores(&forecast.expected)),
            },
            moves,
            placement,
        })
    }

    /// Where a VM can go, beside those that go there by the same plan.
    fn destination(&mut self, from: &str, victim: &Victim, overlay: &mut Overlay) -> Option<(String, Placement)> {
        let request = &victim.resident.request;
        for name in self.destinations(request) {
            if name == from {
                continue;
            }
            let known = overlay.get(&name).cloned();
            let known = known.or_else(|| {
                let (shape, forecast) = self.cluster.forecast(&name)?;
                Some((Arc::clone(shape), forecast.clone()))
            });
            let Some((shape, forecast)) = known else { continue };
            self.tries += 1;
            let Ok(placement) = evaluate_unweighted(&shape, &forecast, request) else {
                continue;
            };
            let Some(next) = with_pod(&shape, &forecast, request, &placement) else {
                continue;
            };
            overlay.insert(name.clone(), (shape, next));
            return Some((name, placement));
        }
        None
    }

    fn destinations(&mut self, request: &SharedRequest) -> Vec<String> {
        let key = request.address();
        if let Some(known) = self.destinations.get(&key) {
            return known.clone();
        }
        let id = self.cluster.request(Request::clone(request));
        let mut found: Vec<(u16, &str)> = Vec::new();
        self.cluster
            .verdicts(id, self.names.iter().map(String::as_str), |name, verdict| {
                if let NodeVerdict::Fits(total) = verdict {
                    found.push((total, name));
                }
            });
        found.sort_by_key(|(total, name)| (std::cmp::Reverse(*total), *name));
        // One more: the VM's own node may be among them.
        let best: Vec<String> = found
            .into_iter()
            .take(MAX_DESTINATIONS + 1)
            .map(|(_, name)| name.to_owned())
            .collect();
        self.destinations.insert(key, best.clone());
        best
    }
}

fn make_move(victim: &Victim, how: MoveKind, to: &str, there: &Placement) -> Move {
    Move {
        uid: victim.resident.uid,
        how,
        to: to.to_owned(),
        from_cpus: victim.cpus.clone(),
        cpus: there.vm_cpus.clone(),
        memory: match how {
            MoveKind::Rebind => 0,
            MoveKind::Migrate => requested_bytes(&victim.resident.request),
        },
    }
}

/// The node once the pod is there too.
fn with_pod(
    shape: &NodeShape,
    forecast: &NodeForecast,
    request: &Request,
    placement: &Placement,
) -> Option<NodeForecast> {
    let mut arrivals = forecast.arrivals.clone();
    arrivals.push(Arrival {
        request: SharedRequest::new(request.clone()),
        cpus: placement.assigned_cpus.clone(),
        is_late: false,
        is_ours: true,
    });
    let count = arrivals.len();
    let next = NodeForecast::new(shape, forecast.published.clone(), arrivals);
    (next.arrivals.len() == count).then_some(next)
}

/// CPUs that the pod wants for itself, at least.
fn whole_cpus(request: &Request) -> usize {
    let containers = request.pod.containers.iter();
    let whole = containers.filter_map(|container| container.resources.requests.milli_cpus);
    let most = whole.filter(|milli| milli.is_multiple_of(1000)).max().unwrap_or(0);
    usize::try_from(most / 1000).unwrap_or(usize::MAX)
}

/// Bytes that the pod requests.
fn requested_bytes(request: &Request) -> u64 {
    let containers = request
        .pod
        .containers
        .iter()
        .map(|container| &container.resources.requests);
    let pages = |pages: &BTreeMap<u64, u64>| pages.values().copied().fold(0, u64::saturating_add);
    let bytes = containers.map(|amounts| amounts.memory.unwrap_or(0).saturating_add(pages(&amounts.huge_pages)));
    bytes.fold(0, u64::saturating_add)
}

/// The next choice of as many places, in order; `false` after the last one.
fn next_combination(chosen: &mut [usize], count: usize) -> bool {
    let size = chosen.len();
    for at in (0..size).rev() {
        if chosen[at] < count - (size - at) {
            chosen[at] += 1;
            for later in at + 1..size {
                chosen[later] = chosen[later - 1] + 1;
            }
            return true;
        }
    }
    false
}
