//! What is told of nodes that are quiet, that are not, and of which nothing is known.

use std::sync::Arc;

use stelia_api::{Reason, ReasonCode};

use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node, quiet};
use crate::shared::output::Form;
use crate::tests::fixtures::{headings, never_says, says};

/// VM a has CPUs 4-5, VM b CPU 2; an NVMe queue and a NIC are left on CPUs of both, a thread on a's.
fn noisy() -> Description {
    let mut described = node();
    let text = r#"{"steering": "shared", "answered_us": 1735689599000000, "interrupts": 40, "moved": 12, "writes": 3,
        "remaining": [
            {"irq": 130, "name": "nvme0q3", "cpus": "2,4", "why": "managed", "text": "", "count": 17},
            {"irq": 31, "name": "eth0-TxRx-1", "cpus": "5", "why": "no-vector", "text": "No space left on device", "count": 900}],
        "irqbalance": "told", "threads_moved": 2,
        "threads_remaining": [{"id": 99, "name": "napi/eth0-1", "cpus": "0-7", "text": "Invalid argument"}],
        "problems": [{"pod": "", "text": "read /proc/irq: Permission denied"},
            {"pod": "aaaaaaaa-0000-4000-8000-000000000000", "text": "write \"20\" to pm_qos_resume_latency_us: I/O error"}]}"#;
    described.node.quiet = Arc::new(quiet(text));
    described
}

fn calm() -> Description {
    let mut described = noisy();
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining, report.problems) = Default::default();
    described
}

/// With this many device interrupts a second, and since the VMs are isolated.
fn read(described: &Description, pod: Option<&str>, rate: Option<u64>, since_isolated: Option<u64>) -> Quietness {
    let measured = Measured {
        rate: |_: &str| rate,
        since_isolated: |_: &str| since_isolated,
        booted: CpuSet::new(),
    };
    let selected = pod.map(|pod| BTreeSet::from([pod.to_owned()]));
    quietness(described, selected.as_ref(), &measured)
}

fn of(described: &Description) -> Quietness {
    let measured = Measured {
        rate: |uid: &str| (uid == PODS[0]).then_some(12),
        since_isolated: |_: &str| None,
        booted: CpuSet::new(),
    };
    quietness(described, None, &measured)
}

#[test]
fn where_device_interrupts_cannot_be_counted_it_is_unknown_whether_they_fire() {
    let told = read(&calm(), None, None, None);
    assert!(told.failure().unwrap().ends_with("they could not be counted"));
    let text = told.text(TextStyle::from(true));
    says(&text, &["they could not be counted.\n"]);
    never_says(&text, &["Nothing is left"]);
    // The ledger has counted them, or nothing is promised.
    assert_eq!(read(&calm(), None, None, Some(0)).failure(), None);
    let mut off = calm();
    Arc::make_mut(&mut off.node.quiet).steering = "off".to_owned();
    assert_eq!(read(&off, None, None, None).failure(), None);
}

#[test]
fn what_is_left_is_told_by_vm_with_its_cure() {
    let told = of(&noisy());
    insta::assert_snapshot!(told.text(TextStyle::from(true)));
    assert_eq!(
        told.failure().unwrap(),
        "on CPUs of VMs are left: 2 device interrupts, 1 kernel thread, 2 problems"
    );
}

#[test]
fn of_one_vm_only_what_reaches_its_cpus_is_told() {
    let told = read(&noisy(), Some(PODS[1]), Some(0), None);
    let [vm] = told.vms.as_slice() else { panic!("{told:?}") };
    assert_eq!((vm.pod.pod_uid.as_str(), vm.interrupts_remaining.len()), (PODS[1], 1));
    // Of the node's problems and of its own, not of another VM's.
    assert_eq!(told.left(), "1 device interrupt, 1 kernel thread, 1 problem");
    assert_eq!(vm.interrupts_remaining[0].cpus.to_string(), "2");
}

#[test]
fn what_the_kernel_keeps_there_and_never_ran_is_not_left_and_shown_only_on_demand() {
    let mut described = calm();
    let text = r#"{"remaining": [{"irq": 34, "name": "virtio2-req.4", "cpus": "4", "why": "managed", "text": "", "count": 0}],
        "threads_remaining": [{"id": 23, "name": "kworker/R-xfs", "cpus": "4", "text": "Invalid argument"}]}"#;
    let quiet = quiet(text);
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining) = (quiet.report.remaining, quiet.report.threads_remaining);
    let told = of(&described);
    assert_eq!(told.failure(), None);
    let text = told.text(TextStyle::from(true));
    assert!(
        text.ends_with(
            "Nothing is left.\nNot shown, because harmless: 1 interrupt that does not fire there, 1 rescuer thread (-o wide shows them).\n"
        ),
        "{text}"
    );
    let wide = told.text(TextStyle {
        wide: true,
        ..TextStyle::from(true)
    });
    says(&wide, &["virtio2-req.4", "nothing: it does not fire there"]);
    assert!(wide.contains("kworker/R-xfs") && !wide.contains("Not shown"), "{wide}");
}

#[test]
fn what_fired_before_the_vm_was_isolated_is_not_left() {
    let left = |since_isolated| {
        let told = read(&noisy(), None, Some(0), since_isolated);
        told.vms[0]
            .interrupts_remaining
            .iter()
            .map(|one| one.left)
            .collect::<Vec<_>>()
    };
    // The daemon reports the second one, whose mask should have been written.
    assert_eq!(left(Some(0)), [false, true]);
    for since_isolated in [Some(1), None] {
        assert_eq!(left(since_isolated), [true, true], "{since_isolated:?}");
    }
    // It fires again and again: the daemon reports it.
    let mut described = noisy();
    let text = "interrupt 130 (nvme0q3) reaches the CPUs 2,4: the kernel places it and lets nobody else";
    let reason = Reason::of_node(ReasonCode::Interrupts, text);
    instance_mut(&mut described, PODS[0]).degraded = vec![reason];
    let told = read(&described, None, Some(0), Some(0));
    assert!(told.vms[0].interrupts_remaining[0].left);
}

