//! The real engine on the model of a node: everything but the kernel, systemd and kubelet themselves.

mod adopt;
mod allocator;
mod assignment_laws;
mod call_counts;
mod container;
mod crash;
mod crun;
mod entitled;
mod fair;
mod handed_over;
mod in_place;
mod journal;
mod kubevirt;
mod large;
mod laws;
mod ledger;
mod life;
mod names;
mod no_inotify;
mod origin;
mod own_leaf;
mod own_partition;
mod own_subgroup;
mod pod_level;
mod publishing;
mod quiet;
mod rebind;
mod records;
mod refusals;
mod refused;
mod repair;
mod resize;
mod tenant;
mod until_attached;
mod vmm_exit;
mod waits;
mod wide_container;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stelia_api::{Error, ErrorKind, ReasonCode, State};
use stelia_cpus::{CpuSet, Topology};
use stelia_decide::Step;
use stelia_decide::admission::Claim;
use stelia_decide::float::has_idle_cpus;
use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, Limits};
use stelia_kernel::proc::Procs;
use stelia_kubelet::{PodName, PodUid};
use stelia_model::PinnedReason;
use stelia_model::record::{Home, Phase, Vcpu};
use stelia_settings::{FloatPolicy, Isolation, Partition, Policies, Settings, TreeChoice, TreeHome};
use stelia_testnode::kubelet::Checkpoint;
use stelia_testnode::{Kernel, Model, Pod, Qemu, Runtime, topology};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::kubelet_file::KubeletRoot;
use super::picture::Picture;
use super::{AttachRequest, Engine, Handle, PassReport, Peer, Placed, RegisterRequest, VcpuRequest, Vmm};

/// A node of CPUs 0-7 with a daemon on it.
struct Node {
    model: Model,
    checkpoint: Checkpoint,
    settings: Settings,
    handle: Handle,
    cancel: CancellationToken,
    running: JoinHandle<()>,
    directory: tempfile::TempDir,
}

