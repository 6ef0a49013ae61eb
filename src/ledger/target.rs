//! Derives from the engine's view which VMs' CPUs are read. The view changes often, but seldom in what the ledger needs. Instances that are
//! the same object in memory are not compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stelia_api::State;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::clock::{now_us, up_us};
use stelia_kernel::containers::container_scope;
use stelia_kernel::vfio::without_shared;
use stelia_kubelet::{PodName, PodUid};
use stelia_ledger::recorder;
use stelia_ledger::sample::{Seat, TaskId};
use stelia_model as model;
use stelia_settings::Isolation;

/// The properties of an instance that the ledger needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmTarget {
    /// `namespace/name`; empty if the runtime does not report it.
    pub(crate) name: String,
    /// As on D-Bus.
    pub(crate) state: State,
    /// Its CPUs and vCPU threads, or the container's cgroup; empty unless it is isolated or pinned now.
    pub(crate) seats: BTreeSet<Seat>,
    /// The container's cgroup, from which its devices are read.
    pub(crate) origin: CgroupPath,
    /// From when on its counters are read, in microseconds of `CLOCK_BOOTTIME`, which nobody sets.
    pub(crate) settled_us: u64,
    /// Its pod changes too often, so its counters are not read for some time (`throttle.rs`).
    pub(crate) is_throttled: bool,
}

/// How long a VM's counters are not read after it got its CPUs, in microseconds. KVM creates a thread when a vCPU first enters the guest.
/// It starts on the vCPU's CPU, and the engine searches for it during this time (`engine/kvm_threads.rs`). Counters do not distinguish it
/// from another task, so this time is a gap in the ledger.
const SETTLE_TIME_US: u64 = 10_000_000;

/// One time on two clocks, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    /// Since the epoch. It may jump, but VMs' times that outlast the daemon are on it.
    pub(super) epoch_us: u64,
    /// `CLOCK_BOOTTIME`.
    pub(super) up_us: u64,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self {
            epoch_us: now_us(),
            up_us: up_us(),
        }
    }

    /// When a VM has settled that got its CPUs at `since_us`, on `CLOCK_BOOTTIME`. If that is still to come the clock was set back, and the VM
    /// counts as new.
    fn settled_us(self, since_us: u64) -> u64 {
        let age_us = self.epoch_us.saturating_sub(since_us);
        self.up_us.saturating_add(SETTLE_TIME_US.saturating_sub(age_us))
    }
}

/// The targets by pod.
pub(crate) type Targets = BTreeMap<PodUid, Arc<VmTarget>>;

/// The targets of the engine's last view.
#[derive(Debug, Default)]
pub(super) struct TargetTracker {
    by_pod: BTreeMap<PodUid, (Arc<model::Instance>, Arc<VmTarget>)>,
}

impl TargetTracker {
    /// Update the targets to a new view. Returns whether any of them changed.
    pub(super) fn update(&mut self, view: &model::Node, clocks: Clocks) -> bool {
        let before = self.by_pod.len();
        self.by_pod.retain(|pod, _| view.instances.contains_key(pod));
        let mut changed = self.by_pod.len() != before;
        for (pod, instance) in &view.instances {
            match self.by_pod.get_mut(pod) {
                Some((last, _)) if Arc::ptr_eq(last, instance) => {}
                Some((last, vm)) => {
                    if !is_same(last, instance) {
                        let settled_us = if last.isolated_us == instance.isolated_us {
                            vm.settled_us
                        } else {
                            clocks.settled_us(instance.isolated_us)
                        };
                        let now = VmTarget::from_view(instance, settled_us);
                        changed |= **vm != now;
                        *vm = Arc::new(now);
                    }
                    *last = instance.clone();
                }
                None => {
                    let vm = VmTarget::from_view(instance, clocks.settled_us(instance.isolated_us));
                    self.by_pod.insert(pod.clone(), (instance.clone(), Arc::new(vm)));
                    changed = true;
                }
            }
        }
        changed
    }

    pub(super) fn all(&self) -> Targets {
        self.by_pod
            .iter()
            .map(|(pod, (_, vm))| (pod.clone(), vm.clone()))
            .collect()
    }

    /// The target of this pod's VM; empty if it has none.
    pub(super) fn of_pod(&self, pod: &PodUid) -> Targets {
        let target = self.by_pod.get(pod);
        target.map(|(_, vm)| (pod.clone(), vm.clone())).into_iter().collect()
    }

