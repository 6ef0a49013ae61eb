//! The laws hold after whatever happens, in whatever order.

use proptest::prelude::*;
use rstest::rstest;
use stelia_koordinator::allocator::{AllocationRequest, CpuSource, Qos};
use stelia_model::record::Tree;

use super::records::{EVERYWHERE, Planted, claim, plant};
use super::*;

/// What may happen on the node. A slot is a pod that may be there; `vm` its place among the vCPUs.
#[derive(Debug, Clone)]
enum Event {
    /// kubelet admits the pod and the runtime starts it, with a QEMU that is not attached yet.
    Start(usize),
    /// And all the rest of what its runner does.
    Run(usize),
    Register(usize),
    /// kubelet admits the pod, the runtime starts it, and its container asks that its own cgroup becomes the partition.
    Whole(usize),
    Attach(usize),
    Deregister(usize),
    /// The container dies; kubelet takes the CPUs back.
    Kill(usize),
    /// kubelet takes the CPUs back while the container still lives.
    Release(usize),
    /// A vCPU thread makes another thread.
    Late(usize, usize),
    /// The runner makes a process; or a shell is started in the container's own cgroup.
    Process(usize),
    Exec(usize),
    /// A vCPU thread ends.
    End(usize, usize),
    /// Somebody pins a vCPU thread elsewhere within its cpuset.
    Pin(usize, usize, u32),
    /// Somebody writes a file of the tree.
    Meddle(usize, usize),
    /// Somebody writes a file of the container's own cgroup.
    MeddleOwn(usize, usize),
    /// kubelet's file breaks, or is written anew.
    Break,
    Mend,
    /// kubelet gives a running pod other CPUs, as many as it has; the former ones go to a pod that is no VM, or nowhere.
    Move(usize, u32, bool),
    /// Two pods have each other's CPUs.
    Exchange(usize, usize),
    /// A pod's last CPU goes to a pod that is no VM.
    Shrink(usize),
    /// A pod that is no VM has this CPU, or ends.
    Web(u32),
    /// A CPU goes offline, or comes back.
    Blink(u32),
    Restart,
    /// The daemon is killed after so many changes.
    Cut(u32),
    /// Somebody else writes attributes about a pod's container, which the next daemon finds.
    Forge(usize, Planted, Lie),
}

/// What forged attributes say.
#[derive(Debug, Clone, Copy)]
enum Lie {
    /// That the first process of the host is the container's vCPU.
    Host,
    /// That the first vCPU of another slot is.
    Others(usize),
    /// That the CPUs of another slot are the container's, for a vCPU that is its own.
    Cpus(usize),
    /// That it is of another slot's pod.
    Pod(usize),
    /// Nothing that can be read.
    Garbage,
}

/// The last overlaps the second: kubelet gives it away only after it took that one back.
const CPUS: [&str; 5] = ["1", "2-3", "4", "5-6", "3"];

/// Pods that are no VMs have these numbers and one CPU more each.
const WEBS: u32 = 20;

const MEDDLING: [(&str, File, &str); 10] = [
    ("instance/float", File::Cpus, "0-7"),
    ("instance/float", File::Cpus, "0"),
    ("instance/float", File::Cpus, "7"),
    ("instance/vcpu", File::Partition, "member"),
    ("instance/vcpu", File::Partition, "root"),
    ("instance/vcpu", File::CpusExclusive, ""),
    ("instance/vcpu", File::Cpus, "0-7"),
    ("instance", File::CpusExclusive, "0"),
    ("", File::CpusExclusive, ""),
    ("..", File::CpusExclusive, ""),
];

const MEDDLING_OWN: [(File, &str); 3] = [
    (File::Partition, "member"),
    (File::Partition, "isolated"),
    (File::CpusExclusive, ""),
];

