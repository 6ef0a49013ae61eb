use std::path::Path;

use serde_json::json;
use stelia_kubelet::PodName;

use super::*;
use crate::shared::daemon::node::testing::{PODS, instance_mut, node};
use crate::tests::fixtures::{block_on, says};

/// The node of `node::testing`, whose first VM has a name and a thread.
fn report() -> Report {
    let mut description = node();
    let instance = instance_mut(&mut description, PODS[0]);
    instance.pod_name = PodName::new("shop", "db-0");
    let thread = Thread {
        role: "vcpu",
        index: Some(0),
        pid: 60,
        tid: 70,
        name: "CPU 0/KVM\x1b[2J".to_owned(),
        cgroup: "vcpu".to_owned(),
        allowed_cpus: "4".to_owned(),
        ran_on: CpuSet::from_iter([4]),
        cpu_share: Some(0.25),
    };
    let vms = description.node.instances.iter().map(|(uid, instance)| VmReport {
        pod_uid: uid.to_string(),
        threads: if uid.as_str() == PODS[0] {
            vec![thread.clone()]
        } else {
            Vec::new()
        },
        locality: None,
        instance: instance.clone(),
    });
    Report {
        time_us: 1_735_689_599_000_000,
        host: Host {
            hostname: "gpu3".to_owned(),
            kernel: "6.12.1".to_owned(),
            ..Host::default()
        },
        status: Some(Status::of(&description)),
        kubelet_config: json!({
            "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "featureGates": {},
        }),
        numa_nodes: numa_nodes(&description),
        other_pods: other_pods(&description),
        vms: vms.collect(),
        verify: None,
        quiet: None,
        ledger: None,
        doctor: None,
        configuration: "irq-steering = \"shared\"\n".to_owned(),
        journal: String::new(),
        missing: vec!["devices of VFIO: only root".to_owned()],
    }
}

#[test]
fn the_text_has_every_section_and_no_control_characters() {
    let text = report().text(TextStyle::from(true));
    let parts = [
        "Host:       gpu3\nTime:       2024-12-31T23:59:59.000000Z\n",
        "== CPUs by NUMA node ==\nNODE  SOCKET  EXCLUSIVE  OTHER PODS  SHARED  RESERVED  UNASSIGNED\n\
         0     0       2          -           3       0-1       -\n\
         1     1       4-5        6           7       -         -\n",
        "== kubelet's configuration ==\ncpuManagerPolicy:         static\n\
         cpuManagerPolicyOptions:  full-pcpus-only=true\n",
        "== Exclusive CPUs of pods that are not VMs ==\nPOD UID                               CONTAINER  CPUS\ncccccccc-0000-4000-8000-000000000000  db         6\n",
        "== VM bbbbbbbb-0000-4000-8000-000000000000 ==\n",
        "Degraded:            kubelet gave CPU 2 away\n",
        "== VM shop/db-0 ==\nPod UID:             aaaaaaaa-0000-4000-8000-000000000000\n",
        "ROLE    PID  TID  THREAD_NAME    CGROUP  ALLOWED_CPUS  RAN_ON  CPU%\n\
         vcpu 0  60   70   CPU 0/KVM?[2J  vcpu    4             4         25\n",
        "== Settings of steliad ==\nirq-steering = \"shared\"\n",
        "== Not in this report ==\ndevices of VFIO: only root\n",
    ];
    let mut rest = text.as_str();
    for part in parts {
        let (_, after) = rest
            .split_once(part)
            .unwrap_or_else(|| panic!("{part}\nis not in\n{rest}"));
        rest = after;
    }
    assert!(!text.contains("featureGates") && !text.contains('\x1b'), "{text}");
}

#[test]
fn the_json_has_the_names_of_the_description() {
    let json = serde_json::to_value(report()).unwrap();
    let vm = &json["vms"][0];
    let named = ["pod_uid", "pod_namespace", "pod_name", "exclusive"].map(|name| vm[name].as_str().unwrap());
    assert_eq!(named, [PODS[0], "shop", "db-0", "4-5"]);
    assert_eq!(
        (&vm["threads"][0]["ran_on"], &vm["threads"][0]["cpu_share"]),
        (&json!("4"), &json!(0.25))
    );
    assert_eq!((&json["verify"], &vm["locality"]), (&Value::Null, &Value::Null));
    assert_eq!(json["numa_nodes"][1]["pods"], "6");
}

#[test]
fn files_that_only_root_may_list_are_told() {
    let process = |pid: i32| Process {
        pid,
        container_pid: None,
        name: String::new(),
        threads: Vec::new(),
    };
    let own = std::process::id().cast_signed();
    assert!(!hides_files(Path::new("/proc"), &process(own)));
    // A process that has ended hides nothing.
    assert!(!hides_files(Path::new("/nonexistent"), &process(own)));
}

#[test]
fn without_the_daemon_it_has_what_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    ledger::testing::ring_at(&root.path().join("var/lib/stelia/ledger"));
    let client = Err(Failure::Other("steliad does not run".to_owned()));
    let roots = Roots::below(root.path());
    let report = block_on(gather(client, &roots, root.path(), Duration::from_millis(1)));
    let text = report.text(TextStyle::from(true));
    assert!(text.contains("== Fitness of the node ==\nCHECK "), "{text}");
    says(&text, &["\nwhat the daemon knows: steliad does not run\n"]);
    assert!(!text.contains("== Node =="), "{text}");
    // No kubelet runs below this directory.
    assert!(text.contains("\nkubelet's configuration: "), "{text}");
    assert!(text.contains("\n== Ledger ==\n"), "{text}");
}

#[test]
fn every_column_of_the_threads_is_explained() {
    let headings: Vec<&str> = text::THREADS.iter().map(|column| column.heading()).collect();
    let explained = output::manual::explained("COLUMNS", Some("report: threads"));
    assert_eq!(explained, headings);
}