    /// Whether any VM has CPUs of its own.
    #[cfg(test)]
    pub(super) fn has_seats(&self) -> bool {
        self.by_pod.values().any(|(_, vm)| !vm.seats.is_empty())
    }
}

fn is_same(one: &model::Instance, other: &model::Instance) -> bool {
    one.state == other.state
        && one.exclusive == other.exclusive
        && one.isolation == other.isolation
        && one.vcpus == other.vcpus
        && one.origin == other.origin
        && one.isolated_us == other.isolated_us
        && one.pod_name == other.pod_name
}

impl VmTarget {
    /// How much longer the VM's counters are not read, in microseconds. `None`: they are read.
    fn settle_time_left(&self, up_us: u64) -> Option<u64> {
        let left_us = self.settled_us.checked_sub(up_us)?;
        (left_us > 0 && !self.seats.is_empty()).then_some(left_us)
    }

    fn from_view(instance: &model::Instance, settled_us: u64) -> Self {
        let has_cpus = matches!(instance.state, State::Isolated | State::Pinned);
        let is_container = instance.isolation == Isolation::Container;
        Self {
            name: instance.pod_name.as_ref().map(PodName::to_string).unwrap_or_default(),
            state: instance.state,
            seats: if !has_cpus {
                BTreeSet::new()
            } else if is_container {
                container_seats(&instance.exclusive, &instance.origin)
            } else {
                seats(&instance.exclusive, &instance.vcpus)
            },
            origin: instance.origin.clone(),
            settled_us,
            is_throttled: false,
        }
    }
}

/// One seat for each CPU, with the threads that are pinned to it. A thread that may use all CPUs makes them one seat: the counters of one
/// CPU do not distinguish it from another task. `exclusive` lacks the spare CPUs of an adopted VM, on which its other threads run.
fn seats(exclusive: &CpuSet, pinned: &[model::PinnedThread]) -> BTreeSet<Seat> {
    let threads = |includes: &dyn Fn(Option<u32>) -> bool| {
        let threads = pinned.iter().filter(|pinned| includes(pinned.thread.cpu));
        let sorted: BTreeSet<TaskId> = threads.map(|pinned| pinned.thread.task).collect();
        sorted.into_iter().collect::<Vec<_>>()
    };
    if exclusive.is_empty() {
        return BTreeSet::new();
    }
    if pinned.iter().any(|pinned| pinned.thread.cpu.is_none()) {
        return BTreeSet::from([Seat {
            cpus: exclusive.clone(),
            threads: threads(&|_| true),
            cgroup: None,
        }]);
    }
    let seat = |cpu: u32| Seat {
        cpus: [cpu].into_iter().collect(),
        threads: threads(&|pinned| pinned == Some(cpu)),
        cgroup: None,
    };
    exclusive.iter().map(seat).collect()
}

/// One seat of all CPUs of a whole container: its tasks run on any of them. They are those of the container's cgroup and of all below,
/// wherever its runtime put the processes.
fn container_seats(exclusive: &CpuSet, origin: &CgroupPath) -> BTreeSet<Seat> {
    let seat = || Seat {
        cpus: exclusive.clone(),
        threads: Vec::new(),
        cgroup: Some(container_scope(origin).to_string()),
    };
    (!exclusive.is_empty()).then(seat).into_iter().collect()
}

/// VMs that have CPUs of their own and whose counters are not read now.
pub(super) fn settling(vms: &Targets, up_us: u64) -> BTreeSet<String> {
    let settling = vms.iter().filter(|(_, vm)| {
        let is_throttled = vm.is_throttled && !vm.seats.is_empty();
        is_throttled || vm.settle_time_left(up_us).is_some()
    });
    settling.map(|(pod, _)| pod.to_string()).collect()
}

/// The time until the next VM's counters may be read, in microseconds.
pub(super) fn next_settled(vms: &Targets, up_us: u64) -> Option<u64> {
    vms.values().filter_map(|vm| vm.settle_time_left(up_us)).min()
}

