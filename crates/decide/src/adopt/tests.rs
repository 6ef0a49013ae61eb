use std::collections::BTreeSet;

use proptest::prelude::*;
use stelia_cpus::CpuSet;
use stelia_kernel::proc::TaskId;
use stelia_kernel::vmm_processes::{NamedThread, Process};
use stelia_kubelet::PodName;
use stelia_settings::{AdoptPartition, AdoptPlacement, AdoptRule, Isolation, PlacementPolicy, ReadyMade, ThreadName};

use crate::AdoptedPlacement;

use super::*;

fn rule(which: ReadyMade) -> AdoptRule {
    AdoptRule::ready_made(which).unwrap()
}

fn task(id: i32) -> TaskId {
    TaskId { id, start: 1 }
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A process with threads, each with its name and its affinity.
fn process(id: i32, name: &str, command: &[&str], threads: &[(&str, &str)]) -> Process {
    let thread = |(place, (name, affinity)): (i32, &(&str, &str))| NamedThread {
        task: task(id + 1 + place),
        name: (*name).to_owned(),
        affinity: cpus(affinity),
        has_run: false,
    };
    Process {
        task: task(id),
        name: name.to_owned(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        vcpus: (0..).zip(threads).map(thread).collect(),
    }
}

const QEMU: [&str; 3] = ["/usr/libexec/qemu-kvm", "-smp", "2,sockets=1,cores=1,threads=2"];

/// KubeVirt's, with two vCPUs pinned.
fn launcher() -> Process {
    process(20, "qemu-kvm", &QEMU, &[("CPU 0/KVM", "2"), ("CPU 1/KVM", "3")])
}

fn names(pod: &str, container: &str) -> Names {
    let (namespace, name) = pod.split_once('/').unwrap();
    Names {
        pod: PodName::new(namespace, name),
        container: Some(container.to_owned()),
        refuses: false,
    }
}

fn why(processes: &[Process]) -> NotAdopted {
    let rule = rule(ReadyMade::KubeVirt);
    vm(&[&rule], processes, &cpus("2-3")).unwrap_err()
}

#[test]
fn a_container_has_the_rules_of_its_names() {
    let mut all = ReadyMade::ALL.map(rule).to_vec();
    let of = |names: &Names, rules: &[AdoptRule]| {
        let found = rules_for(names, rules);
        found.map(|rules| rules.iter().map(|rule| rule.name.clone()).collect::<Vec<_>>())
    };
    let launcher = names("team-a/virt-launcher-web-x7k2p", "compute");
    assert_eq!(of(&launcher, &all).unwrap()[..2], ["kubevirt", "libvirt"]);
    assert_eq!(of(&names("team-a/web", "compute"), &all).unwrap()[0], "libvirt");
    assert_eq!(of(&launcher, &[]), Err(NotAdopted::NoRule));
    assert_eq!(of(&names("team-a/web", "vm"), &all[..1]), Err(NotAdopted::NoRule));
    assert_eq!(of(&Names::default(), &all), Err(NotAdopted::Unnamed));
    let sandbox = Names {
        container: None,
        ..launcher.clone()
    };
    assert_eq!(of(&sandbox, &all), Err(NotAdopted::Sandbox));
    let refusing = Names {
        refuses: true,
        ..launcher
    };
    let refused = NotAdopted::ContainerRefuses {
        rule: "kubevirt".into(),
    };
    assert_eq!(of(&refusing, &all), Err(refused));
    all[2].container_may_refuse = false;
    assert_eq!(of(&refusing, &all).unwrap(), ["qemu"]);
}

#[test]
fn a_vm_of_kubevirt_keeps_its_pins_and_its_guests_siblings_are_known() {
    let rule = rule(ReadyMade::KubeVirt);
    let others = [process(7, "virt-launcher", &["virt-launcher"], &[]), launcher()];
    let vm = vm(&[&rule], &others, &cpus("2-3")).unwrap();
    assert_eq!((vm.vmm, vm.rule.name.as_str()), (Some(task(20)), "kubevirt"));
    assert_eq!(vm.threads, [(0, task(21)), (1, task(22))].into());
    assert_eq!(vm.wanted.pinned_cpus, Some([(0, 2), (1, 3)].into()));
    let threads: Vec<i64> = vm.guest.iter().map(|vcpu| vcpu.props["thread-id"]).collect();
    assert_eq!((threads, vm.guest[1].props["core-id"]), (vec![0, 1], 0));
}

#[test]
fn a_pin_that_is_not_one_cpu_of_its_own_is_not_kept_and_the_vm_is_adopted() {
    let mut rule = rule(ReadyMade::KubeVirt);
    for affinities in [["2", "2-3"], ["2", "2"], ["2", "5"]] {
        let threads = [("CPU 0/KVM", affinities[0]), ("CPU 1/KVM", affinities[1])];
        let processes = [process(20, "qemu-kvm", &QEMU, &threads)];
        let vm = vm(&[&rule], &processes, &cpus("2-3")).unwrap();
        assert!(vm.is_unpinned());
        assert_eq!(vm.wanted, AdoptedPlacement::default());
    }
    rule.placement = AdoptPlacement::By(PlacementPolicy::Linear);
    let found = [launcher()];
    let vm = vm(&[&rule], &found, &cpus("2-3")).unwrap();
    assert_eq!(
        (vm.wanted.pinned_cpus, vm.wanted.policy),
        (None, Some(PlacementPolicy::Linear))
    );
}

#[test]
fn each_vmm_is_found_by_its_ready_made_rule() {
    let found = [
        (
            ReadyMade::CloudHypervisor,
            "cloud-hyperviso",
            "/usr/bin/cloud-hypervisor",
            ["vcpu0", "vcpu1"],
        ),
        (
            ReadyMade::Firecracker,
            "firecracker",
            "./firecracker",
            ["fc_vcpu 0", "fc_vcpu 1"],
        ),
        (ReadyMade::Crosvm, "crosvm", "crosvm", ["crosvm_vcpu0", "crosvm_vcpu1"]),
        (
            ReadyMade::Qemu,
            "qemu-system-x86",
            "qemu-system-x86_64",
            ["CPU 0/KVM", "CPU 1/KVM"],
        ),
    ];
    let rules = [
        ReadyMade::Qemu,
        ReadyMade::CloudHypervisor,
        ReadyMade::Firecracker,
        ReadyMade::Crosvm,
    ]
    .map(rule);
    let rules: Vec<&AdoptRule> = rules.iter().collect();
    for (which, name, program, [one, other]) in found {
        let processes = [process(20, name, &[program], &[(other, "3"), (one, "2")])];
        assert!(is_vmm(&rules, name, program) && is_vcpu(&rules, one), "{name}");
        let vm = vm(&rules, &processes, &cpus("2-3")).unwrap();
        assert_eq!((vm.rule.name.as_str(), vm.threads[&0]), (which.name(), task(22)));
        assert!(vm.guest.iter().all(|vcpu| vcpu.props.is_empty()));
    }
    assert!(!is_vmm(&rules, "bash", "/bin/bash") && !is_vcpu(&rules, "IO iothread0"));
}

#[test]
fn what_is_missing_or_forged_is_said() {
    assert_eq!(why(&[]).name(), "NoVmm");
    assert_eq!(
        why(&[process(7, "virt-launcher", &["virt-launcher"], &[])]).name(),
        "NoVmm"
    );
    assert_eq!(why(&[process(20, "qemu-kvm", &QEMU, &[])]).name(), "NoVcpus");
    let few = why(&[process(20, "qemu-kvm", &QEMU, &[("CPU 0/KVM", "2")])]);
    assert_eq!(
        few.to_string(),
        "process 20 has 1 threads named as vCPUs, and -smp has 2 CPUs"
    );
    let many = [("CPU 0/KVM", "2"), ("CPU 1/KVM", "2"), ("CPU 2/KVM", "2")];
    assert_eq!(why(&[process(20, "qemu-kvm", &QEMU, &many)]).name(), "TooManyVcpus");
    let gap = why(&[process(20, "qemu-kvm", &QEMU, &[many[0], many[2]])]);
    let expected = "process 20 has 2 threads named as vCPUs, and none of vCPU 1";
    assert!(gap.name() == "Gap" && gap.to_string().starts_with(expected), "{gap}");
    let doubled = why(&[process(20, "qemu-kvm", &QEMU, &[many[0], many[0]])]);
    assert_eq!(
        doubled.to_string(),
        "threads 21 and 22 of process 20 are both named as vCPU 0"
    );
    for (name, program) in [
        ("qemu-kvm", "/bin/sleep"),
        ("sleep", "qemu-kvm"),
        ("qemu-kv", "qemu-kvm"),
    ] {
        let forged = why(&[process(20, name, &[program], &many)]);
        assert_eq!(forged.name(), "NamesDiffer", "{name} {program}");
    }
    let windows = why(&[process(20, "windows", &["/usr/bin/qemu-system-x86_64"], &many)]).to_string();
    assert!(
        windows.ends_with(r#"vmm = ["windows", "qemu-system-x86_64"]"#),
        "{windows}"
    );
    let mut other = launcher();
    other.task = task(40);
    assert_eq!(
        why(&[launcher(), other]).to_string(),
        "processes 20, 40 are all VMMs with vCPUs"
    );
    let odd = why(&[process(20, "qemu-kvm", &["a\u{1b}[2J\n"], &[])]).to_string();
    assert!(!odd.contains(['\u{1b}', '\n']), "{odd}");
    // One that libvirt asks what it can do has no vCPUs, and does not stand in the way.
    let asked = process(10, "qemu-kvm", &["qemu-kvm", "-machine", "none"], &[]);
    let rule = rule(ReadyMade::KubeVirt);
    assert_eq!(
        vm(&[&rule], &[asked, launcher()], &cpus("2-3")).unwrap().vmm,
        Some(task(20))
    );
}

#[test]
fn a_guest_that_libvirt_has_not_let_run_is_adopted_once_its_vcpus_are_pinned_or_it_runs() {
    let command = [&QEMU[..], &["-S"]].concat();
    let unpinned = process(20, "qemu-kvm", &command, &[("CPU 0/KVM", "2-3"), ("CPU 1/KVM", "2-3")]);
    let held = why(std::slice::from_ref(&unpinned));
    assert!(held.name() == "NotStarted" && held.may_pass(), "{held}");
    let pinned = process(20, "qemu-kvm", &command, &[("CPU 0/KVM", "3"), ("CPU 1/KVM", "2")]);
    let mut running = unpinned.clone();
    running.vcpus[0].has_run = true;
    let (keep, auto) = (rule(ReadyMade::Libvirt), rule(ReadyMade::Qemu));
    // KubeVirt's waits until it has run, pinned or not, with and without a partition: virt-handler has yet to look at it.
    let kubevirt = rule(ReadyMade::KubeVirt);
    let member = AdoptRule {
        partition: AdoptPartition::Member,
        isolation: Isolation::Vcpus,
        ..kubevirt.clone()
    };
    let mut ran = pinned.clone();
    ran.vcpus[1].has_run = true;
    for rule in [&kubevirt, &member] {
        let waits = vm(&[rule], std::slice::from_ref(&pinned), &cpus("2-3")).unwrap_err();
        assert_eq!(waits.name(), "NotStarted");
        let adopted = vm(&[rule], std::slice::from_ref(&ran), &cpus("2-3"));
        assert!(adopted.unwrap().wanted.pinned_cpus.is_some());
    }
    let pinned_cpus = |rule, process| vm(&[rule], &[process], &cpus("2-3")).unwrap().wanted.pinned_cpus;
    assert_eq!(pinned_cpus(&keep, pinned).unwrap()[&0], 3);
    assert_eq!(pinned_cpus(&keep, running), None);
    // Where nothing is kept there is nothing to wait for.
    assert_eq!(pinned_cpus(&auto, unpinned), None);
}

#[test]
fn vcpus_that_were_plugged_from_the_top_are_adopted() {
    let rule = rule(ReadyMade::Qemu);
    let plugged = |smp: &str, threads: &[(&str, &str)]| {
        let processes = [process(20, "qemu-kvm", &["qemu-kvm", "-smp", smp], threads)];
        let found = vm(&[&rule], &processes, &cpus("2-5"));
        found.map(|vm| vm.threads.keys().copied().collect::<Vec<_>>())
    };
    let kata = [
        ("CPU 0/KVM", "2-5"),
        ("CPU 15/KVM", "2-5"),
        ("CPU 14/KVM", "2-5"),
        ("CPU 13/KVM", "2-5"),
    ];
    let smp = "1,cores=1,threads=1,sockets=16,maxcpus=16";
    assert_eq!(plugged(smp, &kata).unwrap(), [0, 13, 14, 15]);
    // Beyond what it may have, and where nothing says that any can be plugged.
    assert_eq!(plugged("1,maxcpus=8", &kata).unwrap_err().name(), "Gap");
    let bare = [process(20, "qemu-kvm", &["qemu-kvm"], &kata[..2])];
    assert_eq!(vm(&[&rule], &bare, &cpus("2-5")).unwrap_err().name(), "Gap");
    // It starts: those that it begins with are not all there.
    assert_eq!(plugged("3,maxcpus=16", &kata[..2]).unwrap_err().name(), "TooFewVcpus");
}

#[test]
fn released_binaries_are_found_by_their_whole_names() {
    for (which, name, program, thread) in [
        (
            ReadyMade::CloudHypervisor,
            "cloud-hyperviso",
            "/opt/cloud-hypervisor-static",
            "vcpu0",
        ),
        (
            ReadyMade::Firecracker,
            "firecracker-v1.",
            "./firecracker-v1.16.1-x86_64",
            "fc_vcpu 0",
        ),
    ] {
        let rule = rule(which);
        let processes = [process(20, name, &[program], &[(thread, "2")])];
        assert!(is_vmm(&[&rule], name, program), "{program}");
        assert_eq!(vm(&[&rule], &processes, &cpus("2-3")).unwrap().threads.len(), 1);
    }
}

#[test]
fn a_guest_that_is_not_kvms_is_named_as_what_it_is() {
    for (thread, words) in [
        ("CPU 0/TCG", "QEMU emulates this guest"),
        ("ALL CPUs/TCG", "nothing can be isolated"),
        ("CPU 0/MSHV", "/dev/mshv"),
    ] {
        let why = why(&[process(20, "qemu-kvm", &QEMU, &[(thread, "2-3")])]);
        assert!(why.name() == "OtherAccelerator" && !why.may_pass(), "{why}");
        assert!(
            why.to_string().contains(words) && why.to_string().contains("1 thread"),
            "{why}"
        );
    }
    let emulated = AdoptRule {
        threads: ThreadName::parse("CPU {n}/TCG").unwrap(),
        ..rule(ReadyMade::Qemu)
    };
    let found = [process(20, "qemu-kvm", &["qemu-kvm"], &[("CPU 0/TCG", "2")])];
    assert_eq!(vm(&[&emulated], &found, &cpus("2-3")).unwrap().threads.len(), 1);
}

#[test]
fn of_several_rules_the_first_that_finds_a_vm_counts_else_the_reason_that_comes_closest() {
    let (first, second) = (rule(ReadyMade::Firecracker), rule(ReadyMade::Qemu));
    let found = [launcher()];
    let vm_of = |rules: &[&AdoptRule]| vm(rules, &found, &cpus("2-3")).map(|vm| vm.rule.name.clone());
    assert_eq!(vm_of(&[&first, &second]).unwrap(), "qemu");
    let waiting = [process(20, "qemu-kvm", &QEMU, &[])];
    let why = vm(&[&first, &second], &waiting, &cpus("2-3")).unwrap_err();
    assert!(why.name() == "NoVcpus" && why.may_pass(), "{why}");
}

/// Names and words as a pod may choose them: likely ones and any.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "qemu-kvm",
        "/usr/libexec/qemu-kvm",
        "firecracker",
        "-smp",
        "2",
        "4,cores=2",
        "1,maxcpus=4",
        "",
        "\u{fffd}",
    ];
    prop_oneof![3 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => "\\PC{0,20}"]
}

fn thread_name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..6u32).prop_map(|index| format!("CPU {index}/KVM")),
        1 => (0..6u32).prop_map(|index| format!("fc_vcpu {index}")),
        1 => "\\PC{0,15}",
        1 => Just("CPU 4294967295/KVM".to_owned()),
    ]
}

