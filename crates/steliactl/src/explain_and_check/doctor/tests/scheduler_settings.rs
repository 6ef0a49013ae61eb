//! What is said of a DRA driver, of NUMA balancing, of core scheduling and of sched_ext.

use super::*;

const GIB: u64 = 1 << 30;

fn vm(nodes: &[u32], memory: u64) -> Locality {
    let memory = NodeMemory {
        anon: memory,
        ..NodeMemory::default()
    };
    Locality {
        nodes: nodes.iter().copied().collect(),
        memory: [(nodes[0], memory)].into(),
        ..Locality::default()
    }
}

#[rstest]
#[case::one_node(&[0], 4 * GIB, Verdict::Ok)]
#[case::two_nodes(&[0, 1], 4 * GIB, Verdict::Warning)]
#[case::much_memory(&[1], 32 * GIB, Verdict::Warning)]
fn numa_balancing_matters_for_large_vms_alone(#[case] nodes: &[u32], #[case] memory: u64, #[case] verdict: Verdict) {
    let mut facts = fit();
    facts.localities.instances.insert(POD.to_owned(), vm(nodes, memory));
    assert_eq!(named(&facts, "numa-balancing").found, "off");
    facts.scheduling.numa_balancing = true;
    let check = named(&facts, "numa-balancing");
    assert_eq!(check.verdict, verdict, "{check:?}");
    assert_eq!(check.found.contains(POD), verdict == Verdict::Warning, "{check:?}");
    // With one NUMA node there is nothing to balance.
    let shape = Shape {
        nodes: 1,
        cores: 4,
        threads: 2,
        interleaved: true,
    };
    facts.topology = Ok(shape.topology());
    assert_eq!(named(&facts, "numa-balancing").verdict, Verdict::Ok);
}

#[rstest]
#[case::half_a_core("1", None, Verdict::Warning)]
#[case::and_the_kernel_has_it("1-2", Some(true), Verdict::Warning)]
#[case::whole_cores("1,5", Some(true), Verdict::Ok)]
#[case::a_kernel_without("1", Some(false), Verdict::Ok)]
fn core_scheduling_matters_without_whole_cores(
    #[case] cpus: &str,
    #[case] kernel: Option<bool>,
    #[case] verdict: Verdict,
) {
    let mut facts = fit();
    facts.scheduling.core_scheduling = kernel;
    facts.scheduling.with_cookies = [(812, cpus.parse().unwrap())].into();
    let check = named(&facts, "core-scheduling");
    assert_eq!(check.verdict, verdict, "{check:?}");
    assert_eq!(
        check.found.contains("process 812"),
        verdict == Verdict::Warning,
        "{check:?}"
    );
}

/// The facts of a node with these files.
fn read(files: &[(&str, &str)]) -> Facts {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        write(root.path(), path, text);
    }
    Facts::read(root.path())
}

#[test]
fn how_the_scheduler_is_told_is_read_from_the_nodes_files() {
    let none = read(&[
        ("sys/kernel/sched_ext/state", "disabled\n"),
        ("proc/sys/kernel/numa_balancing", "0\n"),
    ]);
    assert_eq!(none.scheduling, Scheduling::default());
    let config = "CONFIG_SMP=y\nCONFIG_SCHED_CORE=y\n";
    let all = read(&[
        ("proc/sys/kernel/osrelease", "6.12.9+deb13-amd64\n"),
        ("boot/config-6.12.9+deb13-amd64", config),
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
        (
            "proc/50/cmdline",
            "cloud-hypervisor\0--cpus\0boot=2,core_scheduling=off\0",
        ),
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
    let socket = "var/lib/kubelet/plugins_registry/dra.cpu-reg.sock";
    let found = read(&[(socket, "")]).dra;
    assert_eq!(
        found["dra.cpu"].to_str(),
        Some("/var/lib/kubelet/plugins_registry/dra.cpu-reg.sock")
    );
    // Where kubelet's root directory is elsewhere it is looked for there.
    let elsewhere = [
        ("etc/stelia/steliad.toml", "kubelet-root = \"/data/kubelet\""),
        ("data/kubelet/plugins_registry/native.cpu-reg.sock", ""),
    ];
    assert!(read(&elsewhere).dra.contains_key("native.cpu"));
    assert!(
        read(&[("var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock", "")])
            .dra
            .is_empty()
    );

    let mut facts = fit();
    facts.dra = found;
    assert_eq!(named(&facts, "dra-driver").verdict, Verdict::Warning);
    ours(&mut facts);
    let check = named(&facts, "dra-driver");
    assert_eq!(check.verdict, Verdict::Failed);
    assert!(
        check.found.contains("dra.cpu (/var/lib/kubelet/plugins_registry"),
        "{check:?}"
    );
}