fn start(model: &Model, settings: &Settings) -> (Handle, CancellationToken, JoinHandle<()>) {
    crate::journal::catalog_tests::hold_to_it();
    let (engine, handle) = Engine::new(model.system(), settings.clone()).unwrap();
    let cancel = CancellationToken::new();
    let running = tokio::spawn(engine.run(cancel.clone(), Duration::from_secs(3600), || {}));
    (handle, cancel, running)
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn uid(number: u32) -> PodUid {
    PodUid::parse(&format!("b9e4f71c-64a5-4f8d-8574-{number:012x}")).unwrap()
}

fn scope(pod: &Pod) -> CgroupPath {
    CgroupPath::slice().child(&pod.uid.scope())
}

fn float(pod: &Pod) -> CgroupPath {
    scope(pod).child("instance").child("float")
}

fn vcpu(pod: &Pod) -> CgroupPath {
    scope(pod).child("instance").child("vcpu")
}

/// What the runner of `pod` asks, as the entry point passes it on.
fn request_of(model: &Model, pod: &Pod) -> RegisterRequest {
    RegisterRequest {
        claim: Claim::default(),
        caller: Some((pod.init, Peer::of(model.cgroup(pod.init).unwrap()))),
        origin: None,
        anchor: Some(model.pidfd(pod.anchor).unwrap()),
        timeout: Duration::ZERO,
        adopting: None,
    }
}

impl Node {
    fn of(kernel: Kernel) -> Self {
        Self::on(&topology(2, 2, 2), kernel)
    }

    fn on(topology: &Topology, kernel: Kernel) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let model = Model::node(topology, directory.path(), kernel).unwrap();
        model.record_touched();
        // The NUMA nodes' pools have tests of their own.
        let policies = Policies {
            float: FloatPolicy::Node,
            ..Policies::default()
        };
        let settings = Settings {
            kubelet_root: directory.path().join("kubelet"),
            policies,
            // That VMs wait has tests of its own.
            unplug_timeout: Duration::ZERO,
            ..Settings::default()
        };
        let checkpoint = Checkpoint::create(&settings.kubelet_root, &topology.online()).unwrap();
        let (handle, cancel, running) = start(&model, &settings);
        Self {
            model,
            checkpoint,
            settings,
            handle,
            cancel,
            running,
            directory,
        }
    }

    fn new() -> Self {
        Self::of(Kernel::V6_12)
    }

    /// A daemon that makes the cgroups of instances in their containers.
    async fn in_place() -> Self {
        let mut node = Self::new();
        node.settings.policies.tree = TreeChoice::InPlace;
        node.restart().await;
        node
    }

    /// Pods may ask for isolation `container`.
    async fn allowing_containers(mut self) -> Self {
        self.settings.policies.isolation_allowed = Isolation::Container;
        self.handle.reload(self.settings.clone()).await.unwrap();
        self
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.start();
    }

    async fn stop(&mut self) {
        self.cancel.cancel();
        (&mut self.running).await.unwrap();
    }

    fn start(&mut self) {
        (self.handle, self.cancel, self.running) = start(&self.model, &self.settings);
    }

    fn pod(&mut self, number: u32, list: &str) -> Pod {
        self.pod_by(Runtime::Runc, number, list)
    }

    fn pod_by(&mut self, runtime: Runtime, number: u32, list: &str) -> Pod {
        self.checkpoint.admit(&uid(number), "vm", &cpus(list)).unwrap();
        let added = self
            .model
            .add_pod_by(runtime, &uid(number), &cpus(list), &Limits::default());
        added.unwrap()
    }

    /// What the runner of `pod` asks, as the entry point passes it on.
    fn request(&self, pod: &Pod) -> RegisterRequest {
        request_of(&self.model, pod)
    }

    async fn register(&self, pod: &Pod) -> Result<(PodUid, CgroupPath), Error> {
        self.handle.register(self.request(pod)).await
    }

    fn attach_request(&self, pod: &Pod, qemu: &Qemu) -> AttachRequest {
        let vcpu = |(index, tid): (usize, &i32)| VcpuRequest {
            vcpu: Vcpu {
                index: index as u32,
                props: BTreeMap::new(),
            },
            thread: *self.model.numbers(*tid).unwrap().last().unwrap(),
        };
        AttachRequest {
            pod: pod.uid.clone(),
            vmm: Vmm::Pidfd(self.model.pidfd(qemu.pid).unwrap()),
            vcpus: qemu.vcpus.iter().enumerate().map(vcpu).collect(),
            iothreads: Vec::new(),
        }
    }

    async fn attach(&self, pod: &Pod, qemu: &Qemu) -> Result<Vec<Placed>, Error> {
        self.handle.attach(self.attach_request(pod, qemu)).await
    }

    /// A pod with a VM that runs isolated.
    async fn isolated(&mut self, number: u32, list: &str) -> (Pod, Qemu) {
        self.isolated_by(Runtime::Runc, number, list).await
    }

    async fn isolated_by(&mut self, runtime: Runtime, number: u32, list: &str) -> (Pod, Qemu) {
        let pod = self.pod_by(runtime, number, list);
        self.register(&pod).await.unwrap();
        let qemu = self.started(&pod, cpus(list).len() as u32).await;
        (pod, qemu)
    }

    /// A VM in the pod's first container, whose vCPUs are attached.
    async fn started(&self, pod: &Pod, vcpus: u32) -> Qemu {
        let qemu = self.model.add_qemu(pod.init, vcpus).unwrap();
        self.attach(pod, &qemu).await.unwrap();
        qemu
    }

    /// A pod that kubelet gave no CPUs of its own; its container may run on these.
    fn plain_pod(&self, number: u32, list: &str) -> Pod {
        let list = if list.is_empty() { CpuSet::new() } else { cpus(list) };
        self.model.add_pod(&uid(number), &list, &Limits::default()).unwrap()
    }

    /// Another container of the pod.
    fn add_container(&self, pod: &Pod, list: &str) -> Pod {
        let added = self.model.add_container(pod, &cpus(list), &Limits::default());
        added.unwrap()
    }

    fn name(&self, pod: &Pod, name: &str) {
        let name = PodName::new("team-a", name).unwrap();
        self.model.name_pod(pod, &name).unwrap();
    }

    /// kubelet gives the pod other CPUs.
    fn assign(&mut self, pod: &Pod, list: &str) {
        self.checkpoint.release(&pod.uid).unwrap();
        self.checkpoint.admit(&pod.uid, "vm", &cpus(list)).unwrap();
    }

    /// All is read again, and everything that follows is done.
    async fn catch_up(&self) {
        self.reconcile().await;
        self.quiet().await;
    }

    async fn deregister(&self, pod: &Pod) {
        self.handle.deregister(pod.uid.clone()).await.unwrap();
        self.quiet().await;
    }

    fn read(&self, cgroup: &CgroupPath, file: File) -> String {
        self.model.read(cgroup, file).unwrap()
    }

    fn phase(&self, pod: &Pod) -> Option<&'static str> {
        self.handle
            .view()
            .instances
            .get(&pod.uid)
            .map(|instance| instance.state.name())
    }

    /// Where the kernel's unbound workers may run.
    fn workers(&self) -> CpuSet {
        stelia_kernel::workqueue::in_force(&self.model.system_files())
            .unwrap()
            .unwrap()
    }

    /// Wait until the daemon asks nothing any more.
    async fn quiet(&self) {
        let mut before = None;
        while before != Some(self.model.counts()) {
            before = Some(self.model.counts());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn reconcile(&self) -> PassReport {
        self.handle.reconcile().await.unwrap()
    }

    /// No task was ever moved or pinned that was in neither a cgroup of the instance nor of its container.
    fn check_touched(&self) {
        let whose = |cgroup: &CgroupPath| {
            let levels = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
            levels.filter_map(|level| Peer::of(level).pod().cloned()).next()
        };
        for touched in self.model.take_touched() {
            let (from, to) = (whose(&touched.from), touched.to.as_ref().map(whose));
            assert!(from.is_some() && to.is_none_or(|to| to == from), "{touched:?}");
        }
    }

    /// The CPUs of whole containers that a daemon that starts anew does not take over: neither a partition in force nor kubelet's
    /// file confirms what their records say.
    fn lost_by_containers(&self, anew: &stelia_decide::Snapshot) -> CpuSet {
        let view = self.handle.view();
        let is_lost = |known: &&Arc<stelia_model::Instance>| {
            let origin = stelia_kernel::containers::container_scope(&known.origin);
            let has_partition = matches!(self.read(&origin, File::Partition).as_str(), "isolated" | "root");
            known.isolation == Isolation::Container && !has_partition && !anew.instances.contains_key(&known.pod)
        };
        let lost = view.instances.values().filter(is_lost);
        lost.flat_map(|known| known.exclusive.iter().collect::<Vec<_>>())
            .collect()
    }

    /// No plan depends on a file that a tenant owns, except to restrict that tenant.
    fn check_tenants(&self, truth: &stelia_decide::Snapshot) {
        let (system, policies) = (self.handle.system(), &self.settings.policies);
        let containers = stelia_kernel::containers::all_containers(&*system.cgroups).unwrap();
        let tenants: std::collections::BTreeSet<PodUid> =
            containers.into_iter().map(|(_, container)| container.pod).collect();
        for tenant in tenants {
            let (told, mut kubelet) = (self.model.as_told_by(&tenant, system), KubeletRoot::new());
            kubelet.find(&self.settings.kubelet_root, system.root());
            let told = Picture::read(&told, &self.settings, kubelet).ok().unwrap().snapshot;
            assert_eq!(told.leftover, truth.leftover);
            let records = |snapshot: &stelia_decide::Snapshot| {
                let instances = snapshot.instances.values();
                instances.map(|instance| instance.record.clone()).collect::<Vec<_>>()
            };
            assert_eq!(records(&told), records(truth));
            let [lied, plan] = [&told, truth].map(|snapshot| stelia_decide::plan(snapshot, policies));
            let of_others = |plan: &[stelia_decide::Planned]| {
                let others = plan.iter().filter(|planned| planned.whom.pod() != Some(&tenant));
                others.cloned().collect::<Vec<_>>()
            };
            assert_eq!(of_others(&lied), of_others(&plan), "because of what {tenant} wrote");
            let own = lied.iter().filter(|planned| planned.whom.pod() == Some(&tenant));
            for planned in own.filter(|own| !plan.contains(own)) {
                let step = &planned.step;
                let is_of_levels = matches!(step, Step::SetOurs(..) | Step::Extend(..));
                assert!(!step.is_of_record() && !is_of_levels, "{step:?}");
                if let Step::Write(cgroup, File::Cpus | File::CpusExclusive, list) = step {
                    let instance = &truth.instances[&tenant];
                    let float_of = |instance: &stelia_decide::Instance| {
                        instance.float().map(|float| float.cpus.clone()).unwrap_or_default()
                    };
                    let mut may = instance.record.own().union(&float_of(instance));
                    // Without kubelet's file nobody knows whose other CPUs are: of what a float has it loses those of instances alone.
                    if truth.kubelet.is_err() {
                        let instances = truth.instances.values();
                        let owned: CpuSet = instances
                            .flat_map(|one| one.owned().iter().collect::<Vec<_>>())
                            .collect();
                        may.union_with(&float_of(&told.instances[&tenant]).difference(&owned));
                    }
                    assert!(cpus(list).is_subset(&may), "{list} to {cgroup}");
                }
            }
        }
    }

    /// What holds whenever nothing is left to do: the laws, read from the model and not from the engine.
    async fn check(&self) {
        self.check_touched();
        let before = self.model.changes();
        let report = self.reconcile().await;
        // A partition that the kernel refused is asked for again now and then.
        let refused = |node: &Self| {
            let view = node.handle.view();
            let mut reasons = view.instances.values().filter_map(|one| one.pinned_reason.as_ref());
            reasons.any(|reason| *reason == PinnedReason::Refused)
        };
        if !refused(self) {
            assert_eq!((report.did.steps, self.model.changes()), (0, before), "{report:?}");
        }
        let system = self.handle.system();
        let mut kubelet = KubeletRoot::new();
        kubelet.find(&self.settings.kubelet_root, system.root());
        let snapshot = Picture::read(system, &self.settings, kubelet).ok().unwrap().snapshot;
        self.check_tenants(&snapshot);
        let mut plan = stelia_decide::plan(&snapshot, &self.settings.policies);
        // Floats and workers may use those that no other pod has.
        let lost = self.lost_by_containers(&snapshot);
        plan.retain(|planned| match &planned.step {
            Step::Write(cgroup, File::Cpus, list) if cgroup.name() == "float" => {
                let before = cpus(&self.read(cgroup, File::Cpus));
                let gained = cpus(list).difference(&before);
                gained.is_empty() || !before.is_subset(&cpus(list)) || !gained.is_subset(&lost)
            }
            Step::Confine(..) => lost.is_empty(),
            Step::KeepWorkersOff(closed) => {
                let workers = snapshot.slice.workers.as_ref().unwrap();
                let given_back = workers.withheld.difference(closed);
                given_back.is_empty() || !given_back.is_subset(&lost) || !workers.cpus.is_disjoint(closed)
            }
            _ => true,
        });
        assert_eq!(plan, []);

        self.check_entitlement(&snapshot);
        self.check_other_pods(&snapshot);
        // An instance that lost its CPUs to another pod floats, and is promised nothing.
        let must_float =
            |instance: &stelia_decide::Instance| snapshot.assess(&self.settings.policies, instance).must_float;
        let live: Vec<_> = snapshot.live().filter(|instance| !must_float(instance)).collect();
        let online = snapshot.topology.online();
        let isolated = cpus(&self.read(&CgroupPath::root(), File::CpusIsolated));
        let mut owned = CpuSet::new();
        // While kubelet's file cannot be used, an instance without vCPUs is not told that its CPUs are another's: it gets none.
        let has_cpus =
            |instance: &&&stelia_decide::Instance| snapshot.kubelet.is_ok() || instance.record.phase.has_vcpus();
        for instance in live.iter().filter(has_cpus) {
            let exclusive = &instance.record.exclusive;
            assert!(owned.is_disjoint(exclusive), "{exclusive} is owned twice");
            owned = owned.union(exclusive);
        }
        let (mut promised, mut of_roots, mut of_pods) = (CpuSet::new(), CpuSet::new(), CpuSet::new());
        let mut vcpu_threads = BTreeMap::new();
        let mut offline = Vec::new();
        let mut containers = BTreeMap::new();
        for instance in &live {
            if instance.record.home == Home::Container {
                let record = &instance.record;
                let is_isolated = record.phase == Phase::Isolated && !record.exclusive.is_disjoint(&online);
                if record.exclusive.is_disjoint(&online) {
                    let tasks = self.model.tasks().into_iter();
                    let its = tasks.filter(|(_, cgroup, _)| cgroup.is_within(instance.tree.outer()));
                    offline.extend(its.map(|(tid, ..)| tid));
                }
                if is_isolated {
                    let own = instance.tree.outer();
                    assert_eq!(
                        self.read(own, File::Partition),
                        record.partition.name(),
                        "{}",
                        record.pod
                    );
                    promised = promised.union(&record.exclusive);
                    of_pods = of_pods.union(&record.exclusive);
                    of_roots = of_roots.union(&record.exclusive);
                    containers.insert(own.clone(), record.exclusive.clone());
                }
                continue;
            }
            let inner = instance.tree.inner().clone();
            let float = cpus(&self.read(instance.tree.float(), File::CpusEffective));
            // In place, before there is a partition, everything runs on the container's own CPUs.
            if instance.tree.pod().is_some() && !instance.record.phase.has_vcpus() {
                assert_eq!(float, instance.record.own(), "{}", instance.record.pod);
                continue;
            }
            // Before its vCPUs are attached it may have its own CPUs, which nobody else may.
            let idle = if has_idle_cpus(instance) {
                instance.record.exclusive.clone()
            } else {
                CpuSet::new()
            };
            let closed = snapshot.closed_to(instance.record.qos()).difference(&idle);
            assert!(float.is_disjoint(&closed), "{} floats on {float}", instance.record.pod);
            let spare = &instance.record.spare;
            if instance.tree.pod().is_some() && !spare.is_empty() {
                assert!(float.is_subset(spare), "{} floats on {float}", instance.record.pod);
            }
            if let Ok(state) = &snapshot.kubelet {
                // Of its own pod's CPUs it may have those that the pod's containers share.
                let shared = instance
                    .record
                    .pod_pool
                    .clone()
                    .unwrap_or_default()
                    .union(spare)
                    .union(&idle);
                assert!(
                    float.difference(&shared).is_disjoint(&state.assigned()),
                    "{} floats on {float}",
                    instance.record.pod
                );
            }
            // Without a CPU that is online the kernel makes no partition, and its threads run wherever it lets them.
            if instance.record.exclusive.is_disjoint(&online) {
                offline.extend(instance.record.vcpus.iter().map(|thread| thread.task.id));
                continue;
            }
            if instance.record.phase == Phase::Isolated {
                promised = promised.union(&instance.record.exclusive);
                if instance.tree.pod().is_some() {
                    of_pods = of_pods.union(&instance.record.exclusive);
                }
                let (partition, kind) = (
                    self.read(&inner.child("vcpu"), File::Partition),
                    instance.record.partition,
                );
                assert_eq!(partition, kind.name(), "{}", instance.record.pod);
                if kind == Partition::Root {
                    of_roots = of_roots.union(&instance.record.exclusive);
                }
            }
            if matches!(instance.record.phase, Phase::Isolated | Phase::Pinned) {
                for thread in &instance.record.vcpus {
                    // Where there are more vCPUs than CPUs, or its CPU is offline, it is on any of them.
                    let pinned = thread.cpu.filter(|cpu| online.contains(*cpu));
                    let wanted = match pinned {
                        Some(cpu) => CpuSet::from_iter([cpu]),
                        None => instance.record.exclusive.intersection(&online),
                    };
                    vcpu_threads.insert(thread.task.id, (inner.child("vcpu"), wanted));
                }
            }
        }
        assert_eq!(
            isolated,
            promised.difference(&of_roots),
            "isolated by the kernel, and promised"
        );
        // Workers are kept off before a partition is made, so off those too that another pod has not left.
        // What is offline is nobody's to run on.
        let online_of = |list: &CpuSet| list.intersection(&online);
        assert_eq!(
            online_of(&self.workers()).difference(&lost),
            online_of(&self.model.cpus().difference(&of_roots)).difference(&lost),
            "the kernel's unbound workers"
        );
        let slice = cpus(&self.read(&CgroupPath::slice(), File::CpusExclusive));
        assert_eq!(
            online_of(&slice),
            online_of(&promised.difference(&of_pods)),
            "the slice's list"
        );
        let pods = CgroupPath::root().child("kubepods.slice");
        let pods = self.model.read(&pods, File::CpusExclusive).unwrap_or_default();
        assert!(of_pods.is_subset(&cpus(&pods)), "kubepods' list is {pods}");
        for (tid, cgroup, runs_on) in self.model.tasks() {
            match vcpu_threads.get(&tid) {
                Some(wanted) => assert_eq!((&cgroup, &runs_on), (&wanted.0, &wanted.1), "vCPU thread {tid}"),
                None if offline.contains(&tid) => {}
                None if containers.keys().any(|own| cgroup.is_within(own)) => {
                    let own = containers.iter().find(|(own, _)| cgroup.is_within(own)).unwrap().1;
                    assert!(runs_on.is_subset(own), "thread {tid} of {cgroup} runs on {runs_on}");
                }
                None => assert!(
                    runs_on.is_disjoint(&promised) && cgroup.name() != "vcpu",
                    "thread {tid} of {cgroup} runs on {runs_on}"
                ),
            }
        }
    }
}

/// The refusal's kind; a call that was to be refused and was not fails the test.
fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind
}