fn event() -> impl Strategy<Value = Event> {
    let slot = || 0..CPUS.len();
    prop_oneof![
        2 => slot().prop_map(Event::Start),
        10 => slot().prop_map(Event::Run),
        3 => slot().prop_map(Event::Register),
        5 => slot().prop_map(Event::Whole),
        3 => slot().prop_map(Event::Attach),
        1 => slot().prop_map(Event::Deregister),
        2 => slot().prop_map(Event::Kill),
        1 => slot().prop_map(Event::Release),
        2 => (slot(), 0..2usize).prop_map(|(slot, vm)| Event::Late(slot, vm)),
        1 => slot().prop_map(Event::Process),
        1 => slot().prop_map(Event::Exec),
        1 => (slot(), 0..2usize).prop_map(|(slot, vm)| Event::End(slot, vm)),
        1 => (slot(), 0..2usize, 0..8u32).prop_map(|(slot, vm, cpu)| Event::Pin(slot, vm, cpu)),
        4 => (slot(), 0..MEDDLING.len()).prop_map(|(slot, which)| Event::Meddle(slot, which)),
        2 => (slot(), 0..MEDDLING_OWN.len()).prop_map(|(slot, which)| Event::MeddleOwn(slot, which)),
        1 => Just(Event::Break),
        1 => Just(Event::Mend),
        3 => (slot(), 0..6u32, any::<bool>()).prop_map(|(slot, to, given)| Event::Move(slot, to, given)),
        2 => (slot(), slot()).prop_map(|(one, other)| Event::Exchange(one, other)),
        1 => slot().prop_map(Event::Shrink),
        1 => (1..7u32).prop_map(Event::Web),
        1 => (1..7u32).prop_map(Event::Blink),
        1 => Just(Event::Restart),
        3 => (0..30u32).prop_map(Event::Cut),
        2 => (slot(), proptest::sample::select(EVERYWHERE.to_vec()), lie())
            .prop_map(|(slot, planted, lie)| Event::Forge(slot, planted, lie)),
    ]
}

/// What kubelet does with the CPUs of running pods. Nobody looks before all of it is written.
impl Node {
    /// The CPUs of kubelet's that a pod of these slots has.
    fn entry(&self, slots: &Slots, slot: usize) -> Option<CpuSet> {
        let (pod, _) = slots[slot].as_ref()?;
        self.checkpoint.entry(&pod.uid, "vm")
    }

    fn give(&mut self, slots: &Slots, slot: usize, list: &CpuSet) {
        if let Some((pod, _)) = &slots[slot] {
            self.checkpoint.release(&pod.uid).unwrap();
            self.checkpoint.admit(&pod.uid, "vm", list).unwrap();
        }
    }

    fn start_web(&mut self, cpu: u32) {
        let (uid, list) = (uid(WEBS + cpu), CpuSet::from_iter([cpu]));
        if self.checkpoint.default_cpus().contains(cpu) && self.checkpoint.entry(&uid, "web").is_none() {
            self.checkpoint.admit(&uid, "web", &list).unwrap();
        }
    }

    /// The runtime writes the CPUs of the containers, as far as the kernel lets it.
    fn follow_entries(&self, slots: &Slots) {
        for slot in 0..CPUS.len() {
            let entry = self.entry(slots, slot);
            if let (Some((pod, _)), Some(entry)) = (&slots[slot], entry) {
                // crun's containers have them on two levels.
                for level in stelia_kernel::containers::container_levels(&pod.origin) {
                    if self.model.read(&level, File::Cpus).is_ok_and(|list| !list.is_empty()) {
                        let _ = self.model.meddle(&level, File::Cpus, &entry.to_string());
                    }
                }
            }
        }
    }

    fn moves(&mut self, slots: &Slots, slot: usize, to: u32, given: bool) {
        let Some(before) = self.entry(slots, slot) else { return };
        // CPUs 0 and 7 are always shared.
        let open = self.checkpoint.default_cpus().union(&before).intersection(&cpus("1-6"));
        let open: Vec<u32> = open.iter().collect();
        let turned = open.iter().cycle().skip(to as usize).take(before.len());
        let after: CpuSet = turned.copied().collect();
        self.give(slots, slot, &after);
        if given {
            before.difference(&after).iter().for_each(|cpu| self.start_web(cpu));
        }
    }

    fn blinks(&self, cpu: u32) {
        let online = Topology::read(&self.model.system_files()).unwrap().online();
        let one = CpuSet::from_iter([cpu]);
        let online = if online.contains(cpu) {
            online.difference(&one)
        } else {
            online.union(&one)
        };
        let _ = self.model.hotplug(&online);
    }
}

fn lie() -> impl Strategy<Value = Lie> {
    let slot = || 0..CPUS.len();
    prop_oneof![
        Just(Lie::Host),
        slot().prop_map(Lie::Others),
        slot().prop_map(Lie::Cpus),
        slot().prop_map(Lie::Pod),
        Just(Lie::Garbage),
    ]
}

