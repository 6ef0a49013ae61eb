//! What is recorded when vCPU threads are handed over.

use std::collections::BTreeMap;

use stelia_api::ThreadRole;
use stelia_kernel::proc::TaskId;
use stelia_model::record::{Phase, Record, Vcpu, VcpuThread};
use stelia_settings::{AdoptPlacement, PlacementPolicy, Policies};

use super::partition_kind::partition_kind;
use super::vcpu_placement::{Placement, pinned_cpus, place};
use super::{Instance, Snapshot, placed};

/// How the vCPUs of an adopted VM are to be placed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptedPlacement {
    /// The CPU that each vCPU was found pinned to; `None`: they are placed by `policy`.
    pub pinned_cpus: Option<BTreeMap<u32, u32>>,
    /// `None`: that of the settings.
    pub policy: Option<PlacementPolicy>,
}

/// How the vCPUs of an instance are placed: by its record's policy, or where others pin them, as far as each has a CPU there.
pub fn placement_of(record: &Record) -> AdoptPlacement {
    if record.keeps_pins() {
        AdoptPlacement::Keep
    } else {
        AdoptPlacement::By(record.placement)
    }
}

/// The record of an instance with these threads attached, and a note if the placement policy could not be kept.
pub fn attached(
    snapshot: &Snapshot,
    policies: &Policies,
    known: &Instance,
    tasks: BTreeMap<ThreadRole, TaskId>,
    guest: Vec<Vcpu>,
    wanted: &AdoptedPlacement,
) -> (Record, Option<String>) {
    let former = &known.record;
    let own = former.own();
    let policy = wanted.policy.unwrap_or(policies.placement);
    let pins = wanted
        .pinned_cpus
        .as_ref()
        .and_then(|pins| pinned_cpus(pins, &guest, &own));
    let placement = match pins {
        Some(pins) => Placement { pins, note: None },
        None if known.behaviour().leaves_pins(former) => Placement::default(),
        None => place(policy, &guest, tasks.keys().copied(), &own, &snapshot.topology),
    };
    let threads: Vec<VcpuThread> = tasks
        .into_iter()
        .map(|(role, task)| VcpuThread { role, task, cpu: None })
        .collect();
    let (vcpus, partition) = placed(&threads, &placement.pins, partition_kind(snapshot, policies, known));
    let next = Record {
        vcpus,
        partition,
        props: guest.into_iter().map(|vcpu| (vcpu.index, vcpu.props)).collect(),
        placement: policy,
        ..former.clone()
    }
    .with_own(own);
    // The same list again moves nothing, nor does one without the threads that ended (a vCPU was unplugged): the
    // isolation was not interrupted, so the state stays. What was refused a partition stays pinned while the kernel is asked
    // for it again.
    let living: Vec<VcpuThread> = former
        .vcpus
        .iter()
        .zip(&known.vcpus)
        .filter_map(|(thread, now)| now.is_some().then_some(*thread))
        .collect();
    let same = (next.vcpus == former.vcpus || next.vcpus == living)
        && (next.partition == former.partition || former.phase == Phase::Pinned);
    let next = if same && matches!(former.phase, Phase::Isolated | Phase::Pinned) {
        Record {
            vcpus: next.vcpus,
            partition: next.partition,
            props: next.props,
            exclusive: next.exclusive,
            spare: next.spare,
            ..former.clone()
        }
    } else {
        Record {
            phase: Phase::Attaching,
            refused: false,
            ..next
        }
    };
    (next, placement.note)
}
