//! Nothing grows with all instances where one changed: calls are counted at the seams, at 8 VMs and at 512. What each VM costs where
//! all are concerned has bars.

use stelia_testnode::Counts;

use super::*;

impl Node {
    /// A node with so many VMs of two vCPUs, each isolated, and kubelet's entries of two more.
    async fn crowded(vms: u32) -> Self {
        let mut node = Self::on(&topology(2, 320, 2), Kernel::V6_12);
        // No audit but those that are asked for: each looks at one half of the limits in turn.
        node.settings.audit_interval = Duration::from_secs(3600);
        node.restart().await;
        // As after a boot: kubelet has given everybody's CPUs before the first VM registers.
        for number in 0..vms + 2 {
            node.checkpoint.admit(&uid(number), "vm", &own(number)).unwrap();
        }
        for number in 0..vms {
            node.run(number).await;
        }
        // For so long the threads of the last of them are looked at (late.rs).
        tokio::time::sleep(Duration::from_millis(8500)).await;
        node.reconcile().await;
        node
    }

    fn container(&self, number: u32) -> Pod {
        // stelia.slice weighs what they weigh together, up to the kernel's largest weight.
        let limits = Limits {
            cpu_weight: Some(10),
            ..Limits::default()
        };
        let added = self.model.add_pod(&uid(number), &own(number), &limits);
        added.unwrap()
    }

    async fn run(&self, number: u32) -> (Pod, Qemu) {
        let pod = self.container(number);
        self.register(&pod).await.unwrap();
        let qemu = self.started(&pod, 2).await;
        (pod, qemu)
    }

    /// What the daemon asked and changed from here until nothing happens any more, and every call.
    async fn counted(&self, work: impl Future) -> (Counts, Vec<String>) {
        self.quiet().await;
        let before = self.model.counts();
        self.model.record_calls(true);
        work.await;
        self.quiet().await;
        let calls = self.model.calls();
        self.model.record_calls(false);
        (self.model.counts().since(before), calls)
    }
}

/// The CPUs of a VM: CPUs 0-63 of each socket are not assigned.
fn own(number: u32) -> CpuSet {
    let first = 64 + 2 * number;
    [first, first + 1].into_iter().collect()
}

/// The pods whose cgroups are named in these calls.
fn named(calls: &[String]) -> std::collections::BTreeSet<String> {
    let prefix = "b9e4f71c-64a5-4f8d-8574-";
    let found = calls
        .iter()
        .flat_map(|call| call.match_indices(prefix).map(move |(at, _)| &call[at..at + 36]));
    found.map(str::to_owned).collect()
}

/// Reads of the node itself, whatever the number of VMs.
const READS_OF_NODE: u64 = 32;
/// What the daemon may read of each VM. A bar is what was counted when it was set, and a twentieth. Counts do not depend on the machine:
/// who misses a bar has added reads that every VM pays for each time. `docs/performance.md` has what they are worth.
const READS_OF_START: u64 = 240;
const READS_OF_AUDIT: u64 = 56;
const READS_OF_KUBELETS_CHANGE: u64 = 6;
const READS_OF_RESTART: u64 = 119;

fn hold_reads(what: &str, counts: Counts, vms: u64, bar: u64) {
    let most = bar * vms + READS_OF_NODE;
    assert!(
        counts.reads <= most,
        "{what} with {vms} VMs: {} reads, {} for each; the bar is {bar} for each and {READS_OF_NODE} for the node",
        counts.reads,
        counts.reads / vms
    );
}

/// One test, because 512 VMs take a while to come up.
#[tokio::test]
async fn nothing_costs_more_at_512_vms_than_at_8_but_what_all_of_them_are_asked() {
    let mut costs = Vec::new();
    for vms in [8, 512] {
        let mut node = Node::crowded(vms).await;
        let (event, calls) = a_late_thread(&node).await;
        assert_eq!(named(&calls), [uid(3).to_string()].into(), "one's event at {vms}");
        assert_eq!(event.moves, 1);
        let (mut one_more, calls) = node.counted(node.run(vms)).await;
        assert_eq!(named(&calls), [uid(vms).to_string()].into(), "one more VM at {vms}");
        // How many of the looks for late threads come meanwhile is a matter of time.
        let looks = calls.iter().filter(|call| call.contains("vcpu/cgroup.threads"));
        one_more.reads -= looks.count() as u64;
        hold_reads("a start", one_more, 1, READS_OF_START);
        costs.push((one_more, event));
        everybody_returns(&mut node, vms).await;
    }
    assert_eq!(costs[0], costs[1]);
}

