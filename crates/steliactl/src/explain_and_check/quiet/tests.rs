//! What is told of nodes that are quiet, that are not, and of which nothing is known.

use std::sync::Arc;

use super::*;
use crate::shared::daemon::node::testing::{PODS, node};
use crate::shared::output::Form;

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
    described.node.quiet = Arc::new(serde_json::from_str(text).unwrap());
    described
}

fn calm() -> Description {
    let mut described = noisy();
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining, report.problems) = Default::default();
    described
}

fn of(described: &Description) -> Quietness {
    quietness(described, None, |uid| (uid == PODS[0]).then_some(12))
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
    let told = quietness(&noisy(), Some(PODS[1]), |_| Some(0));
    let [vm] = told.vms.as_slice() else { panic!("{told:?}") };
    assert_eq!((vm.pod.pod_uid.as_str(), vm.interrupts_remaining.len()), (PODS[1], 1));
    // Of the node's problems and of its own, not of another VM's.
    assert_eq!(told.left(), "1 device interrupt, 1 kernel thread, 1 problem");
    assert_eq!(vm.interrupts_remaining[0].cpus.to_string(), "2");
}

#[test]
fn what_the_kernel_keeps_there_and_never_ran_is_listed_and_not_counted() {
    let mut described = calm();
    let text = r#"{"remaining": [{"irq": 34, "name": "virtio2-req.4", "cpus": "4", "why": "managed", "text": "", "count": 0}],
        "threads_remaining": [{"id": 23, "name": "kworker/R-xfs", "cpus": "4", "text": "Invalid argument"}]}"#;
    let quiet: Quiet = serde_json::from_str(text).unwrap();
    let report = &mut Arc::make_mut(&mut described.node.quiet).report;
    (report.remaining, report.threads_remaining) = (quiet.report.remaining, quiet.report.threads_remaining);
    let told = of(&described);
    assert_eq!(told.failure(), None);
    assert!(told.text(TextStyle::from(true)).contains("virtio2-req.4"));
}

#[test]
fn where_nothing_is_left_it_says_so_and_succeeds() {
    let told = quietness(&calm(), None, |_| Some(0));
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
    assert!(
        text.contains("not known: steliad-quiet does not answer?[2J.\n"),
        "{text}"
    );

    let starting = of(&node());
    assert_eq!(
        starting.failure().unwrap(),
        "what is left is not known: steliad has just started"
    );
    assert!(
        starting
            .text(TextStyle::from(true))
            .ends_with("What is left is not known: steliad has just started.\n")
    );
}

#[test]
fn where_it_is_switched_off_nothing_is_promised() {
    let mut described = calm();
    Arc::make_mut(&mut described.node.quiet).steering = "off".to_owned();
    let told = of(&described);
    assert_eq!(told.failure(), None);
    let text = told.text(TextStyle::from(true));
    assert!(
        text.contains("irq-steering is off: no interrupt is moved") && !text.contains("Nothing is left"),
        "{text}"
    );
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
    fn headings<T>(columns: &[crate::shared::output::Column<T>]) -> Vec<&'static str> {
        columns.iter().map(crate::shared::output::Column::heading).collect()
    }
    let explained = |part| crate::shared::output::manual::explained("COLUMNS", Some(part));
    assert_eq!(explained("quiet"), headings(&text::COLUMNS));
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
