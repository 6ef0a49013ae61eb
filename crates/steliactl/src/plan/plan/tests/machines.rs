//! The machines of `tests/data/topologies`: what kubelet would do there, and which CPUs the host takes for siblings.

use rstest::rstest;

use super::*;

const PODS: &str = "cpu_manager_state";

/// A root like that of the machine, with a kubelet that has this configuration and no state yet.
fn machine(name: &str, config: &str) -> TempDir {
    let described = fs::read_to_string(format!("../../tests/data/topologies/{name}")).unwrap();
    let root = node(config);
    fs::remove_dir_all(root.path().join("sys")).unwrap();
    fs::remove_file(root.path().join("var/lib/kubelet").join(PODS)).unwrap();
    let write = |path: String, text: String| write(root.path(), &format!("sys/devices/system/{path}"), &text);
    let (mut online, mut nodes) = (CpuSet::new(), CpuSet::new());
    for line in described.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["node", id, cpus, kib] => {
                nodes.insert(id.parse().unwrap());
                write(
                    format!("node/node{id}/cpulist"),
                    format!("{}\n", cpus.trim_matches('-')),
                );
                write(
                    format!("node/node{id}/meminfo"),
                    format!("Node {id} MemTotal: {kib} kB\n"),
                );
            }
            ["core", package, core_id, cpus] => {
                for cpu in set(cpus).iter() {
                    let file = |name: &str| format!("cpu/cpu{cpu}/topology/{name}");
                    write(file("physical_package_id"), package.to_owned());
                    write(file("core_id"), core_id.to_owned());
                    write(file("core_cpus_list"), cpus.to_owned());
                    online.insert(cpu);
                }
            }
            _ => panic!("{line}"),
        }
    }
    write("cpu/online".to_owned(), online.to_string());
    write("node/online".to_owned(), nodes.to_string());
    root
}

fn memory_of(root: &Path, gib: u64) {
    let nodes = 34;
    let table = |id: u32| {
        let total = if id < 2 { gib << 30 } else { 0 };
        let reserved: u64 = if id == 0 { 1 << 30 } else { 0 };
        let free = total - reserved;
        format!(
            r#""{id}":{{"numberOfAssignments":0,"memoryMap":{{"memory":{{"total":{total},"systemReserved":{reserved},"allocatable":{free},"reserved":0,"free":{free}}}}},"cells":[{id}]}}"#
        )
    };
    let tables: Vec<String> = (0..nodes).map(table).collect();
    let text = |checksum: u64| {
        format!(
            r#"{{"policyName":"Static","machineState":{{{}}},"checksum":{checksum}}}"#,
            tables.join(",")
        )
    };
    write_memory(root, text);
}

#[rstest]
#[case::grace("gb200", "", "cpus=8,memory=1Gi", "1-8")]
#[case::no_package("power8-guest", "", "cpus=8,memory=1Gi", "8-15")]
#[case::packages_by_offset("kunpeng-920", "", "cpus=8,memory=1Gi", "1-8")]
#[case::a_numa_node_of_arm64("kunpeng-920", "", "cpus=32,memory=1Gi", "32-63")]
// It knows nothing of clusters and of slow and fast cores.
#[case::slow_and_fast_cores("dgx-spark", "", "cpus=10,memory=1Gi", "1-10")]
#[case::dies(
    "opteron-6200",
    "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n",
    "cpus=3,memory=1Gi",
    "1-3"
)]
// cadvisor takes the two dies' cores for one of four threads.
#[case::dies_in_one_node(
    "xeon-dies",
    "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n",
    "cpus=4,memory=1Gi",
    "1,3,5,7"
)]
fn what_kubelet_would_give(#[case] name: &str, #[case] config: &str, #[case] pod: &str, #[case] cpus: &str) {
    let root = machine(
        name,
        &format!("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n{config}"),
    );
    let answer = answered(root.path(), &["-c", pod]);
    assert_eq!(answer["containers"][0]["cpus"], cpus, "{answer}");
}

