//! The VM in a container: its process, its vCPU threads by index, and where they run.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kernel::vmm_processes::{NamedThread, Process};
use stelia_model::record::Vcpu;
use stelia_settings::{AdoptPartition, AdoptPlacement, AdoptRule, Isolation};

use crate::AdoptedPlacement;
use crate::admission::Adopting;
use crate::adopt::guest::{self, GuestShape};
use crate::adopt::rules::NameMatch;
use crate::adopt::{Accelerator, NotAdopted};

/// Limit of the vCPUs of an adopted VM.
const MAX_VCPUS: u32 = 1024;

/// The VM among the processes of a container, by the first of its rules that finds one. `exclusive` are the container's CPUs.
///
/// # Errors
/// If no rule matches, the error is the reason of the rule that came closest to a VM.
pub fn vm(rules: &[&AdoptRule], processes: &[Process], exclusive: &CpuSet) -> Result<Adopting, NotAdopted> {
    let mut closest = NotAdopted::NoRule;
    for rule in rules {
        match by_rule(rule, processes, exclusive) {
            Ok(vm) => return Ok(vm),
            Err(why) if rank(&why) > rank(&closest) => closest = why,
            Err(_) => {}
        }
    }
    Err(closest)
}

/// How far it came before this was found.
fn rank(why: &NotAdopted) -> u8 {
    match why {
        NotAdopted::NoRule | NotAdopted::Unnamed | NotAdopted::Sandbox => 0,
        NotAdopted::ContainerRefuses { .. } => 1,
        NotAdopted::NoVmm { .. } => 2,
        NotAdopted::NamesDiffer { .. } => 3,
        NotAdopted::NoVcpus { .. } | NotAdopted::OtherAccelerator { .. } => 4,
        NotAdopted::TooFewVcpus { .. } | NotAdopted::Gap { .. } => 5,
        NotAdopted::Doubled { .. } | NotAdopted::TooManyVcpus { .. } | NotAdopted::SeveralVmms { .. } => 6,
        NotAdopted::NotStarted { .. } => 7,
    }
}

fn by_rule(rule: &AdoptRule, processes: &[Process], exclusive: &CpuSet) -> Result<Adopting, NotAdopted> {
    let (process, vcpus) = vmm(rule, processes)?;
    let shape = guest::shape(&process.command);
    let threads = indexed(process.task.id, &vcpus, shape.as_ref())?;
    let guest = |index: &u32| Vcpu {
        index: *index,
        props: shape.as_ref().map(|shape| shape.place(*index)).unwrap_or_default(),
    };
    let keeps = rule.placement == AdoptPlacement::Keep;
    let pinned_cpus = keeps.then(|| pinned_cpus(&threads, exclusive)).flatten();
    // KubeVirt has yet to make its cgroup, plans pins again before it lets the guest run, and pins KVM's timer thread to a CPU that must
    // not be a partition's then.
    if is_held(process) && (waits_for_owner(rule) || keeps && pinned_cpus.is_none()) {
        return Err(NotAdopted::NotStarted { pid: process.task.id });
    }
    Ok(Adopting {
        rule: rule.clone(),
        vmm: Some(process.task),
        guest: threads.keys().map(guest).collect(),
        threads: threads
            .into_iter()
            .map(|(index, thread)| (index, thread.task))
            .collect(),
        wanted: AdoptedPlacement {
            pinned_cpus,
            policy: match rule.placement {
                AdoptPlacement::By(policy) => Some(policy),
                AdoptPlacement::Keep | AdoptPlacement::Auto => None,
            },
        },
    })
}

/// Whether another program goes on to set the VM up until its guest runs.
fn waits_for_owner(rule: &AdoptRule) -> bool {
    rule.partition == AdoptPartition::Member || rule.isolation == Isolation::Container
}

/// The threads of a VMM, each with the index in its name.
type Vcpus<'p> = Vec<(u32, &'p NamedThread)>;

