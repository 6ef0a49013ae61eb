//! Machines of the size that this is made for: the article's, and one of 4,096 CPUs.

use stelia_cpus::testing::Shape;

use super::*;

/// Two sockets of 32 cores with two threads: 128 CPUs, siblings 64 apart. Its VM has 40, and the rest is the shared pool.
const ARTICLE: Shape = Shape {
    nodes: 2,
    cores: 32,
    threads: 2,
    interleaved: true,
};
const LARGE: Shape = Shape {
    nodes: 16,
    cores: 128,
    threads: 2,
    interleaved: true,
};

/// A VM of as many vCPUs as CPUs, two threads a core of the guest's.
async fn start(node: &Node, pod: &Pod, count: u32) -> Vec<Placed> {
    node.register(pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, count).unwrap();
    let mut request = node.attach_request(pod, &qemu);
    for asked in &mut request.vcpus {
        let index = i64::from(asked.vcpu.index);
        let props = [("socket-id", 0), ("core-id", index / 2), ("thread-id", index % 2)];
        asked.vcpu.props = props.map(|(name, value)| (name.to_owned(), value)).into();
    }
    node.handle.attach(request).await.unwrap()
}

/// Each vCPU has a CPU of its own, all CPUs are used, and siblings of the guest's are siblings of the host's.
fn assert_seated(placed: &[Placed], given: &CpuSet, apart: u32) {
    let seats: Vec<u32> = placed.iter().map(|placed| placed.cpu.unwrap()).collect();
    assert_eq!(&seats.iter().copied().collect::<CpuSet>(), given);
    assert_eq!(seats.len(), given.len());
    for core in seats.chunks(2) {
        assert_eq!(core[0].abs_diff(core[1]), apart, "{core:?}");
    }
}

#[tokio::test]
async fn the_articles_vm_of_40_vcpus_floats_on_the_articles_shared_pool() {
    let mut node = Node::on(&ARTICLE.topology(), Kernel::V6_12);
    let pod = node.pod(1, "1-20,65-84");
    let placed = start(&node, &pod, 40).await;
    assert_seated(&placed, &cpus("1-20,65-84"), 64);
    assert_eq!(node.read(&float(&pod), File::Cpus), "0,21-64,85-127");
    assert_eq!(node.read(&vcpu(&pod), File::Cpus), "1-20,65-84");
    assert_eq!(node.read(&CgroupPath::root(), File::CpusIsolated), "1-20,65-84");
    node.check().await;
    // By default it stays near its memory.
    let mut settings = node.settings.clone();
    settings.policies.float = FloatPolicy::Numa;
    node.handle.reload(settings.clone()).await.unwrap();
    node.settings = settings;
    node.reconcile().await;
    assert_eq!(node.read(&float(&pod), File::Cpus), "0,21-31,64,85-95");
    node.check().await;
}

#[tokio::test]
async fn on_4096_cpus_a_vm_beyond_the_thousandth_is_isolated_like_any_other() {
    let mut node = Node::on(&LARGE.topology(), Kernel::V6_12);
    // Every other core from the 1,024th on: the longest lists there are.
    let given: CpuSet = (1024..1536).step_by(2).flat_map(|core| [core, core + 2048]).collect();
    let list = given.to_string();
    let pod = node.pod(1, &list);
    let placed = start(&node, &pod, given.len() as u32).await;
    assert_seated(&placed, &given, 2048);
    assert_eq!(cpus(&node.read(&vcpu(&pod), File::CpusEffective)), given);
    let rest = LARGE.topology().online().difference(&given);
    assert_eq!(cpus(&node.read(&float(&pod), File::Cpus)), rest);
    node.check().await;
    node.restart().await;
    node.check().await;
    assert_eq!(node.phase(&pod), Some("isolated"));
}

#[tokio::test]
async fn on_4096_cpus_of_an_older_kernel_the_hosts_units_leave_the_vms() {
    let mut node = Node::on(&LARGE.topology(), Kernel::V6_1);
    let (pod, _) = node.isolated(1, "4090-4095").await;
    assert_eq!(node.phase(&pod), Some("pinned"));
    let unit = CgroupPath::root().child("system.slice");
    let left = cpus(&node.read(&unit, File::Cpus));
    assert_eq!(left, cpus("0-4089"));
    // As systemd takes it.
    let mask = left.to_systemd_mask();
    assert_eq!((mask.len(), mask[511]), (512, 0b11));
}

#[tokio::test]
async fn a_cpu_that_was_offline_when_a_units_list_was_written_is_its_again_when_it_returns() {
    let mut node = Node::of(Kernel::V6_1);
    node.model.hotplug(&cpus("0-5,7")).unwrap();
    let (pod, _) = node.isolated(1, "2-3").await;
    let unit = CgroupPath::root().child("system.slice");
    assert_eq!(node.read(&unit, File::Cpus), "0-1,4-5,7");
    // While the VM is there,
    node.model.hotplug(&cpus("0-7")).unwrap();
    node.reconcile().await;
    assert_eq!(node.read(&unit, File::Cpus), "0-1,4-7");
    // and after it, though the CPU is away again meanwhile.
    node.model.hotplug(&cpus("0-5,7")).unwrap();
    node.reconcile().await;
    node.model.kill_pod(&pod).unwrap();
    node.catch_up().await;
    node.model.hotplug(&cpus("0-7")).unwrap();
    assert_eq!(node.read(&unit, File::CpusEffective), "0-7");
}

#[tokio::test]
async fn a_vm_of_more_vcpus_than_its_record_can_hold_is_refused_by_name() {
    let mut node = Node::on(&LARGE.topology(), Kernel::V6_12);
    let pod = node.pod(1, "0-1999");
    node.register(&pod).await.unwrap();
    let qemu = node.model.add_qemu(pod.init, 2000).unwrap();
    let mut request = node.attach_request(&pod, &qemu);
    for asked in &mut request.vcpus {
        let props = ["socket-id", "die-id", "core-id", "thread-id"];
        asked.vcpu.props = props.map(|name| (name.to_owned(), 100)).into();
    }
    let refusal = node.handle.attach(request).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    assert!(refusal.text.contains("2000 vCPUs"), "{refusal}");
    assert_eq!(node.phase(&pod), Some("waiting"));
}