/// The daemon is not asked: whoever owns a cgroup writes there.
fn forge(node: &Node, slots: &Slots, slot: usize, planted: Planted, lie: Lie) {
    let Some((pod, _)) = &slots[slot] else { return };
    let identify = |tid: i32| node.model.identify(tid).ok();
    let first = |slot: usize| vcpu_of(slots, slot, 0).and_then(identify);
    let own = CPUS[slot];
    let (vcpu, list) = match lie {
        Lie::Others(other) => (first(other), own),
        Lie::Cpus(other) => (first(slot), CPUS[other]),
        Lie::Host | Lie::Pod(_) | Lie::Garbage => (identify(1), own),
    };
    let Some(vcpu) = vcpu else { return };
    let mut record = claim(pod, list, list, vcpu);
    if let Lie::Pod(other) = lie {
        record.pod = uid(other as u32);
    }
    plant(&node.model, pod, &record, planted);
    if let Lie::Garbage = lie {
        let tree = Tree::in_place(pod.origin.clone());
        let place = match planted {
            Planted::OnPod => tree.place().cgroup().clone(),
            _ => tree.outer().clone(),
        };
        for (name, _) in record.attributes() {
            let _ = node
                .model
                .set_attribute(&place, &tree.place().name(name), "0-7,x of 99999999999999999999");
        }
    }
}

type Slots = [Option<(Pod, Qemu)>; CPUS.len()];

/// What comes of it is the kernel's and the engine's to say; only the laws are checked, afterwards.
async fn happen(node: &mut Node, slots: &mut Slots, event: &Event) {
    let model = node.model.clone();
    match event {
        Event::Start(slot) if class(node, *slot).is_some() => {
            if slots[*slot].is_none() {
                let pod = node.limited(*slot as u32, 2);
                let qemu = model.add_qemu(pod.init, 2).unwrap();
                slots[*slot] = Some((pod, qemu));
            }
        }
        Event::Start(slot) => {
            let free = cpus(CPUS[*slot]).is_subset(node.checkpoint.default_cpus());
            if slots[*slot].is_none() && free {
                // Both runtimes are on the node.
                let runtime = [Runtime::Runc, Runtime::Crun][*slot % 2];
                let pod = node.pod_by(runtime, *slot as u32, CPUS[*slot]);
                let qemu = model.add_qemu(pod.init, cpus(CPUS[*slot]).len() as u32).unwrap();
                slots[*slot] = Some((pod, qemu));
            }
        }
        Event::Run(slot) => {
            for event in [Event::Start(*slot), Event::Register(*slot), Event::Attach(*slot)] {
                Box::pin(happen(node, slots, &event)).await;
            }
        }
        Event::Kill(slot) => {
            if let Some((pod, _)) = slots[*slot].take() {
                model.kill_pod(&pod).unwrap();
                node.checkpoint.release(&pod.uid).unwrap();
            }
        }
        Event::Register(slot) => {
            if let Some((pod, _)) = &slots[*slot] {
                let _ = register(node, *slot, pod).await;
            }
        }
        Event::Whole(slot) => {
            Box::pin(happen(node, slots, &Event::Start(*slot))).await;
            if let Some((pod, _)) = &slots[*slot] {
                let _ = node.register_container(pod).await;
            }
        }
        Event::Attach(slot) => {
            if let Some((pod, qemu)) = &slots[*slot]
                && qemu.vcpus.iter().all(|tid| model.identify(*tid).is_ok())
            {
                let _ = node.attach(pod, qemu).await;
            }
        }
        Event::Deregister(slot) => drop(node.handle.deregister(uid(*slot as u32)).await),
        Event::Release(slot) => node.checkpoint.release(&uid(*slot as u32)).unwrap(),
        Event::Late(slot, vm) => {
            if let Some(tid) = vcpu_of(slots, *slot, *vm) {
                let _ = model.spawn_thread(tid, "late");
            }
        }
        Event::Process(slot) => {
            if let Some((pod, _)) = &slots[*slot] {
                model.spawn(pod.init, "virtiofsd").unwrap();
            }
        }
        Event::Exec(slot) => {
            if let Some((pod, _)) = &slots[*slot] {
                model.spawn(pod.anchor, "sh").unwrap();
            }
        }
        Event::End(slot, vm) => {
            if let Some(tid) = vcpu_of(slots, *slot, *vm) {
                let _ = model.end(tid);
            }
        }
        Event::Pin(slot, vm, cpu) => {
            if let Some(tid) = vcpu_of(slots, *slot, *vm) {
                let _ = model.pin(tid, &std::iter::once(*cpu).collect());
            }
        }
        Event::Meddle(slot, which) => {
            let (place, file, value) = MEDDLING[*which];
            let scope = CgroupPath::slice().child(&uid(*slot as u32).scope());
            let path = match place {
                "" => scope,
                ".." => CgroupPath::slice(),
                inner => scope.child(inner),
            };
            let _ = model.meddle(&path, file, value);
        }
        Event::MeddleOwn(slot, which) => {
            // What root makes of a container without a usable record is not steliad's to undo.
            let known = |pod: &Pod| node.handle.view().instances.contains_key(&pod.uid);
            if let Some((pod, _)) = slots[*slot].as_ref().filter(|(pod, _)| known(pod)) {
                let (file, value) = MEDDLING_OWN[*which];
                let _ = model.meddle(&stelia_kernel::containers::container_scope(&pod.origin), file, value);
            }
        }
        Event::Break => node.checkpoint.write_bytes(b"{}").unwrap(),
        Event::Mend => node.checkpoint.write().unwrap(),
        Event::Move(slot, to, given) => node.moves(slots, *slot, *to, *given),
        Event::Exchange(one, other) => {
            if let (Some(first), Some(second)) = (node.entry(slots, *one), node.entry(slots, *other)) {
                node.checkpoint.release(&uid(*one as u32)).unwrap();
                node.give(slots, *other, &first);
                node.give(slots, *one, &second);
            }
        }
        Event::Shrink(slot) => {
            if let Some(before) = node.entry(slots, *slot).filter(|before| before.len() > 1) {
                let last: CpuSet = before.iter().last().into_iter().collect();
                node.give(slots, *slot, &before.difference(&last));
                last.iter().for_each(|cpu| node.start_web(cpu));
            }
        }
        Event::Web(cpu) if node.checkpoint.entry(&uid(WEBS + cpu), "web").is_some() => {
            node.checkpoint.release(&uid(WEBS + cpu)).unwrap();
        }
        Event::Web(cpu) => node.start_web(*cpu),
        Event::Blink(cpu) => node.blinks(*cpu),
        Event::Restart => node.restart().await,
        Event::Forge(slot, planted, lie) => {
            node.stop().await;
            forge(node, slots, *slot, *planted, *lie);
            node.start();
        }
        Event::Cut(changes) => {
            // It works on until it is cut off, and whatever it was doing stays half done.
            model.cut_after(*changes);
            node.reconcile().await;
            let first = slots
                .iter()
                .enumerate()
                .find_map(|(slot, vm)| Some((slot, vm.as_ref()?)));
            if let Some((slot, (pod, qemu))) = first {
                let _ = tokio::time::timeout(Duration::from_millis(20), register(node, slot, pod)).await;
                if qemu.vcpus.iter().all(|tid| model.identify(*tid).is_ok()) {
                    let _ = tokio::time::timeout(Duration::from_millis(20), node.attach(pod, qemu)).await;
                }
            }
            node.running.abort();
            let _ = (&mut node.running).await;
            (node.handle, node.cancel, node.running) = start(&node.model, &node.settings);
        }
    }
}

