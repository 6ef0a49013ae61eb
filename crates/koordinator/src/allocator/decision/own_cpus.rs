//! Exclusive CPUs (LSE, LSR): chosen by the policies, or by a scheduler and then checked.

use stelia_api::{Error, ErrorKind};
use stelia_cpus::{CpuSet, NodeSet};

use super::words::{by_node, exclusivity_conflicts, layout};
use super::{Allocation, AllocatorNode, Requester, scheduled_nodes};
use crate::allocator::request::numbers;
use crate::allocator::{
    AllocationRequest, CpuBindPolicy, CpuSelection, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
    RequiredBind, Room, SelectedCpus, Unsatisfied, align, satisfies, select_cpus,
};

pub(super) fn allot(
    request: &AllocationRequest,
    requester: &Requester,
    node: &AllocatorNode,
    mut allocation: Allocation,
) -> Result<(CpuSet, Allocation), Error> {
    check(request, node, &allocation)?;
    allocation.cpus = count(request, requester, allocation.qos)?;
    bind(request, node.policies.required, &mut allocation)?;
    let AllocatorNode { host, pools, usage, .. } = node;
    let choice = Choice {
        node,
        request,
        memory: requester.memory.as_ref(),
        devices: &requester.devices,
        allocation: &allocation,
        free: usage.available(&pools.allocatable),
    };
    let (answer, why) = match &request.schedule.cpus {
        Some(chosen) => choice.scheduled(chosen)?,
        None => choice.chosen()?,
    };
    if pools.shared.difference(&answer.cpus).is_empty() {
        let text = format!(
            "{} CPUs would leave none that is shared: there would be nowhere to float",
            allocation.cpus
        );
        return Err(ErrorKind::NotAllocated.because(text));
    }
    let mut explanation = vec![
        format!(
            "{} CPUs for class {}; free were {}",
            allocation.cpus,
            allocation.qos.name(),
            by_node(host, &choice.free)
        ),
        why,
        format!(
            "bind policy {} ({}), strategy {}",
            allocation.bind.name(),
            if allocation.required { "required" } else { "preferred" },
            allocation.strategy.name()
        ),
        format!("chosen: {}", layout(host, &answer.cpus)),
    ];
    allocation.exclusivity = answer.exclusive;
    explanation.extend(exclusivity_conflicts(&allocation));
    allocation.explanation = explanation;
    Ok((answer.cpus, allocation))
}