/// A thread among one VM's vCPUs.
async fn a_late_thread(node: &Node) -> (Counts, Vec<String>) {
    let vcpu = CgroupPath::slice()
        .child(&uid(3).scope())
        .child("instance")
        .child("vcpu");
    let threads = node.read(&vcpu, File::Threads);
    let late = node
        .model
        .spawn_thread(threads.lines().next().unwrap().parse().unwrap(), "late");
    let counted = node.counted(node.handle.audit(uid(3))).await;
    assert_eq!(node.model.cgroup(late.unwrap()).unwrap().name(), "float");
    counted
}

/// The daemon is started anew, and every runner returns at once.
async fn everybody_returns(node: &mut Node, vms: u32) {
    let before = node.model.counts();
    node.restart().await;
    let calls = (0..vms).map(|number| {
        let scope = CgroupPath::slice().child(&uid(number).scope());
        let runner = node.read(&scope.child("instance"), File::Procs);
        let runner: i32 = runner.lines().next().unwrap().parse().unwrap();
        let request = RegisterRequest {
            claim: Claim::default(),
            caller: Some((runner, Peer::Instance(uid(number)))),
            origin: None,
            anchor: None,
            timeout: Duration::ZERO,
            adopting: None,
        };
        let handle = node.handle.on_behalf_of(&uid(number));
        tokio::spawn(async move { handle.register(request).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    node.quiet().await;
    let counts = node.model.counts().since(before);
    hold_reads("a restart", counts, u64::from(vms) + 1, READS_OF_RESTART);
    let before = node.model.changes();
    node.reconcile().await;
    assert_eq!(node.model.changes(), before);
}

#[tokio::test]
async fn an_audit_reads_each_vm_once_and_writes_nothing() {
    let mut each = Vec::new();
    for vms in [8, 64] {
        let node = Node::crowded(vms).await;
        let (counts, calls) = node.counted(node.reconcile()).await;
        assert_eq!((counts.writes, counts.moves, counts.systemd), (0, 0, 0));
        assert_eq!(named(&calls).len(), vms as usize);
        let twice = calls.iter().filter(|call| call.contains("vcpu/cgroup.threads")).count();
        assert_eq!(twice, vms as usize);
        // The next one reads the other half of the limits.
        let (next, _) = node.counted(node.reconcile()).await;
        let both = Counts {
            reads: counts.reads + next.reads,
            ..counts
        };
        hold_reads("two audits", both, u64::from(vms), 2 * READS_OF_AUDIT);
        each.push(calls.iter().filter(|call| call.contains(uid(3).as_str())).count());
    }
    assert_eq!(each[0], each[1]);
}

#[tokio::test]
async fn kubelets_change_is_one_write_for_each_float_that_differs() {
    let mut node = Node::crowded(64).await;
    let plain = uid(9999);
    // Two writes of kubelet's file: the default set shrinks, the entry appears.
    let work = async {
        node.checkpoint.admit(&plain, "web", &cpus("10")).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    node.model.record_calls(true);
    let before = node.model.counts();
    work.await;
    node.quiet().await;
    let counts = node.model.counts().since(before);
    hold_reads("kubelet's change", counts, 64, READS_OF_KUBELETS_CHANGE);
    let floats: Vec<String> = node.model.calls();
    let floats = floats
        .iter()
        .filter(|call| call.starts_with("write") && call.contains("float/cpuset.cpus"));
    // CPU 10 is of the first socket, and so are VMs 0 to 63. Each one's anchor follows its float.
    assert_eq!((floats.count(), counts.writes, counts.moves), (64, 64 + 64, 0));
}
