//! The containers with exclusive CPUs: their quotas, cores and NUMA nodes.

use super::super::vms::{Quota, read_quotas};
use super::*;

const GIB: u64 = 1 << 30;

fn check(quotas: Result<Vec<Quota>, String>) -> Finding {
    named(&Facts { quotas, ..fit() }, "crun")
}

#[test]
fn a_quota_below_the_exclusive_cpus_is_told() {
    for (cpus, milli, expected) in [
        (2, Some(10), Outcome::Warn),
        (2, Some(1999), Outcome::Warn),
        (2, Some(2000), Outcome::Pass),
        (1, Some(1100), Outcome::Pass),
        (2, None, Outcome::Pass),
    ] {
        let cgroup = "/kubepods.slice/a.scope".to_owned();
        let check = check(Ok(vec![Quota { cgroup, cpus, milli }]));
        assert_eq!(check.outcome, expected, "{check:?}");
        assert_eq!(check.fix.is_empty(), expected != Outcome::Warn);
        if milli == Some(10) {
            says(&check.fact, &["/kubepods.slice/a.scope has 2 CPUs and a quota of 1 %"]);
        }
    }
    // What is not known is not said to be right.
    let check = check(Err("cpu.max: denied".to_owned()));
    assert_eq!(check.outcome, Outcome::Note);
    assert!(check.fact.ends_with("cpu.max: denied"), "{check:?}");
}