/// The class of the pods of a slot, where steliad chooses the CPUs; slot 0 is of kubelet's pods.
fn class(node: &Node, slot: usize) -> Option<Qos> {
    let steliads = node.settings.policies.allocator.source == CpuSource::Steliad && slot > 0;
    steliads.then(|| [Qos::Lse, Qos::Lsr, Qos::Be, Qos::Ls][slot % 4])
}

async fn register(node: &Node, slot: usize, pod: &Pod) -> Result<(PodUid, CgroupPath), Error> {
    let qos = class(node, slot);
    let request = AllocationRequest {
        qos,
        ..AllocationRequest::default()
    };
    node.ask(pod, request).await
}

fn vcpu_of(slots: &Slots, slot: usize, vm: usize) -> Option<i32> {
    slots[slot].as_ref()?.1.vcpus.get(vm).copied()
}

/// Each case is a daemon of its own: by default there are fewer than of other properties.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// The laws hold after each of these events.
async fn the_laws_hold(ours: bool, older: bool, events: &[Event]) {
    let mut node = Node::new().allowing_containers().await;
    if older {
        node.model.set_kernel("6.12.0");
        node.restart().await;
    }
    if ours {
        node.settings.policies.allocator.source = CpuSource::Steliad;
        node.handle.reload(node.settings.clone()).await.unwrap();
    }
    let mut slots = Slots::default();
    for event in events {
        happen(&mut node, &mut slots, event).await;
        node.follow_entries(&slots);
        node.reconcile().await;
        // What the kernel refused before the partitions had changed.
        node.follow_entries(&slots);
        node.reconcile().await;
        node.check().await;
    }
}

