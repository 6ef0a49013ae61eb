//! What is said of a DRA driver, of NUMA balancing, of core scheduling and of sched_ext.

use super::*;

const GIB: u64 = 1 << 30;

#[test]
fn numa_balancing_matters_for_large_vms_alone() {
    for (nodes, memory, verdict) in [
        (&[0][..], 4 * GIB, Verdict::Ok),
        (&[0, 1], 4 * GIB, Verdict::Warning),
        (&[1], 32 * GIB, Verdict::Warning),
    ] {
        let mut facts = fit();
        has_vm(&mut facts, nodes, nodes[0], memory);
        assert_eq!(named(&facts, "numa-balancing").found, "off");
        facts.scheduling.numa_balancing = true;
        let check = named(&facts, "numa-balancing");
        assert_eq!(check.verdict, verdict, "{check:?}");
        assert_eq!(check.found.contains(POD), verdict == Verdict::Warning, "{check:?}");
        // With one NUMA node there is nothing to balance.
        facts.topology = Ok(shape(1, 4, 2));
        assert_eq!(named(&facts, "numa-balancing").verdict, Verdict::Ok);
    }
}

#[test]
fn core_scheduling_matters_without_whole_cores() {
    for (cpus, kernel, verdict) in [
        ("1", None, Verdict::Warning),
        ("1-2", Some(true), Verdict::Warning),
        ("1,5", Some(true), Verdict::Ok),
        ("1", Some(false), Verdict::Ok),
    ] {
        let mut facts = fit();
        facts.scheduling.core_scheduling = kernel;
        facts.scheduling.with_cookies = [(812, cpus.parse().unwrap())].into();
        let check = named(&facts, "core-scheduling");
        assert_eq!(check.verdict, verdict, "{check:?}");
        let is_named = check.found.contains("process 812");
        assert_eq!(is_named, verdict == Verdict::Warning, "{check:?}");
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
    assert_eq!(none.scheduling, Scheduling::default());
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
    let expected = Scheduling {
        numa_balancing: true,
        core_scheduling: Some(true),
        with_cookies: [(40, "2-3".parse().unwrap())].into(),
        extension: Some("scx_layered".to_owned()),
    };
    assert_eq!(all.scheduling, expected);
    let without = read(&[
        ("proc/sys/kernel/osrelease", "6.12\n"),
        ("boot/config-6.12", "# CONFIG_SCHED_CORE is not set\n"),
    ]);
    assert_eq!(without.scheduling.core_scheduling, Some(false));
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
    assert_eq!(named(&facts, "dra-driver").verdict, Verdict::Warning);
    ours(&mut facts);
    let (verdict, found) = said(&facts, "dra-driver");
    assert_eq!(verdict, Verdict::Failed);
    says(&found, &["dra.cpu (/var/lib/kubelet/plugins_registry"]);
}