/// The one process that is the rule's VMM. One without vCPUs stands beside it where a VMM has forked, or asked another what it
/// can do, as libvirt does.
fn vmm<'p>(rule: &AdoptRule, processes: &'p [Process]) -> Result<(&'p Process, Vcpus<'p>), NotAdopted> {
    let mut running = Vec::new();
    let (mut waiting, mut half, mut other) = (None, None, None);
    for process in processes {
        let program = process.command.first().map(String::as_str).unwrap_or_default();
        let named = NameMatch::of(rule, &process.name, program);
        match (named.name, named.program) {
            (true, true) => {
                let index = |thread: &'p NamedThread| Some((rule.threads.index(&thread.name)?, thread));
                let vcpus: Vcpus<'_> = process.vcpus.iter().filter_map(index).collect();
                if vcpus.is_empty() {
                    other = other.or_else(|| other_accelerator(process, rule));
                    waiting = waiting.or(Some(process.task.id));
                } else {
                    running.push((process, vcpus));
                }
            }
            (false, false) => {}
            _ => half = half.or(Some((process, program))),
        }
    }
    if running.len() > 1 {
        let pids = running.iter().map(|(process, _)| process.task.id).collect();
        return Err(NotAdopted::SeveralVmms { pids });
    }
    running.pop().ok_or_else(|| {
        other.unwrap_or_else(|| match (waiting, half) {
            (Some(pid), _) => NotAdopted::NoVcpus {
                pid,
                threads: rule.threads.to_string(),
            },
            (None, Some((process, program))) => NotAdopted::NamesDiffer {
                pid: process.task.id,
                name: process.name.clone(),
                program: program.to_owned(),
            },
            (None, None) => NotAdopted::NoVmm {
                rule: rule.name.clone(),
            },
        })
    })
}

/// Threads of vCPUs that are not KVM's, in a VMM that has none of the rule's.
fn other_accelerator(process: &Process, rule: &AdoptRule) -> Option<NotAdopted> {
    let mut found = process.vcpus.iter().filter_map(|thread| Accelerator::of(&thread.name));
    let accelerator = found.next()?;
    Some(NotAdopted::OtherAccelerator {
        pid: process.task.id,
        accelerator,
        found: 1 + found.filter(|other| *other == accelerator).count(),
        threads: rule.threads.to_string(),
    })
}

/// By index: every one from 0 on, none twice, as many as the command line says. Where that has more in reserve (`maxcpus`) any of
/// them may be plugged: Kata's are 0, 15, 14, 13.
fn indexed<'p>(
    pid: i32,
    vcpus: &Vcpus<'p>,
    shape: Option<&GuestShape>,
) -> Result<BTreeMap<u32, &'p NamedThread>, NotAdopted> {
    let found = vcpus.len();
    let most = shape.map_or(MAX_VCPUS, |shape| shape.most.min(MAX_VCPUS));
    let mut threads: BTreeMap<u32, &NamedThread> = BTreeMap::new();
    for (index, thread) in vcpus {
        if let Some(other) = threads.insert(*index, thread) {
            return Err(NotAdopted::Doubled {
                pid,
                index: *index,
                tids: [other.task.id, thread.task.id],
            });
        }
    }
    if u32::try_from(found).is_ok_and(|found| found > most) {
        return Err(NotAdopted::TooManyVcpus { pid, found, most });
    }
    if let Some(cpus) = shape.map(|shape| shape.cpus)
        && u32::try_from(found).is_ok_and(|found| found < cpus)
    {
        return Err(NotAdopted::TooFewVcpus { pid, found, cpus });
    }
    let pluggable = shape.is_some_and(|shape| threads.keys().all(|index| *index < shape.most));
    let gap = (0..).zip(threads.keys()).find(|(expected, index)| expected != *index);
    match gap.filter(|_| !pluggable) {
        Some((index, _)) => Err(NotAdopted::Gap { pid, index, found }),
        None => Ok(threads),
    }
}

/// Whether somebody has yet to let the guest run. libvirt starts QEMU so, and pins the vCPUs when QEMU answers it: after minutes,
/// where QEMU has much memory to make ready. Were they moved to `stelia.slice` before, the kernel would refuse libvirt their CPUs,
/// and libvirt would end the VM.
fn is_held(process: &Process) -> bool {
    process.command.iter().any(|word| word == "-S") && process.vcpus.iter().all(|vcpu| !vcpu.has_run)
}

/// The CPU of each vCPU, where each may run on one of its own and that is the container's.
fn pinned_cpus(threads: &BTreeMap<u32, &NamedThread>, exclusive: &CpuSet) -> Option<BTreeMap<u32, u32>> {
    let mut taken = CpuSet::new();
    let pin = |(index, thread): (&u32, &&NamedThread)| {
        let is_one = thread.affinity.len() == 1 && thread.affinity.is_subset(exclusive);
        let cpu = thread
            .affinity
            .iter()
            .next()
            .filter(|cpu| is_one && !taken.contains(*cpu))?;
        taken.insert(cpu);
        Some((*index, cpu))
    };
    threads.iter().map(pin).collect()
}