#[test]
fn the_containers_are_those_with_the_cpus_of_an_entry_and_their_scope_counts_too() {
    let root = tempfile::tempdir().unwrap();
    let pod = POD.replace('-', "_");
    let slice = format!("sys/fs/cgroup/kubepods.slice/kubepods-pod{pod}.slice");
    let file = |cgroup: &str, name: &str, text: &str| write(root.path(), &format!("{slice}/{cgroup}/{name}"), text);
    let scope = |number: u32| format!("cri-containerd-{number:064x}.scope");
    for (number, cpus, max) in [
        (1, "1,5", "1000 100000"),
        (2, "0,2-4,6-7", "5000 100000"),
        (3, "1,5", "max 100000"),
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
    let mut quotas = read_quotas(root.path(), fit().state.as_ref().unwrap()).unwrap();
    quotas.sort_by_key(|quota| quota.milli);
    let found: Vec<_> = quotas.iter().map(|quota| (quota.cpus, quota.milli)).collect();
    assert_eq!(found, [(2, None), (2, Some(10))]);
    let is_inner = |quota: &Quota| quota.cgroup.ends_with("/container");
    assert!(quotas.iter().any(is_inner), "{quotas:?}");
}

#[test]
fn numa_balancing_matters_for_large_vms_alone() {
    for (nodes, memory, outcome) in [
        (&[0][..], 4 * GIB, Outcome::Pass),
        (&[0, 1], 4 * GIB, Outcome::Warn),
        (&[1], 32 * GIB, Outcome::Warn),
    ] {
        let mut facts = fit();
        has_vm(&mut facts, nodes, nodes[0], memory);
        assert_eq!(named(&facts, "numa-balancing").fact, "off");
        facts.numa_balancing = true;
        let check = named(&facts, "numa-balancing");
        assert_eq!(check.outcome, outcome, "{check:?}");
        assert_eq!(check.fact.contains(POD), outcome == Outcome::Warn, "{check:?}");
        // With one NUMA node there is nothing to balance.
        facts.topology = Ok(shape(1, 4, 2));
        assert_eq!(named(&facts, "numa-balancing").outcome, Outcome::Pass);
    }
}

#[test]
fn core_scheduling_matters_without_whole_cores() {
    for (cpus, kernel, outcome) in [
        ("1", None, Outcome::Warn),
        ("1-2", Some(true), Outcome::Warn),
        ("1,5", Some(true), Outcome::Pass),
        ("1", Some(false), Outcome::Pass),
    ] {
        let mut facts = fit();
        facts.hypervisors.in_kernel = kernel;
        facts.hypervisors.vcpus = [(812, cpus.parse().unwrap())].into();
        let check = named(&facts, "core-scheduling");
        assert_eq!(check.outcome, outcome, "{check:?}");
        let is_named = check.fact.contains("process 812");
        assert_eq!(is_named, outcome == Outcome::Warn, "{check:?}");
    }
}

/// The facts of a node with these files.
fn read(files: &[(&str, &str)]) -> Facts {
    Facts::read(folder(files).path())
}

#[test]
fn how_the_scheduler_is_told_is_read_from_the_nodes_files() {
    let none = read(&[
        ("sys/kernel/sched_ext/state", "disabled\n"),
        ("proc/sys/kernel/numa_balancing", "0\n"),
    ]);
    assert_eq!(
        (none.numa_balancing, none.sched_ext, none.hypervisors),
        (false, None, CloudHypervisors::default())
    );
    let without = "cloud-hypervisor\0--cpus\0boot=2,core_scheduling=off\0";
    let all = read(&[
        ("proc/sys/kernel/osrelease", "6.12.9+deb13-amd64\n"),
        ("boot/config-6.12.9+deb13-amd64", "CONFIG_SMP=y\nCONFIG_SCHED_CORE=y\n"),
        ("proc/sys/kernel/numa_balancing", "2\n"),
        ("sys/kernel/sched_ext/state", "enabled\n"),
        ("sys/kernel/sched_ext/root/ops", "scx_layered\n"),
        ("proc/40/comm", "cloud-hyperviso\n"),
        ("proc/40/cmdline", "cloud-hypervisor\0--cpus\0boot=2\0"),
        ("proc/40/task/40/comm", "cloud-hyperviso\n"),
        ("proc/40/task/40/status", "Cpus_allowed_list:\t0-7\n"),
        ("proc/40/task/42/comm", "vcpu0\n"),
        ("proc/40/task/42/status", "Name:\tvcpu0\nCpus_allowed_list:\t2\n"),
        ("proc/40/task/43/comm", "vcpu1\n"),
        ("proc/40/task/43/status", "Cpus_allowed_list:\t3\n"),
        ("proc/50/comm", "cloud-hyperviso\n"),
        ("proc/50/cmdline", without),
        ("proc/50/task/52/comm", "vcpu0\n"),
        ("proc/50/task/52/status", "Cpus_allowed_list:\t4\n"),
    ]);
    assert_eq!(
        (all.numa_balancing, all.sched_ext.as_deref()),
        (true, Some("scx_layered"))
    );
    let expected = CloudHypervisors {
        in_kernel: Some(true),
        vcpus: [(40, "2-3".parse().unwrap())].into(),
    };
    assert_eq!(all.hypervisors, expected);
    let without = read(&[
        ("proc/sys/kernel/osrelease", "6.12\n"),
        ("boot/config-6.12", "# CONFIG_SCHED_CORE is not set\n"),
    ]);
    assert_eq!(without.hypervisors.in_kernel, Some(false));
}

#[test]
fn a_dra_driver_of_cpus_is_refused_where_steliad_chooses_and_named_elsewhere() {
    let plugin = |name: &str| format!("var/lib/kubelet/plugins_registry/{name}-reg.sock");
    let found = read(&[(&plugin("dra.cpu"), "")]).dra;
    assert_eq!(found["dra.cpu"], Path::new("/").join(plugin("dra.cpu")));
    // Where kubelet's root directory is elsewhere it is looked for there.
    let elsewhere = [
        ("etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\""),
        ("data/kubelet/plugins_registry/native.cpu-reg.sock", ""),
    ];
    assert!(read(&elsewhere).dra.contains_key("native.cpu"));
    assert!(read(&[(&plugin("gpu.nvidia.com"), "")]).dra.is_empty());

    let mut facts = fit();
    facts.dra = found;
    assert_eq!(named(&facts, "dra-driver").outcome, Outcome::Warn);
    ours(&mut facts);
    let (outcome, found) = said(&facts, "dra-driver");
    assert_eq!(outcome, Outcome::Fail);
    says(&found, &["dra.cpu (/var/lib/kubelet/plugins_registry"]);
}

#[test]
fn each_vm_that_is_away_has_its_line_and_the_others_have_none() {
    let vm = |anon: [u64; 2], device: u32| {
        let node = |(node, anon): (u32, u64)| {
            (
                node,
                NodeMemory {
                    anon,
                    ..NodeMemory::default()
                },
            )
        };
        let device = Device {
            name: "nic".to_owned(),
            node: Some(device),
            count: 1,
        };
        Locality {
            nodes: [0].into(),
            memory: (0..).zip(anon).map(node).collect(),
            devices: vec![device],
            ..Locality::default()
        }
    };
    let mut facts = fit();
    let vms = [
        ("a", vm([GIB / 2, GIB / 2], 0)),
        ("b", vm([GIB, 0], 0)),
        ("c", vm([GIB, 0], 1)),
    ];
    let localities = &mut facts.described.as_mut().unwrap().locality;
    localities.instances = vms.into_iter().map(|(pod, vm)| (pod.to_owned(), vm)).collect();
    let told = super::super::vms::locality(&facts);
    let [a, c] = told.as_slice() else { panic!("{told:?}") };
    assert!(
        told.iter()
            .all(|one| one.outcome == Outcome::Warn && !one.fix.is_empty()),
        "{told:?}"
    );
    says(&a.fact, &["a: 50 % (512 MiB of 1.0 GiB)"]);
    says(&c.fact, &["c: ", "nic on 1"]);

    let localities = &mut facts.described.as_mut().unwrap().locality;
    localities.instances.retain(|pod, _| pod == "b");
    assert_eq!(named(&facts, "locality").outcome, Outcome::Pass);
    facts.described.as_mut().unwrap().locality.devices_unknown = Some("x".to_owned());
    assert_eq!(named(&facts, "locality").outcome, Outcome::Warn);
}