#[rstest]
#[case("power8-guest", 8, "8-15")]
#[case("opteron-6200", 1, "1")]
#[case("xeon-dies", 1, "1,5")]
#[case("kunpeng-920", 66, "66")]
#[case("dgx-spark", 11, "11")]
fn which_cpus_the_host_takes_for_siblings(#[case] name: &str, #[case] cpu: u32, #[case] siblings: &str) {
    let root = machine(name, "");
    let topology = Topology::read(&root.path().join("sys")).unwrap();
    assert_eq!(topology.siblings(cpu).to_string(), siblings);
}

/// With 34 NUMA nodes kubelet starts only if it is allowed, and its memory manager looks at all sets of them.
#[rstest]
#[case("none", "", Ok("1-8"))]
#[case(
    "best-effort",
    "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '40'}\n",
    Ok("1-8")
)]
#[case(
    "single-numa-node",
    "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '40'}\n",
    Ok("1-8")
)]
#[case(
    "best-effort",
    "",
    Err("34 NUMA nodes are more than the 8 of max-allowable-numa-nodes")
)]
fn static_memory_on_a_gb200(#[case] policy: &str, #[case] options: &str, #[case] expected: Result<&str, &str>) {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\nmemoryManagerPolicy: Static\n";
    let reserved = "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\nsystemReserved: {memory: 924Mi}\n";
    let root = machine(
        "gb200",
        &format!("{config}{reserved}topologyManagerPolicy: {policy}\n{options}"),
    );
    memory_of(root.path(), 480);
    match expected {
        Ok(cpus) => {
            let answer = answered(root.path(), &["-c", "cpus=8,memory=400Gi"]);
            let container = &answer["containers"][0];
            assert_eq!(
                (&container["cpus"], &container["memory"][0]["nodes"]),
                (&cpus.into(), &"0".into()),
                "{answer}"
            );
            let fault = answer["faults"][0].as_str().unwrap();
            assert!(fault.contains("1.7e10 sets of 34 NUMA nodes"), "{fault}");
        }
        Err(words) => {
            let (_, reason) = refused(root.path(), &["-c", "cpus=8,memory=400Gi"]);
            assert!(
                reason.starts_with("kubelet would not start") && reason.contains(words),
                "{reason}"
            );
        }
    }
}

/// An init container's CPU binds the container after it to its NUMA node (Kubernetes issue 123816), or is lost (112228).
#[test]
fn what_init_containers_cpus_do_is_told() {
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0,8'\ntopologyManagerPolicy: single-numa-node\n";
    // Free: 2-3,10-11 on node 0, 4-7,12-15 on node 1.
    let root = node(config);
    let line = [
        "-c",
        "name=first,kind=init,cpus=1,memory=1Gi",
        "-c",
        "name=vm,cpus=6,memory=1Gi",
    ];
    let (printed, _) = refused(root.path(), &line);
    assert!(printed.contains("TopologyAffinityError"), "{printed}");
    assert!(
        printed.contains("cpu is bound to NUMA nodes {0}, because CPU 2 of the pod's init containers is there"),
        "{printed}"
    );
    assert!(printed.contains("without it cpu would prefer {1}"), "{printed}");
    // CPU 8 is alone on its core, and the container takes a whole one.
    let root = node("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n");
    let line = [
        "-c",
        "name=first,kind=init,cpus=1,memory=1Gi",
        "-c",
        "name=vm,cpus=2,memory=1Gi",
    ];
    let text = steliactl(root.path(), &line).unwrap();
    assert!(
        text.contains("CPU 8 of the init container first is lost to the node while the pod lives"),
        "{text}"
    );
    // As large as the container, it loses nothing.
    let line = [
        "-c",
        "name=first,kind=init,cpus=2,memory=1Gi",
        "-c",
        "name=vm,cpus=2,memory=1Gi",
    ];
    let text = steliactl(root.path(), &line).unwrap();
    assert!(!text.contains("is lost"), "{text}");
}
