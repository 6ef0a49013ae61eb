//! The machines of `tests/data/topologies`: what kubelet would do there.

use super::*;

/// A root like that of the machine, with a kubelet that has this configuration and has assigned no CPU.
fn machine(name: &str, config: &str) -> TempDir {
    let described = fs::read_to_string(format!("../../tests/data/topologies/{name}")).unwrap();
    let root = node(config);
    fs::remove_dir_all(root.path().join("sys")).unwrap();
    let put = |path: &str, text: &str| write(root.path(), &format!("sys/devices/system/{path}"), text);
    let (mut online, mut nodes) = (CpuSet::new(), CpuSet::new());
    for line in described.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["node", id, cpus, kib] => {
                nodes.insert(id.parse().unwrap());
                put(
                    &format!("node/node{id}/cpulist"),
                    &format!("{}\n", cpus.trim_matches('-')),
                );
                put(
                    &format!("node/node{id}/meminfo"),
                    &format!("Node {id} MemTotal: {kib} kB\n"),
                );
            }
            ["core", package, core_id, cpus] => {
                for cpu in set(cpus).iter() {
                    for (file, text) in [
                        ("physical_package_id", package),
                        ("core_id", core_id),
                        ("core_cpus_list", cpus),
                    ] {
                        put(&format!("cpu/cpu{cpu}/topology/{file}"), text);
                    }
                    online.insert(cpu);
                }
            }
            _ => panic!("{line}"),
        }
    }
    put("cpu/online", &online.to_string());
    put("node/online", &nodes.to_string());
    // A checksum of 0 is that of a kubelet from before there were any.
    let state = format!(r#"{{"policyName":"static","defaultCpuSet":"{online}","checksum":0}}"#);
    write(root.path(), "var/lib/kubelet/cpu_manager_state", &state);
    root
}

#[test]
fn what_kubelet_would_give() {
    let whole_cores = "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n";
    for (name, more, wanted, cpus) in [
        ("gb200", "", 8, "1-8"),
        // Without a package.
        ("power8-guest", "", 8, "8-15"),
        // Packages by offset, and a NUMA node of arm64.
        ("kunpeng-920", "", 8, "1-8"),
        ("kunpeng-920", "", 32, "32-63"),
        // It knows nothing of clusters and of slow and fast cores.
        ("dgx-spark", "", 10, "1-10"),
        ("opteron-6200", whole_cores, 3, "1-3"),
        // cadvisor takes the cores of two dies in one node for one of four threads.
        ("xeon-dies", whole_cores, 4, "1,3,5,7"),
    ] {
        let root = machine(
            name,
            &format!("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n{more}"),
        );
        let answer = answered(root.path(), &format!("-c cpus={wanted},memory=1Gi"));
        assert_eq!(answer["containers"][0]["cpus"], cpus, "{name}: {answer}");
    }
}

/// With 34 NUMA nodes kubelet starts only if it is allowed, and its memory manager looks at all sets of them.
#[test]
fn static_memory_on_a_gb200() {
    let gb200 = |rest: &str| {
        let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\nmemoryManagerPolicy: Static\n";
        let reserved = "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\nsystemReserved: {memory: 924Mi}\n";
        let root = machine("gb200", &format!("{config}{reserved}topologyManagerPolicy: {rest}\n"));
        let mut nodes = [[0; 3]; 34];
        (nodes[0], nodes[1]) = ([480 << 30, 1 << 30, 0], [480 << 30, 0, 0]);
        write_memory(root.path(), &nodes, Value::Null);
        root
    };
    let pod = "-c cpus=8,memory=400Gi";
    let allowed = "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '40'}";
    for rest in [
        "none".to_owned(),
        format!("best-effort\n{allowed}"),
        format!("single-numa-node\n{allowed}"),
    ] {
        let answer = answered(gb200(&rest).path(), pod);
        holds(
            &answer,
            json!({"/containers/0/cpus": "1-8", "/containers/0/memory/0/nodes": "0"}),
        );
        says(&answer["faults"][0].to_string(), &["1.7e10 sets of 34 NUMA nodes"]);
    }
    let (_, reason) = refused(gb200("best-effort").path(), pod);
    let expected = "34 NUMA nodes are more than the 8 of max-allowable-numa-nodes";
    says(&reason, &["would not start again: ", expected]);
}

/// An init container's CPU binds the container after it to its NUMA node (Kubernetes issue 123816), or is lost (112228).
#[test]
fn what_init_containers_cpus_do_is_told() {
    let pod = |first: u32, vm: u32| {
        format!("-c name=first,kind=init,cpus={first},memory=1Gi -c name=vm,cpus={vm},memory=1Gi")
    };
    let config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0,8'\ntopologyManagerPolicy: single-numa-node\n";
    // Free: 2-3,10-11 on node 0, 4-7,12-15 on node 1.
    let (printed, _) = refused(node(config).path(), &pod(1, 6));
    let expected = [
        "TopologyAffinityError",
        "cpu is bound to NUMA nodes {0}, because CPU 2 of the pod's init containers is there",
        "without it cpu would prefer {1}",
    ];
    says(&printed, &expected);
    // CPU 8 is alone on its core, and the container takes a whole one.
    let root = node("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n");
    let text = steliactl(root.path(), &pod(1, 2)).unwrap();
    let lost = "CPU 8 of the init container first is lost to the node while the pod lives";
    says(&text, &[lost]);
    // As large as the container, it loses nothing.
    let text = steliactl(root.path(), &pod(2, 2)).unwrap();
    never_says(&text, &["is lost"]);
}
