//! The node as the daemon describes it, and the owner of each CPU.

#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;

use serde::Serialize;
use stelia_api::quiet::{Remaining, RemainingCause};
use stelia_api::reason::RECREATE;
use stelia_api::{ReasonCode, State};
use stelia_cpus::CpuSet;
pub(crate) use stelia_model::Description;
use stelia_model::FormerVm;

use super::condition::age;
use super::pod::{MAX_NAMED, Pod};
use crate::shared::output::{now, some_of};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "owner")]
pub(crate) enum Owner {
    Shared,
    /// Reserved for the system by kubelet's or steliad's configuration; floats may run there as well.
    Reserved,
    Instance {
        pod: String,
        /// Isolation is not degraded.
        whole: bool,
        /// Its QoS class; empty where kubelet chose its CPUs.
        #[serde(skip_serializing_if = "String::is_empty")]
        class: String,
    },
    /// A pod that is not an instance.
    Pod {
        pod: String,
    },
    /// kubelet assigned it to a container that its file no longer lists; steliad does not allocate it.
    Kubelet,
    /// kubelet's file does not list it, or cannot be used.
    Unknown,
}

/// Whether kubelet's file cannot be used, so that the CPUs of pods that are not VMs are not known.
pub(crate) fn is_file_unusable(description: &Description) -> bool {
    let mut problems = description.problems.iter();
    problems.any(|problem| problem.code == ReasonCode::KubeletUnusable)
}

/// What a former VM is, and what to do about it.
pub(crate) const FORMER: &str = "released or ended, not isolated if still running";

/// The same with when it ended, microseconds since the epoch, where that is known.
pub(crate) fn former_since(ended_us: u64, now: u64) -> String {
    match age(ended_us, now) {
        ago if ago.is_empty() => FORMER.to_owned(),
        ago => format!("released or ended {ago} ago, not isolated if still running"),
    }
}

/// "team-a/web (43s ago)", each with when it ended where that is known; `None` of none.
pub(crate) fn whose_former(former: &[(Pod, u64)]) -> Option<String> {
    let named = former.iter().map(|(pod, ended_us)| match age(*ended_us, now()) {
        ago if ago.is_empty() => pod.to_string(),
        ago => format!("{pod} ({ago} ago)"),
    });
    Some(some_of(named, MAX_NAMED)).filter(|names| !names.is_empty())
}

/// What isolates these VMs again; a single one is named in the command.
pub(crate) fn recreate(description: &Description, former: &[(Pod, u64)]) -> String {
    let first = if is_file_unusable(description) {
        "once the node is mended, "
    } else {
        ""
    };
    let fix = format!("{first}{RECREATE}");
    match former {
        [(pod, _)] => pod.in_fix(fix),
        _ => fix,
    }
}

/// "team-a/web (43s ago): released or ended, not isolated if still running; recreate the pod: …"; `None` of none.
pub(crate) fn former_in_words(description: &Description, former: &[(Pod, u64)]) -> Option<String> {
    Some(format!(
        "{}: {FORMER}; {}",
        whose_former(former)?,
        recreate(description, former)
    ))
}

/// The VMs that were released or ended and may run on, not isolated, each with when that was, microseconds since the epoch: kubelet's file
/// gives their pods CPUs, or cannot be used. The newest first.
pub(crate) fn former_vms(description: &Description) -> impl Iterator<Item = (Pod, u64)> {
    let (node, is_unknown) = (&description.node, is_file_unusable(description));
    let may_run = move |one: &&FormerVm| {
        let newest = node.former.iter().find(|other| other.pod == one.pod);
        let has_cpus = is_unknown || node.entries.contains_key(&one.pod);
        has_cpus && newest == Some(*one) && !node.instances.contains_key(&one.pod)
    };
    let former = node.former.iter().filter(may_run);
    former.map(|one| (Pod::new(&one.pod, one.pod_name.as_ref()), one.ended_us))
}

/// What an instance holds comes before kubelet's entries, because the kernel enforces it. One that is evicted holds none that another pod has.
pub(crate) fn owner(description: &Description, cpu: u32) -> Owner {
    let node = &description.node;
    let has_it = |containers: &BTreeMap<String, CpuSet>| containers.values().any(|cpus| cpus.contains(cpu));
    let assigned = node.entries.iter().find(|(_, containers)| has_it(containers));
    for (pod, instance) in &node.instances {
        let is_anothers = instance.state == State::Evicted && assigned.is_some_and(|(other, _)| other != pod);
        if instance.exclusive.contains(cpu) && !is_anothers {
            return Owner::Instance {
                pod: pod.to_string(),
                whole: instance.degraded.is_empty(),
                class: instance.class().to_owned(),
            };
        }
    }
    if let Some((pod, _)) = assigned {
        return Owner::Pod { pod: pod.to_string() };
    }
    if let Some(pools) = &node.pools {
        let whose = [
            (&pools.kubelet, Owner::Kubelet),
            (&pools.reserved, Owner::Reserved),
            (&pools.pools.shared, Owner::Shared),
        ];
        let found = whose.into_iter().find(|(cpus, _)| cpus.contains(cpu));
        return found.map_or(Owner::Unknown, |(_, owner)| owner);
    }
    match &node.pool {
        _ if description.kubelet_reserved().contains(cpu) => Owner::Reserved,
        Some(pool) if pool.contains(cpu) => Owner::Shared,
        _ => Owner::Unknown,
    }
}

/// Online CPUs by owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OnlineCpus {
    /// The VMs' own.
    pub exclusive: CpuSet,
    /// Other pods' own.
    pub pods: CpuSet,
    pub shared: CpuSet,
    pub reserved: CpuSet,
    /// kubelet's file does not list them, or cannot be used.
    pub unknown: CpuSet,
}

impl OnlineCpus {
    pub(crate) fn of(description: &Description) -> Self {
        let mut all = Self::default();
        for cpu in description.node.topology.online().iter() {
            let cpus = match owner(description, cpu) {
                Owner::Instance { .. } => &mut all.exclusive,
                Owner::Pod { .. } | Owner::Kubelet => &mut all.pods,
                Owner::Shared => &mut all.shared,
                Owner::Reserved => &mut all.reserved,
                Owner::Unknown => &mut all.unknown,
            };
            cpus.insert(cpu);
        }
        all
    }
}

/// Whether a VM is degraded by this interrupt, which could not be moved. One that the kernel places itself is reported only while it fires
/// again and again, every other one always (`stelia_decide::disturbances`).
pub(crate) fn is_reported(description: &Description, interrupt: &Remaining) -> bool {
    let begins = format!("interrupt {} ({}) ", interrupt.irq, interrupt.name);
    let mut reasons = description.node.instances.values().flat_map(|one| &one.degraded);
    interrupt.why != RemainingCause::Managed
        || reasons.any(|reason| reason.code == ReasonCode::Interrupts && reason.text.starts_with(&begins))
}