/// The targets as input of the ledger's recorder. A device that two containers have is no VM's own.
pub(super) fn recorder_vms(
    vms: &Targets,
    devices: &BTreeMap<PodUid, (CgroupPath, BTreeSet<String>)>,
) -> BTreeMap<String, recorder::RecordedVm> {
    let all = devices
        .iter()
        .map(|(pod, (_, devices))| (pod, devices.clone()))
        .collect();
    let own = without_shared(all);
    let recorder_vm = |(pod, vm): (&PodUid, &Arc<VmTarget>)| {
        let vm = recorder::RecordedVm {
            name: vm.name.clone(),
            state: vm.state.to_string(),
            seats: vm.seats.clone(),
            own_devices: own.get(pod).cloned().unwrap_or_default(),
            located: None,
        };
        (pod.to_string(), vm)
    };
    vms.iter().map(recorder_vm).collect()
}

#[cfg(test)]
mod tests {
    use stelia_api::ThreadRole;
    use stelia_kernel::proc::TaskId;
    use stelia_model::record::VcpuThread;

    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn pinned(id: i32, cpu: Option<u32>) -> model::PinnedThread {
        model::PinnedThread {
            thread: VcpuThread {
                role: ThreadRole::Vcpu(id.unsigned_abs()),
                task: TaskId { id, start: 7 },
                cpu,
            },
            guest_node: None,
        }
    }

    /// As `CPUs: threads`.
    fn shown(exclusive: &str, threads: &[(i32, Option<u32>)]) -> Vec<String> {
        let pinned: Vec<_> = threads.iter().map(|(id, cpu)| pinned(*id, *cpu)).collect();
        let text = |seat: Seat| {
            let threads: Vec<String> = seat.threads.iter().map(|thread| thread.id.to_string()).collect();
            format!("{}: {}", seat.cpus, threads.join(" "))
        };
        seats(&cpus(exclusive), &pinned).into_iter().map(text).collect()
    }

    #[test]
    fn each_cpu_is_a_seat_with_its_thread_and_one_without_any_too() {
        assert_eq!(shown("2-4", &[(11, Some(3)), (10, Some(2))]), ["2: 10", "3: 11", "4: "]);
        assert_eq!(shown("2-3", &[(11, Some(2)), (10, Some(2))]), ["2: 10 11", "3: "]);
        assert_eq!(shown("", &[(10, None)]), Vec::<String>::new());
    }

    #[test]
    fn threads_that_may_use_all_cpus_make_them_one_seat() {
        assert_eq!(shown("2-3", &[(12, None), (10, None), (11, None)]), ["2-3: 10 11 12"]);
        assert_eq!(shown("2-4", &[(12, Some(4)), (10, None)]), ["2-4: 10 12"]);
    }

    #[test]
    fn a_container_has_one_seat_of_all_its_cpus_and_the_whole_containers_cgroup() {
        let parent = "/kubepods.slice/kubepods-pod00000000_0000_4000_8000_000000000001.slice";
        let whole = format!("{parent}/cri-containerd-{}.scope", "a1".repeat(32));
        for (origin, state, expected) in [
            (whole.clone(), State::Isolated, Some(&whole)),
            (whole.clone(), State::Pinned, Some(&whole)),
            // crun puts the processes one level below.
            (format!("{whole}/container"), State::Isolated, Some(&whole)),
            (whole.clone(), State::Waiting, None),
        ] {
            let container = model::Instance {
                state,
                isolation: Isolation::Container,
                exclusive: cpus("2-3,8"),
                vcpus: Vec::new(),
                origin: CgroupPath::parse(&origin).unwrap(),
                ..isolated(1)
            };
            let mut targets = TargetTracker::default();
            assert!(targets.update(&view(vec![container]), at(0)));
            let seats: Vec<Seat> = targets.all()[&pod(1)].seats.iter().cloned().collect();
            let seat = expected.map(|cgroup| Seat {
                cpus: cpus("2-3,8"),
                threads: Vec::new(),
                cgroup: Some(cgroup.clone()),
            });
            assert_eq!(seats, seat.into_iter().collect::<Vec<_>>(), "{origin}");
        }
        assert!(container_seats(&CpuSet::new(), &CgroupPath::root()).is_empty());
    }

    /// The host has been up for as long as the epoch lasts.
    fn at(us: u64) -> Clocks {
        Clocks {
            epoch_us: us,
            up_us: us,
        }
    }

    fn since(number: u32, isolated_us: u64) -> model::Instance {
        model::Instance {
            isolated_us,
            ..isolated(number)
        }
    }