#[test]
fn nothing_is_advised_that_is_done_already() {
    let measured = Measured {
        rate: |_: &str| Some(0),
        since_isolated: |_: &str| Some(3),
        booted: "2-7".parse().unwrap(),
    };
    let told = quietness(&noisy(), None, &measured);
    let cure = told.vms[0].interrupts_remaining[0].cure;
    assert!(cure.starts_with("fewer queues"), "{cure}");
}

#[test]
fn where_nothing_is_left_it_says_so_and_succeeds() {
    let told = read(&calm(), None, Some(0), None);
    assert_eq!(told.failure(), None);
    let text = told.text(TextStyle::from(true));
    assert!(
        text.ends_with(
            "\n12 of 40 device interrupts moved; irqbalance has the list of the VMs' CPUs; 2 kernel threads moved. Nothing is left.\n"
        ),
        "{text}"
    );
    assert!(!told.text(TextStyle::from(false)).contains("Nothing"), "{text}");
}

#[test]
fn what_is_not_known_is_not_called_quiet() {
    let mut described = calm();
    Arc::make_mut(&mut described.node.quiet).problem = Some("steliad-quiet does not answer\x1b[2J".to_owned());
    let told = of(&described);
    assert!(told.failure().unwrap().starts_with("what is left is not known: "));
    let text = told.text(TextStyle::from(true));
    says(&text, &["not known: steliad-quiet does not answer?[2J.\n"]);

    // No daemon says when the answer comes: that it is missing is all that is known.
    let mut waiting = calm();
    let quiet = Arc::make_mut(&mut waiting.node.quiet);
    (quiet.answered_us, quiet.report) = Default::default();
    for described in [node(), waiting] {
        let silent = of(&described);
        assert_eq!(
            silent.failure().unwrap(),
            "what is left is not known: steliad-quiet has not reported interrupts yet"
        );
        let text = silent.text(TextStyle::from(true));
        assert!(
            text.ends_with("What is left is not known: steliad-quiet has not reported interrupts yet.\n"),
            "{text}"
        );
        // Where nothing is known no zero is printed.
        let row = text.lines().find(|line| line.starts_with(PODS[1])).unwrap();
        assert_eq!(row.split_whitespace().skip(2).collect::<Vec<_>>(), ["-"; 5], "{text}");
    }
}

#[test]
fn where_it_is_switched_off_nothing_is_promised() {
    let mut described = calm();
    Arc::make_mut(&mut described.node.quiet).steering = "off".to_owned();
    let told = of(&described);
    assert_eq!(told.failure(), None);
    let text = told.text(TextStyle::from(true));
    says(&text, &["irq-steering is off: no interrupt is moved"]);
    never_says(&text, &["Nothing is left"]);
}

#[test]
fn a_node_without_vms_says_so() {
    let mut described = calm();
    described.node.instances.clear();
    assert!(
        of(&described)
            .text(TextStyle::from(true))
            .starts_with("No VM has CPUs of its own.\n")
    );
}

#[test]
fn every_column_is_explained() {
    let explained = |part| crate::shared::output::manual::explained("COLUMNS", Some(part));
    assert_eq!(explained("quiet"), headings(&text::VMS));
    assert_eq!(explained("quiet: interrupts"), headings(&text::interrupts()));
    assert_eq!(explained("quiet: threads"), headings(&text::threads()));
}

#[test]
fn json_names_each_and_its_reason() {
    let json: serde_json::Value = serde_json::from_str(&Form::Json.write(&of(&noisy())).unwrap()).unwrap();
    let vm = &json["vms"][0];
    assert_eq!(
        (&vm["pod_uid"], &vm["device_interrupts_per_second"], &json["irqbalance"]),
        (&PODS[0].into(), &12.into(), &"told".into())
    );
    assert_eq!(vm["interrupts_remaining"][1]["reason"], "no-vector");
    assert_eq!(json["vms"][1]["device_interrupts_per_second"], serde_json::Value::Null);
}

#[test]
fn before_steliad_quiet_has_reported_nothing_is_said_to_be_done() {
    let mut described = calm();
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.interrupts, report.moved) = (0, 0);
    let text = read(&described, None, Some(0), Some(0)).text(TextStyle::from(true));
    assert!(
        text.ends_with("\nsteliad-quiet has not reported yet which device interrupts it moved.\n"),
        "{text}"
    );
}

#[test]
fn what_disturbs_most_is_the_first_row() {
    let told = of(&noisy());
    let loud = told.vms[0].clone();
    let named = |name: &str, vm: &Vm| Vm {
        pod: Pod::unnamed(name),
        ..vm.clone()
    };
    let zeros = Vm {
        device_interrupts_per_second: Some(0),
        device_interrupts_since_isolated: Some(0),
        interrupts_remaining: Vec::new(),
        threads_remaining: Vec::new(),
        problems: Vec::new(),
        ..loud.clone()
    };
    let some = Vm {
        device_interrupts_per_second: Some(3),
        ..zeros.clone()
    };
    let mut vms: Vec<Vm> = ["a", "b", "c", "d"].map(|name| named(name, &zeros)).into();
    vms.extend([named("e", &some), named("f", &loud)]);
    let many = Quietness { vms, ..told };
    let text = many.text(TextStyle::from(true));
    let rows = text.lines().skip(1).take_while(|line| !line.is_empty());
    let rows: Vec<&str> = rows.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(rows, ["f", "e", "a", "b", "c", "d"]);
}
