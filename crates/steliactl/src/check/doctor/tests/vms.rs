//! The containers with exclusive CPUs: their quotas, memory and devices.

use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::locality::Device;
use stelia_model::{Instance, Usage};

use super::*;

const GIB: u64 = 1 << 30;

#[test]
fn low_quotas_are_those_of_containers_with_the_cpus_of_an_entry_and_their_scope_counts_too() {
    let (mut seen, root) = (fit(), tempfile::tempdir().unwrap());
    let root = root.path();
    let pod = POD.replace('-', "_");
    let slice = format!("sys/fs/cgroup/kubepods.slice/kubepods-pod{pod}.slice");
    let file = |cgroup: &str, name: &str, text: &str| write(root, &format!("{slice}/{cgroup}/{name}"), text);
    let scope = |number: u32| format!("cri-containerd-{number:064x}.scope");
    for (number, cpus, max) in [
        (1, "1,5", "1000 100000"),
        (2, "0,2-4,6-7", "5000 100000"),
        (3, "1,5", "max 100000"),
        (4, "1,5", "199900 100000"),
        (5, "1,5", "200000 100000"),
    ] {
        file(&scope(number), "cgroup.procs", "");
        file(&scope(number), "cgroup.events", "populated 1\nfrozen 0\n");
        file(&scope(number), "cpuset.cpus", cpus);
        file(&scope(number), "cpu.max", max);
    }
    // With crun the processes are one level below.
    let inner = format!("{}/container", scope(1));
    file(&inner, "cgroup.events", "populated 1\nfrozen 0\n");
    file(&inner, "cpuset.cpus", "");
    file(&inner, "cpu.max", "max 100000");
    seen.low_quotas = super::super::vms::low_quotas(root, seen.state());
    let one = assert_only_problem(&seen, "crun", Outcome::Warn);
    says(
        &one.fact,
        &["/container has 2 CPUs and a quota of 1 % of a CPU", &scope(4), "199 %"],
    );
    assert_eq!(one.fact.matches("; ").count(), 1);
    // What is not known of quotas is not said to be right.
    let unread = root.join(&slice).join(scope(4)).join("cpu.max");
    fs::remove_file(&unread).unwrap();
    fs::create_dir(unread).unwrap();
    seen.low_quotas = super::super::vms::low_quotas(root, seen.state());
    let (outcome, fact) = said(&seen, "crun");
    assert_eq!(outcome, Outcome::Note);
    says(&fact, &["cpu.max"]);
}

#[test]
fn a_dra_driver_of_cpus_is_refused_where_steliad_chooses_and_named_elsewhere() {
    let mut seen = fit();
    seen.cpu_drivers = vec!["dra.cpu (/a)".to_owned()];
    assert_eq!(named(&seen, "dra-driver").outcome, Outcome::Warn);
    ours(&mut seen);
    let (outcome, found) = said(&seen, "dra-driver");
    assert_eq!(outcome, Outcome::Fail);
    says(&found, &["dra.cpu (/a)"]);
    let root = folder(&[
        ("var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock", ""),
        ("var/lib/kubelet/plugins_registry/dra.cpu-reg.sock", ""),
    ]);
    let registered = "dra.cpu (/var/lib/kubelet/plugins_registry/dra.cpu-reg.sock)";
    assert_eq!(read(root.path()).cpu_drivers, [registered]);
    // Where kubelet's root directory is elsewhere it is looked for there.
    let elsewhere = folder(&[
        ("etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\""),
        ("data/kubelet/plugins_registry/native.cpu-reg.sock", ""),
    ]);
    says(&said(&read(elsewhere.path()), "dra-driver").1, &["native.cpu"]);
}

#[test]
fn the_memory_of_scopes_is_summed_and_that_in_place_is_the_pods_own() {
    let mut seen = fit();
    let told = seen.described.as_mut().unwrap();
    let scopes = [
        "/stelia.slice/a.scope",
        "/stelia.slice/b.scope",
        "/kubepods.slice/c.scope",
    ];
    for (number, scope) in (1..).zip(scopes) {
        let pod = PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap();
        let scope = CgroupPath::parse(scope).unwrap();
        let instance = Instance {
            scope,
            ..Instance::default()
        };
        told.node.instances.insert(pod.clone(), Arc::new(instance));
        let memory_bytes = number << 30;
        told.usage.insert(
            pod,
            Usage {
                memory_bytes,
                ..Usage::default()
            },
        );
    }
    let (outcome, fact) = said(&seen, "vm-memory");
    assert_eq!(outcome, Outcome::Note);
    says(&fact, &["3.0 GiB"]);
}

#[test]
fn vms_with_remote_memory_or_devices_are_named_and_the_others_are_not() {
    let vm = |anon: [u64; 2], device: u32| {
        let memory = |(node, anon): (u32, u64)| {
            let memory = NodeMemory {
                anon,
                ..NodeMemory::default()
            };
            (node, memory)
        };
        let device = Device {
            name: "nic".to_owned(),
            node: Some(device),
            count: 1,
        };
        Locality {
            nodes: [0].into(),
            memory: (0..).zip(anon).map(memory).collect(),
            devices: vec![device],
            ..Locality::default()
        }
    };
    let mut seen = fit();
    let vms = [
        ("a", vm([GIB / 2, GIB / 2], 0)),
        ("b", vm([GIB, 0], 0)),
        ("c", vm([GIB, 0], 1)),
    ];
    let localities = &mut seen.described.as_mut().unwrap().locality.instances;
    *localities = vms.into_iter().map(|(pod, vm)| (pod.to_owned(), vm)).collect();
    let one = assert_only_problem(&seen, "locality", Outcome::Warn);
    says(&one.fact, &["a: 50 % (512 MiB of 1.0 GiB)", "c: ", "nic on 1"]);
    assert!(!one.fact.contains("b: "), "{one:?}");
    assert_eq!(one.fix, "steliactl why a");
    seen.described
        .as_mut()
        .unwrap()
        .locality
        .instances
        .retain(|pod, _| pod == "b");
    assert_eq!(wrong(&seen), []);
}

#[test]
fn numa_balancing_matters_for_large_vms_alone() {
    for (nodes, anon, outcome) in [
        (&[0][..], 4 * GIB, Outcome::Pass),
        (&[0, 1], 4 * GIB, Outcome::Warn),
        (&[1], 32 * GIB, Outcome::Warn),
    ] {
        let mut seen = fit();
        let memory = NodeMemory {
            anon,
            ..NodeMemory::default()
        };
        let vm = Locality {
            nodes: nodes.iter().copied().collect(),
            memory: [(nodes[0], memory)].into(),
            ..Locality::default()
        };
        let told = seen.described.as_mut().unwrap();
        told.locality.instances.insert(POD.to_owned(), vm);
        assert_eq!(wrong(&seen), []);
        has(&mut seen, NUMA_BALANCING, "1");
        assert_eq!(named(&seen, "numa-balancing").outcome, outcome);
    }
}

#[test]
fn of_many_the_first_are_named() {
    let all: Vec<String> = (0..5).map(|number| number.to_string()).collect();
    assert_eq!(first_few(&all), "0; 1; 2; and 2 more");
    assert_eq!(first_few(&all[..2]), "0; 1");
}