/// Histories after which the laws once did not hold.
#[rstest]
#[case::a_vm_without_an_entry_beside_another(
    false,
    vec![Event::Run(1), Event::Release(1), Event::Run(4)],
)]
#[case::an_evicted_vm_and_a_broken_file(
    false,
    vec![Event::Run(1), Event::Release(1), Event::Run(4), Event::Break, Event::Mend],
)]
#[case::a_list_that_somebody_wrote_while_the_file_was_broken(
    true,
    vec![Event::Run(4), Event::Break, Event::Meddle(4, 1)],
)]
#[case::containers_and_vms_that_exchange_their_cpus(
    false,
    vec![Event::Whole(1), Event::Run(3), Event::Exchange(1, 3), Event::Restart, Event::Exchange(1, 3)],
)]
// The container gives its list up, and kubepods its own, before stelia.slice takes the CPU.
#[case::a_vm_gets_the_cpu_of_a_container(
    true,
    vec![Event::Run(0), Event::Whole(1), Event::Move(0, 1, false)],
)]
#[case::a_vm_gets_the_cpu_of_a_container_that_kubelet_forgot(
    false,
    vec![Event::Whole(1), Event::Release(1), Event::Run(0), Event::Move(0, 1, false)],
)]
#[case::a_registered_vm_whose_cpus_kubelet_gave_away_and_a_broken_file(
    true,
    vec![Event::Start(1), Event::Register(1), Event::Run(0), Event::Break],
)]
// The forged record is refused, and the CPU in the container's partition is the VM's by kubelet's file.
#[case::a_container_with_a_forged_record_and_a_daemon_that_is_cut_off(
    true,
    vec![Event::Whole(1), Event::Forge(1, Planted::OnPod, Lie::Cpus(1)), Event::Run(0), Event::Cut(3)],
)]
#[case::a_pod_of_kubelets_that_ended(
    true,
    vec![Event::Run(4), Event::Run(1), Event::Start(0), Event::Kill(0)],
)]
// kubelet gives the pod another CPU, and the former one to a pod that is no VM; then the pod's CPU goes offline and returns.
#[case::a_vm_without_a_cpu_that_is_online(
    false,
    vec![Event::Run(0), Event::Move(0, 2, false), Event::Web(1), Event::Blink(3), Event::Web(4), Event::Blink(3)],
)]
#[case::a_pod_with_the_cpus_of_a_container_that_ended(
    false,
    vec![Event::Whole(0), Event::Run(3), Event::Release(0), Event::Move(3, 5, false), Event::Release(3)],
)]
#[case::a_container_without_an_entry_whose_cpu_is_offline(
    false,
    vec![Event::Whole(0), Event::Run(1), Event::Blink(1), Event::Release(0)],
)]
// The float of the last VM leaves kubelet's CPU for one that is kept for an evicted container: none is free.
#[case::kubelet_gives_the_last_shared_cpu_away(
    true,
    vec![
        Event::Web(2), Event::Whole(1), Event::Start(0), Event::Whole(2), Event::Move(0, 2, true), Event::Run(4),
        Event::Move(0, 4, false),
    ],
)]
// Container 2 loses a CPU to a pod, and a restart refuses its record, which still names both. The other CPU becomes container 3's. When the
// pod ends, a daemon that reads container 2 first must not believe it again.
#[case::a_refused_record_that_names_a_cpu_of_another_containers_partition(
    true,
    vec![
        Event::Whole(3), Event::Web(4), Event::Whole(2), Event::Web(2), Event::Run(0), Event::Whole(1), Event::Restart,
        Event::Whole(3), Event::Web(2),
    ],
)]
// A tenant's float is said to have a pod's CPUs while kubelet's file, which would say whose they are, cannot be used.
#[case::a_float_on_cpus_of_which_nothing_is_known(
    false,
    vec![
        Event::Whole(2), Event::Deregister(2), Event::Start(3), Event::Forge(2, Planted::OnPod, Lie::Cpus(0)), Event::Break,
        Event::Start(0),
    ],
)]
#[tokio::test]
async fn the_laws_hold_after(#[case] ours: bool, #[case] events: Vec<Event>) {
    the_laws_hold(ours, false, &events).await;
}

/// A test of its own for each daemon, because a case mostly waits: they run side by side.
macro_rules! laws {
    ($($name:ident: ours $ours:literal, older kernel $older:literal;)*) => { proptest! {
        #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

        $(#[test]
        fn $name(events in proptest::collection::vec(event(), 1..25)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(the_laws_hold($ours, $older, &events));
        })*
    } };
}

laws! {
    after_anything_that_happens_the_laws_hold: ours false, older kernel false;
    after_anything_that_happens_on_an_older_kernel_the_laws_hold: ours false, older kernel true;
    after_anything_that_happens_to_chosen_cpus_the_laws_hold: ours true, older kernel false;
    after_anything_that_happens_to_chosen_cpus_on_an_older_kernel_the_laws_hold: ours true, older kernel true;
}
