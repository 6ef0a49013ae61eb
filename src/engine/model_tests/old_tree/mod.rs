//! What version 0.1.0 left on a real node is adopted as it is: `tests/data/tree-0.1.0/`.

mod recorded;

use std::collections::BTreeSet;

use recorded::Recorded;

use super::*;

/// Two vCPUs that are a core's threads, and an I/O thread on the CPU they leave over.
const IO: &str = "f046bcd4-6f29-46cd-b865-767825d593ab";
/// Two vCPUs on one CPU.
const CROWDED: &str = "8bcadf8d-06b5-4642-ac04-0a716299dbb1";
/// One vCPU, and no partition.
const CONTAINED: &str = "d09a6718-82e0-4a75-9cd3-5ddbf908c7e0";
/// Registered, nothing attached.
const FLOATING: &str = "cc71db47-95ad-4401-8ff5-887509da275b";

fn recorded() -> Recorded {
    Recorded::parse(
        include_str!("../../../../tests/data/tree-0.1.0/node"),
        include_str!("../../../../tests/data/tree-0.1.0/tree"),
        include_str!("../../../../tests/data/tree-0.1.0/cpu_manager_state"),
    )
}

/// State, exclusive CPUs, partition, and each vCPU and I/O thread with its CPU.
type Instance = (&'static str, String, String, Vec<(u32, i32, Option<u32>)>);

/// The recorded node, and a daemon that has just found it.
struct Adopted {
    recorded: Recorded,
    model: Model,
    settings: Settings,
    handle: Handle,
    _running: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Adopted {
    async fn new() -> Self {
        let recorded = recorded();
        let directory = tempfile::tempdir().unwrap();
        let model = recorded.node(directory.path()).await;
        let settings = Settings {
            kubelet_root: directory.path().join("kubelet"),
            ..Settings::default()
        };
        model.record_calls(true);
        let (handle, _, running) = start(&model, &settings);
        handle.reconcile().await.unwrap();
        Self {
            recorded,
            model,
            settings,
            handle,
            _running: running,
            _directory: directory,
        }
    }

    /// What the daemon asked for that changes something.
    fn changes(&self) -> Vec<String> {
        let reads = [
            "read ",
            "list ",
            "exists ",
            "attributes ",
            "identify ",
            "get affinity ",
            "look up ",
            "systemd: list ",
            "systemd: devices ",
        ];
        let mut calls = self.model.calls();
        calls.retain(|call| !reads.iter().any(|read| call.starts_with(read)));
        calls
    }

    /// Where the kernel's unbound workers may run.
    fn workers(&self) -> CpuSet {
        let workers = stelia_node::workqueue::in_force(&self.model.system_files());
        workers.unwrap().unwrap()
    }

    /// By pod.
    fn instances(&self) -> BTreeMap<String, Instance> {
        let view = self.handle.view();
        assert_eq!(view.unreadable, []);
        let instances = view.instances.iter().map(|(pod, instance)| {
            let threads = instance.vcpus.iter();
            let threads = threads.map(|one| (u32::from(one.thread.role), one.thread.task.id, one.thread.cpu));
            let lists = (instance.exclusive.to_string(), instance.partition.clone());
            (pod.to_string(), (instance.state, lists.0, lists.1, threads.collect()))
        });
        instances.collect()
    }
}

#[tokio::test]
async fn every_instance_of_0_1_0_is_adopted_with_its_cpus_and_nothing_is_moved() {
    let node = Adopted::new().await;
    let is = |pod: &str, state, cpus: &str, partition: &str, threads: &[_]| {
        let (cpus, partition) = (cpus.to_owned(), partition.to_owned());
        (pod.to_owned(), (state, cpus, partition, threads.to_vec()))
    };
    // As 0.1.0 wrote I/O threads down.
    let iothread = 1 << 31;
    let pinned = [(0, 494, Some(2)), (1, 498, Some(3)), (iothread, 492, Some(1))];
    let expected = BTreeMap::from([
        is(IO, "isolated", "1-3", "isolated", &pinned),
        is(CROWDED, "isolated", "6", "root", &[(0, 760, None), (1, 761, None)]),
        is(CONTAINED, "contained", "5", "member", &[(0, 666, Some(5))]),
        is(FLOATING, "floating", "4", "member", &[]),
    ]);
    assert_eq!(node.instances(), expected);
    // 0.1.0 let the kernel's unbound workers run in partitions of kind `root`. They are told to leave CPU 6, and that is noted down;
    // with it what the kernel keeps them off by itself, for the time after.
    // Where the kernel took a container's own CPUs, what stayed there may no longer run on every CPU outside of partitions. The VM
    // without vCPUs floats on its own CPU and the shared one beside it, not on another NUMA node's.
    let float = format!("write /stelia.slice/stelia-instance-{FLOATING}.scope/instance/float/cpuset.cpus 4,7");
    let new = BTreeSet::from([
        "set /stelia.slice/user.stelia.worker-cpus 1-3,6".to_owned(),
        "set affinity of 466 to 0,7".to_owned(),
        "set affinity of 744 to 0,7".to_owned(),
        float,
    ]);
    assert_eq!(node.changes().into_iter().collect::<BTreeSet<_>>(), new);
    assert_eq!(node.workers(), cpus("0,4-5,7"));
    // No file of any cgroup reads otherwise, and no thread is anywhere else.
    node.recorded.compare(&node.model, Some(FLOATING));
}

#[tokio::test]
async fn once_adopted_neither_a_second_pass_nor_another_start_changes_anything() {
    let mut node = Adopted::new().await;
    node.model.record_calls(true);
    let report = node.handle.reconcile().await.unwrap();
    assert_eq!(
        (report.did.steps, report.did.writes, report.did.moves),
        (0, 0, 0),
        "{report:?}"
    );
    (node.handle, _, node._running) = start(&node.model, &node.settings);
    let report = node.handle.reconcile().await.unwrap();
    assert_eq!(
        (report.did.steps, report.did.writes, report.did.moves),
        (0, 0, 0),
        "{report:?}"
    );
    assert_eq!(node.changes(), [] as [String; 0]);
    assert!(
        node.model
            .calls()
            .iter()
            .any(|call| call.starts_with("read /stelia.slice/"))
    );
    assert_eq!(node.instances().len(), 4);
    node.recorded.compare(&node.model, Some(FLOATING));
}

/// What the runner of [`IO`] hands over: the threads of these numbers in its PID namespace, all of QEMU's, as 0.1.0 recorded them.
fn handed_over(model: &Model, vcpus: &[i32], iothreads: &[i32]) -> AttachRequest {
    let vcpu = |(index, thread): (usize, &i32)| VcpuRequest {
        vcpu: Vcpu {
            index: index as u32,
            props: [("core-id", 0), ("socket-id", 0), ("thread-id", index as i64)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        },
        thread: *thread,
    };
    AttachRequest {
        pod: PodUid::parse(IO).unwrap(),
        vmm: Vmm::Pidfd(model.pidfd(478).unwrap()),
        vcpus: vcpus.iter().enumerate().map(vcpu).collect(),
        iothreads: iothreads.to_vec(),
    }
}

#[tokio::test]
async fn a_runner_of_0_1_0_that_hands_over_again_keeps_the_isolated_partition_of_its_vm() {
    let node = Adopted::new().await;
    // The test is of a kernel on which a VM that starts now gets another kind.
    assert!(!stelia_settings::isolated_is_safe(&node.recorded.kernel));
    node.model.record_calls(true);
    let again = handed_over(&node.model, &[13, 14], &[11]);
    node.handle.attach(again).await.unwrap();
    assert_eq!(node.changes(), [] as [String; 0]);
    node.recorded.compare(&node.model, Some(FLOATING));
    let third = node.model.spawn_thread(478, "CPU 2/TCG").unwrap();
    let number = *node.model.numbers(third).unwrap().last().unwrap();
    let placed = node.handle.attach(handed_over(&node.model, &[13, 14, number], &[]));
    let placed = placed.await.unwrap();
    assert_eq!(placed.len(), 3, "{placed:?}");
    assert!(placed.iter().all(|thread| thread.cpu.is_some()), "{placed:?}");
    let (state, _, partition, _) = &node.instances()[IO];
    assert_eq!((*state, partition.as_str()), ("isolated", "isolated"));
    let changes = node.changes();
    assert!(!changes.iter().any(|call| call.contains("partition")), "{changes:#?}");
}

#[tokio::test]
async fn what_0_1_0_took_is_given_back() {
    let node = Adopted::new().await;
    for pod in [IO, FLOATING, CONTAINED, CROWDED] {
        node.handle.deregister(PodUid::parse(pod).unwrap()).await.unwrap();
    }
    // The kernel's part: no isolated partition keeps its workers off any more.
    let workqueue = node.model.system_files().join("devices/virtual/workqueue");
    std::fs::write(workqueue.join("cpumask_isolated"), "00\n").unwrap();
    node.handle.reconcile().await.unwrap();
    assert_eq!(node.instances(), BTreeMap::new());
    let origins: BTreeMap<_, _> = node.recorded.origins().collect();
    let tasks = node.model.tasks();
    for (thread, pod) in node.recorded.pods() {
        let (origin, exclusive) = &origins[&pod];
        let expected = (thread, origin.clone(), exclusive.clone());
        assert!(tasks.contains(&expected), "{expected:?}");
    }
    let slice = CgroupPath::slice();
    assert_eq!(node.model.children(&slice).unwrap(), [] as [String; 0]);
    assert_eq!(node.model.attributes(&slice).unwrap(), BTreeMap::new());
    assert_eq!(node.model.read(&slice, File::CpusExclusive).unwrap(), "");
    for unit in ["system.slice", "init.scope"] {
        let cgroup = CgroupPath::root().child(unit);
        assert_eq!(node.model.read(&cgroup, File::CpusEffective).unwrap(), "0-7", "{unit}");
    }
    assert_eq!(node.workers(), cpus("0-7"));
}