/// A process as words: its name, its command line, and threads with names and CPUs.
type Words = (String, Vec<String>, Vec<(String, BTreeSet<u32>)>);

fn processes() -> impl Strategy<Value = Vec<Process>> {
    let thread = (thread_name(), prop::collection::btree_set(0..8u32, 0..3));
    let one = (
        word(),
        prop::collection::vec(word(), 0..6),
        prop::collection::vec(thread, 0..6),
    );
    prop::collection::vec(one, 0..4).prop_map(|all| (1..).step_by(10).zip(all).map(made).collect())
}

fn made((id, (name, command, threads)): (i32, Words)) -> Process {
    let thread = |(place, (name, cpus)): (i32, (String, BTreeSet<u32>))| NamedThread {
        task: task(id + 1 + place),
        name,
        affinity: cpus.into_iter().collect(),
        has_run: place % 2 == 0,
    };
    Process {
        task: task(id),
        name,
        command,
        vcpus: (0..).zip(threads).map(thread).collect(),
    }
}

proptest! {
    #[test]
    fn whatever_a_pod_calls_its_threads_a_vm_is_whole_and_its_own(processes in processes(), exclusive in 0..64u64) {
        let exclusive: CpuSet = (0..6).filter(|cpu| exclusive >> cpu & 1 == 1).collect();
        let rules = [rule(ReadyMade::KubeVirt), rule(ReadyMade::Firecracker)];
        let rules: Vec<&AdoptRule> = rules.iter().collect();
        match vm(&rules, &processes, &exclusive) {
            Ok(vm) => {
                let process = processes.iter().find(|process| Some(process.task) == vm.vmm).unwrap();
                // Every index from 0 on, or of those that its command line says can be plugged; each a thread of the one process.
                let all = vm.threads.keys().copied().eq(0..u32::try_from(vm.threads.len()).unwrap());
                let most = guest::shape(&process.command).map_or(0, |shape| shape.most);
                prop_assert!(all || vm.threads.keys().all(|index| *index < most));
                prop_assert!(vm.guest.iter().map(|vcpu| vcpu.index).eq(vm.threads.keys().copied()));
                prop_assert!(is_vmm(&[&vm.rule], &process.name, &process.command[0]));
                for thread in vm.threads.values() {
                    prop_assert!(process.vcpus.iter().any(|own| own.task == *thread));
                }
                if let Some(pinned_cpus) = vm.wanted.pinned_cpus {
                    let used: CpuSet = pinned_cpus.values().copied().collect();
                    prop_assert!(used.is_subset(&exclusive) && used.len() == vm.threads.len());
                }
            }
            Err(why) => {
                let text = why.to_string();
                prop_assert!(!text.is_empty() && text.len() < 1000 && !text.contains(char::is_control), "{text}");
            }
        }
    }

    #[test]
    fn whatever_smp_says_a_guests_places_are_all_different(value in "[0-9a-z=,]{0,40}|([1-9],)?(sockets|cores|threads|dies|maxcpus)=[1-4](,(sockets|cores|threads|clusters)=[1-4]){0,3}") {
        let words = ["qemu-kvm", "-smp", &value].map(str::to_owned);
        if let Some(shape) = guest::shape(&words) {
            prop_assert!(1 <= shape.cpus && shape.cpus <= shape.most);
            let product = shape.sockets * shape.dies * shape.clusters * shape.cores * shape.threads;
            prop_assert_eq!(product, shape.most);
            let few = shape.most.min(64);
            let places: BTreeSet<_> = (0..few).map(|index| shape.place(index)).collect();
            prop_assert_eq!(places.len(), usize::try_from(few).unwrap());
        }
    }
}