    #[test]
    fn a_vm_has_its_seats_at_once_and_they_are_read_when_it_has_settled() {
        let floating = model::Instance {
            state: State::Waiting,
            ..since(3, 1_000_000)
        };
        let mut targets = TargetTracker::default();
        targets.update(
            &view(vec![since(1, 1_000_000), since(2, 500_000), floating]),
            at(1_500_000),
        );
        let vms = targets.all();
        let all = recorder_vms(&vms, &BTreeMap::new());
        assert_eq!(all.values().map(|vm| vm.seats.len()).collect::<Vec<_>>(), [1, 1, 0]);
        let at = |now| {
            (
                settling(&vms, now).into_iter().collect::<Vec<_>>(),
                next_settled(&vms, now),
            )
        };
        let (first, second) = (pod(1).to_string(), pod(2).to_string());
        assert_eq!(at(2_000_000), (vec![first.clone(), second], Some(8_500_000)));
        assert_eq!(at(10_500_000), (vec![first], Some(500_000)));
        assert_eq!(at(11_000_000), (vec![], None));
    }

    #[test]
    fn a_clock_that_was_set_makes_the_time_to_settle_neither_end_nor_last_for_long() {
        let (hour, mut targets) = (3_600_000_000, TargetTracker::default());
        let settled = |targets: &TargetTracker| targets.all()[&pod(1)].settled_us;
        targets.update(&view(vec![since(1, hour)]), at(hour));
        assert_eq!(settled(&targets), hour + SETTLE_TIME_US);
        // Set back, and then forward, while another property changes.
        let renamed = |name: &str| model::Instance {
            pod_name: PodName::new("team", name),
            ..since(1, hour)
        };
        for (name, epoch_us) in [("a", 0), ("b", 9 * hour)] {
            let clocks = Clocks {
                epoch_us,
                up_us: hour + 1_000_000,
            };
            assert!(targets.update(&view(vec![renamed(name)]), clocks));
            assert_eq!(settled(&targets), hour + SETTLE_TIME_US);
        }
        // Set back before this daemon saw the VM: it counts as new, for as long as a new one.
        let mut targets = TargetTracker::default();
        let clocks = Clocks {
            epoch_us: 0,
            up_us: 2 * hour,
        };
        targets.update(&view(vec![since(1, hour)]), clocks);
        assert_eq!(settled(&targets), 2 * hour + SETTLE_TIME_US);
        // It left its CPUs and got them again.
        assert!(targets.update(&view(vec![since(1, 3 * hour)]), at(3 * hour)));
        assert_eq!(settled(&targets), 3 * hour + SETTLE_TIME_US);
    }

    fn view(instances: Vec<model::Instance>) -> model::Node {
        let instances = instances.into_iter().map(|shown| (shown.pod.clone(), Arc::new(shown)));
        model::Node {
            instances: instances.collect(),
            ..model::Node::default()
        }
    }

    fn isolated(number: u32) -> model::Instance {
        model::Instance {
            state: State::Isolated,
            exclusive: cpus("2"),
            vcpus: vec![pinned(10, Some(2))],
            ..crate::engine::registered(pod(number))
        }
    }

    #[test]
    fn only_what_the_ledger_needs_is_a_change() {
        let mut targets = TargetTracker::default();
        assert!(!targets.update(&model::Node::default(), at(0)));
        let mut now = view(vec![isolated(1)]);
        assert!(targets.update(&now, at(0)));
        assert!(targets.has_seats());
        assert!(!targets.update(&now, at(0)), "nothing changed");
        now.instances.insert(pod(1), Arc::new(isolated(1)));
        assert!(!targets.update(&now, at(0)), "another value that is the same");
        let float = model::Instance {
            float: cpus("0-1"),
            ..isolated(1)
        };
        now.instances.insert(pod(1), Arc::new(float));
        assert!(!targets.update(&now, at(0)), "the ledger does not need where it floats");
        let leaving = model::Instance {
            state: State::Releasing,
            ..isolated(1)
        };
        now.instances.insert(pod(1), Arc::new(leaving));
        assert!(targets.update(&now, at(0)));
        assert!(!targets.has_seats(), "it leaves: its CPUs are not its own");
        assert!(targets.update(&model::Node::default(), at(0)), "it is gone");
        assert!(targets.all().is_empty());
    }
}