/// How many CPUs: as many as asked for, else the container's CPU limit. A container that asks itself gets no more than
/// its limit.
fn count(request: &AllocationRequest, requester: &Requester, qos: Qos) -> Result<u32, Error> {
    let whole = requester
        .limit_milli
        .filter(|milli| *milli > 0 && milli.is_multiple_of(1000));
    let limit = whole.and_then(|milli| u32::try_from(milli / 1000).ok());
    if requester.bound && limit.is_none() {
        let text = match requester.limit_milli {
            Some(milli) => format!(
                "class {} needs a whole number of CPUs as limit, the container's is {milli}m",
                qos.name()
            ),
            None => format!(
                "class {} needs a CPU limit, and the container has no cpu.max",
                qos.name()
            ),
        };
        return Err(ErrorKind::NotGuaranteed.because(text).lasting());
    }
    let scheduled = || {
        request
            .schedule
            .cpus
            .as_ref()
            .and_then(|cpus| u32::try_from(cpus.len()).ok())
    };
    let count = request.cpus.or(limit).or_else(scheduled).ok_or_else(|| {
        ErrorKind::InvalidArgument.because("option \"cpus\" is missing, and the container has no whole CPU limit")
    })?;
    if count == 0 {
        return Err(ErrorKind::InvalidArgument.because("option \"cpus\" is 0"));
    }
    if let Some(limit) = limit.filter(|limit| requester.bound && count > *limit) {
        let text = format!("option \"cpus\" is {count}, the container's CPU limit is {limit}");
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    Ok(count)
}

/// Refuse options that LSE and LSR cannot have, and every request while a record is unreadable.
fn check(request: &AllocationRequest, node: &AllocatorNode, allocation: &Allocation) -> Result<(), Error> {
    if let Some((scope, reason)) = &node.unreadable {
        let text = format!("the CPUs of {scope} are unknown: {reason}");
        return Err(ErrorKind::Failed.because(text));
    }
    let class = allocation.qos.name();
    if request.cpu_limit.is_some() {
        let text = format!("option \"cpu-limit\" is for ConstrainedBurst, not for class {class}");
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    if allocation.bind == CpuBindPolicy::ConstrainedBurst {
        let text = format!("class {class} has CPUs of its own: ConstrainedBurst is for LS");
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    Ok(())
}

/// The bind policy that must be satisfied, the pod's or the node's.
fn bind(request: &AllocationRequest, of_node: RequiredBind, allocation: &mut Allocation) -> Result<(), Error> {
    allocation.required = request.required_cpu_bind_policy.is_some();
    let Some(required) = of_node.policy() else {
        return Ok(());
    };
    if ![CpuBindPolicy::Default, required].contains(&request.bind()) {
        let text = format!(
            "the node requires the bind policy {}, not {}",
            required.name(),
            allocation.bind.name()
        );
        return Err(ErrorKind::NotAllocated.because(text));
    }
    (allocation.bind, allocation.required) = (required, true);
    Ok(())
}

/// The choice of CPUs; policies and the number of CPUs are known by now.
struct Choice<'a> {
    node: &'a AllocatorNode,
    request: &'a AllocationRequest,
    /// The NUMA nodes that the container's memory may come from; `None` for any.
    memory: Option<&'a NodeSet>,
    /// The NUMA nodes of the container's devices.
    devices: &'a NodeSet,
    allocation: &'a Allocation,
    free: CpuSet,
}

impl Choice<'_> {
    /// By the policies.
    fn chosen(&self) -> Result<(SelectedCpus, String), Error> {
        let (nodes, why) = self.nodes()?;
        let AllocatorNode { host, usage, .. } = self.node;
        let selection = self.selection(nodes);
        let answer = select_cpus(host, usage, &self.free, &selection).map_err(|cause| self.refused(&cause))?;
        let Some(nodes) = selection.nodes.as_ref().filter(|nodes| nodes.len() > 1) else {
            return Ok((answer, why));
        };
        // An even part of each node, if it costs no whole core.
        let there = host.within(&self.free, nodes);
        let whole = |answer: &SelectedCpus| host.whole_cores(&answer.cpus).len();
        let packed = select_cpus(host, usage, &there, &self.selection(None)).ok();
        let packed =
            packed.filter(|packed| selection.bind == CpuBindPolicy::FullPcpus && whole(packed) > whole(&answer));
        Ok((packed.unwrap_or(answer), why))
    }

    /// The CPUs that a scheduler chose, if they are free and satisfy what is required.
    fn scheduled(&self, cpus: &CpuSet) -> Result<(SelectedCpus, String), Error> {
        let AllocatorNode {
            host, usage, policies, ..
        } = self.node;
        let wanted = self.allocation.cpus as usize;
        if cpus.len() != wanted {
            let text = format!(
                "the scheduler chose {} CPUs ({cpus}), the container is to have {wanted}",
                cpus.len()
            );
            return Err(ErrorKind::CpusetMismatch.because(text).lasting());
        }
        let cannot = [
            (cpus.difference(host.online()), "are not online on this host"),
            (cpus.intersection(&policies.reserved), "are reserved (reserved-cpus)"),
            (cpus.difference(&self.free), "are not free"),
        ];
        if let Some((some, why)) = cannot.iter().find(|(some, _)| !some.is_empty()) {
            let text = format!("the scheduler chose the CPUs {cpus}, of which {some} {why}");
            return Err(ErrorKind::NotAllocated.because(text));
        }
        if let Some(text) = self.request.schedule.contradicts(cpus, |cpus| host.nodes_of(cpus)) {
            return Err(ErrorKind::CpusetMismatch.because(text).lasting());
        }
        self.admit(&host.nodes_of(cpus))?;
        // Only these CPUs are open, so this tells whether they satisfy a required bind policy, and how the exclusive
        // policy is kept.
        let selection = CpuSelection {
            strategy: NumaAllocateStrategy::MostAllocated,
            ..self.selection(None)
        };
        let answer = select_cpus(host, usage, cpus, &selection).map_err(|cause| {
            let text = format!("the scheduler chose the CPUs {cpus}: {cause}");
            ErrorKind::NotAllocated.because(text)
        })?;
        Ok((answer, format!("the scheduler chose the CPUs {cpus}")))
    }

    /// The NUMA nodes to take CPUs from, and why these.
    fn nodes(&self) -> Result<(Option<NodeSet>, String), Error> {
        if let Some(named) = scheduled_nodes(self.request, &self.node.pools)? {
            self.admit(named)?;
            return Ok((
                Some(named.clone()),
                format!("the scheduler named NUMA nodes {}", numbers(named)),
            ));
        }
        let alignment = self.allocation.alignment;
        let memory = self.memory.filter(|_| alignment != NumaTopologyAlignmentPolicy::None);
        let near = match memory {
            Some(memory) => self
                .aligned(Some(memory))
                .map_err(|cause| self.away_from(memory, &cause))?,
            None => None,
        };
        let of_memory = match (memory, &near) {
            (Some(memory), Some(_)) => format!(", of those that its memory comes from ({})", numbers(memory)),
            (Some(memory), None) => format!("; its memory comes from {}, where too few are free", numbers(memory)),
            (None, _) => String::new(),
        };
        let nodes = match &near {
            Some(nodes) => Some(nodes.clone()),
            None => self.aligned(None).map_err(|cause| self.refused(&cause))?,
        };
        let which = match &nodes {
            Some(nodes) => format!("NUMA nodes {}", numbers(nodes)),
            None => "every NUMA node open".to_owned(),
        };
        let of_devices = match &nodes {
            Some(nodes) if !self.devices.is_empty() => self.words_of_devices(nodes, memory.filter(|_| near.is_some())),
            _ => String::new(),
        };
        let why = format!("alignment policy {}: {which}{of_memory}{of_devices}", alignment.name());
        Ok((nodes, why))
    }

    /// Whether its devices are at the NUMA nodes that were chosen, `within` some or of all, and why they are not.
    fn words_of_devices(&self, nodes: &NodeSet, within: Option<&NodeSet>) -> String {
        let devices = numbers(self.devices);
        match (self.devices.is_subset(nodes), self.devices.is_disjoint(nodes)) {
            (true, _) => format!(", with those of its devices ({devices})"),
            (false, false) => format!(", with some of those of its devices ({devices})"),
            (false, true) => format!(
                "; its devices are at {devices}, {}",
                self.why_elsewhere(nodes.len(), within)
            ),
        }
    }

    /// Why none of so many NUMA nodes is one of its devices': the first rule of the choice that left those out.
    fn why_elsewhere(&self, count: usize, within: Option<&NodeSet>) -> String {
        if within.is_some_and(|memory| memory.is_disjoint(self.devices)) {
            return "from which its memory does not come".to_owned();
        }
        let Allocation { bind, exclusive, .. } = *self.allocation;
        let fits = |bind| {
            let policy = NumaTopologyAlignmentPolicy::BestEffort;
            let room = self.room_of(&self.free, bind, within);
            let found = align(policy, self.allocation.strategy, self.count(), &room, self.devices);
            let found = found.ok().flatten();
            found.is_some_and(|found| found.len() <= count && !found.is_disjoint(self.devices))
        };
        match (fits(None), fits(Some(bind))) {
            (false, _) => "where too few are free".to_owned(),
            (true, false) => format!("where too few are free for the bind policy {}", bind.name()),
            (true, true) => format!("where the exclusive policy {} could not be kept", exclusive.name()),
        }
    }

    /// The NUMA nodes by the alignment policy, `within` some or of all.
    ///
    /// A node that has enough CPUs may have them on cores that others use. So first only those CPUs are counted that
    /// satisfy the bind policy: for whole cores BestEffort takes another node, for one CPU of each core it does not.
    /// Among equally few nodes those come first on which the exclusive policy can be kept.
    fn aligned(&self, within: Option<&NodeSet>) -> Result<Option<NodeSet>, Unsatisfied> {
        let Allocation {
            bind,
            strategy,
            alignment,
            ..
        } = *self.allocation;
        if alignment == NumaTopologyAlignmentPolicy::None {
            return Ok(None);
        }
        let AllocatorNode { host, usage, .. } = self.node;
        let by = |free: &CpuSet, bind: Option<CpuBindPolicy>| {
            let room = self.room_of(free, bind, within);
            align(alignment, strategy, self.count(), &room, self.devices)
        };
        let size = |answer: &Result<Option<NodeSet>, Unsatisfied>| {
            answer
                .as_ref()
                .ok()
                .and_then(|nodes| nodes.as_ref().map(|nodes| nodes.len()))
        };
        let all = by(&self.free, self.required());
        let bound = by(&self.free, Some(bind));
        let keeps = |bound: &usize| match (alignment, size(&all)) {
            (NumaTopologyAlignmentPolicy::BestEffort, None) => true,
            (NumaTopologyAlignmentPolicy::BestEffort, Some(_)) if bind == CpuBindPolicy::FullPcpus => true,
            // A preferred bind policy must not make the instance span more nodes.
            (_, all) => all.is_some_and(|all| *bound <= all),
        };
        let Some(binds) = size(&bound).filter(keeps) else {
            return all;
        };
        let exclusivity_conflicts = crate::allocator::exclusivity_conflicts(host, usage, self.allocation.exclusive);
        if exclusivity_conflicts.is_empty() {
            return bound;
        }
        let spared = by(&self.free.difference(&exclusivity_conflicts), Some(bind));
        if size(&spared).is_some_and(|spares| spares <= binds) {
            spared
        } else {
            bound
        }
    }

    /// Refuse these NUMA nodes where a strict alignment policy is not satisfied by them.
    fn admit(&self, nodes: &NodeSet) -> Result<(), Error> {
        let policy = self.allocation.alignment;
        let away = self
            .memory
            .filter(|memory| policy.is_strict() && !nodes.is_subset(memory));
        let cause = Unsatisfied::Alignment {
            wanted: self.count(),
            policy,
        };
        match away {
            Some(memory) => Err(self.away_from(memory, &cause)),
            None if satisfies(policy, nodes.len(), self.count(), &self.room()) => Ok(()),
            None => {
                let text = format!("the scheduler chose NUMA nodes {}: {cause}", numbers(nodes));
                Err(ErrorKind::NotAllocated.because(text))
            }
        }
    }

    fn count(&self) -> usize {
        self.allocation.cpus as usize
    }

    fn required(&self) -> Option<CpuBindPolicy> {
        self.allocation.required.then_some(self.allocation.bind)
    }

    fn room(&self) -> Room {
        self.room_of(&self.free, self.required(), None)
    }

    /// `within` some NUMA nodes or on all.
    fn room_of(&self, free: &CpuSet, bind: Option<CpuBindPolicy>, within: Option<&NodeSet>) -> Room {
        let room = Room::new(&self.node.host, &self.node.capacity(), free, bind);
        match within {
            Some(nodes) => room.within(nodes),
            None => room,
        }
    }

    fn selection(&self, nodes: Option<NodeSet>) -> CpuSelection {
        CpuSelection {
            nodes,
            ..self.allocation.selection(self.count())
        }
    }

    fn refused(&self, cause: &Unsatisfied) -> Error {
        ErrorKind::NotAllocated.because(format!("{cause}; free: {}", by_node(&self.node.host, &self.free)))
    }

    fn away_from(&self, memory: &NodeSet, cause: &Unsatisfied) -> Error {
        let free = by_node(&self.node.host, &self.free);
        let text = format!(
            "{cause}; its memory comes from NUMA nodes {}, free: {free}",
            numbers(memory)
        );
        ErrorKind::NotAllocated.because(text)
    }
}
