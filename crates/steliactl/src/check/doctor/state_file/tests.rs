use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::cli::Command;
use crate::shared::daemon::Failure;
use crate::tests::fixtures::{cli, holds, pod};

const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

/// Runs a command line as `main` does.
fn steliactl(line: &[&str], pods: &Pods) -> Result<String, Failure> {
    let cli = cli(&[&["doctor", "--kubelet-state"], line].concat());
    let Command::Doctor { kubelet_state } = cli.asked() else {
        panic!("{:?}", cli.asked())
    };
    let file = kubelet_state.as_deref().unwrap();
    cli.output_options()?.print(&gather(file, pods))
}

fn text(file: &str) -> String {
    steliactl(&[&format!("{FOLDER}/{file}")], &Pods::default()).unwrap()
}

fn json(file: &str) -> Value {
    let text = steliactl(&[&format!("{FOLDER}/{file}"), "--json"], &Pods::default());
    serde_json::from_str(&text.unwrap()).unwrap()
}

#[test]
fn a_file_of_the_cpu_manager_has_the_names_of_pods() {
    let web = pod("33333333-aaaa-4bbb-8ccc-000000000003", "team-a/web-0");
    let path = format!("{FOLDER}/k136-gate-on/05a-podlevel-podscope/cpu_manager_state");
    let text = steliactl(&[&path], &Pods::from_iter([web])).unwrap();
    insta::assert_snapshot!(text, @r"
    File:         ../../tests/data/kubelet-checkpoints/k136-gate-on/05a-podlevel-podscope/cpu_manager_state
    Schema:       V3
    Policy:       static
    Default set:  0,17-64,81-127
    Shared pool:  0,17-64,81-127
    Usable:       yes

    POD                                   CONTAINER  CPUS
    33333333-aaaa-4bbb-8ccc-000000000001  instance   1-8,65-72
    33333333-aaaa-4bbb-8ccc-000000000001  dnsmasq    9-10,73-74
    33333333-aaaa-4bbb-8ccc-000000000001  virtiofsd  9-10,73-74
    33333333-aaaa-4bbb-8ccc-000000000002  instance   11-12,75-76
    team-a/web-0                          init       13-14,77-78
    team-a/web-0                          side       13,77
    team-a/web-0                          instance   14-15,78-79
    team-a/web-0                          helper     16,80

    POD                                   POD CPUS     SHARED IN POD
    33333333-aaaa-4bbb-8ccc-000000000001  1-10,65-74   9-10,73-74
    team-a/web-0                          13-16,77-80  -
    ");
}

#[test]
fn a_file_of_the_memory_manager_is_a_table_of_nodes_and_one_of_pods() {
    insta::assert_snapshot!(text("k136-gate-on/05a-podlevel-podscope/memory_manager_state"), @r"
    File:    ../../tests/data/kubelet-checkpoints/k136-gate-on/05a-podlevel-podscope/memory_manager_state
    Schema:  V2
    Policy:  Static

    NODE  WITH NODES  TYPE           TOTAL BYTES   SYSTEM      ALLOCATABLE   RESERVED     FREE
    0     0-1         hugepages-2Mi  116500987904  0           116500987904  0            116500987904
    0     0-1         memory         137438953472  2147483648  18790481920   18790481920  0
    1     0-1         hugepages-2Mi  115964116992  0           115964116992  0            115964116992
    1     0-1         memory         137438953472  2147483648  19327352832   17716740096  1610612736

    POD                                   CONTAINER  NODES  TYPE    BYTES
    33333333-aaaa-4bbb-8ccc-000000000001  dnsmasq    0-1    memory  8589934592
    33333333-aaaa-4bbb-8ccc-000000000001  instance   0-1    memory  17179869184
    33333333-aaaa-4bbb-8ccc-000000000001  virtiofsd  0-1    memory  8589934592
    33333333-aaaa-4bbb-8ccc-000000000002  instance   0-1    memory  2147483648
    33333333-aaaa-4bbb-8ccc-000000000003  helper     0-1    memory  3221225472
    33333333-aaaa-4bbb-8ccc-000000000003  init       0-1    memory  1073741824
    33333333-aaaa-4bbb-8ccc-000000000003  instance   0-1    memory  4294967296
    33333333-aaaa-4bbb-8ccc-000000000003  side       0-1    memory  1073741824
    33333333-aaaa-4bbb-8ccc-000000000001  -          0-1    memory  25769803776
    33333333-aaaa-4bbb-8ccc-000000000003  -          0-1    memory  8589934592
    ");
}

#[test]
fn json_has_a_name_for_everything() {
    let pod = json!({ "pod_uid": "ce32ebd2-f905-449e-b74b-4231a84b88e1", "pod_namespace": "", "pod_name": "" });
    let of_pod = |members: Value| {
        let mut all = pod.clone();
        all.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        all
    };
    let file = "k136-gate-off/03a-vm40/cpu_manager_state";
    let cpus = json!({
        "file": format!("{FOLDER}/{file}"), "schema": "V2", "policy": "static",
        "default_cpus": "0,21-64,85-127", "shared_pool": "0,21-64,85-127", "usable": true, "reason": "", "unknown_keys": [],
        "entries": [of_pod(json!({ "container": "instance", "cpus": "1-20,65-84" }))], "pod_entries": [],
    });
    assert_eq!(json(file), json!({ "cpu_manager": cpus }));

    let memory = &json("k136-gate-off/03a-vm40/memory_manager_state")["memory_manager"];
    let blocks = json!([
        { "nodes": "0", "type": "memory", "size_bytes": 8_589_934_592u64 },
        { "nodes": "0", "type": "hugepages-2Mi", "size_bytes": 85_899_345_920u64 },
    ]);
    assert_eq!(
        memory["entries"],
        json!([of_pod(json!({ "container": "instance", "blocks": blocks }))])
    );
    let table = json!({
        "total_bytes": 137_438_953_472u64, "system_reserved_bytes": 2_147_483_648u64, "allocatable_bytes": 18_790_481_920u64,
        "reserved_bytes": 8_589_934_592u64, "free_bytes": 10_200_547_328u64
    });
    holds(
        &memory["nodes"][0],
        json!({"/node": 0, "/assignments": 2, "/with_nodes": "0", "/memory/memory": table}),
    );
}

#[test]
fn json_of_the_oldest_and_the_newest_schemas_has_ids_and_pods() {
    let old = json("legacy/v0-statefile/cpu_manager_state");
    assert_eq!(
        old["cpu_manager"]["entries"],
        json!([{ "container_id": "0c5a1bd3a8c1", "cpus": "1-2" }])
    );
    let new = &json("rebuilt-1.37/05a-podlevel-podscope/cpu_manager_state")["cpu_manager"];
    let pod = json!({
        "pod_namespace": "", "pod_name": "", "pod_uid": "33333333-aaaa-4bbb-8ccc-000000000001", "cpus": "1-10,65-74", "shared_pool": "9-10,73-74"
    });
    assert_eq!([&new["schema"], &new["pod_entries"][0]], [&json!("V4"), &pod]);
    let memory = json("rebuilt-1.37/05a-podlevel-podscope/memory_manager_state");
    let block = json!({ "nodes": "0-1", "type": "memory", "size_bytes": 25_769_803_776u64 });
    assert_eq!(memory["memory_manager"]["pod_entries"][0]["blocks"], json!([block]));
}

#[test]
fn the_kind_of_a_file_is_told_by_its_name_or_content() {
    let copied = TempDir::new().unwrap();
    let copy = copied.path().join("copy");
    let v3 = format!("{FOLDER}/rebuilt-1.37/05a-podlevel-podscope/memory_manager_state");
    fs::copy(v3, &copy).unwrap();
    assert!(matches!(gather(&copy, &Pods::default()), StateFile::MemoryManager(_)));
    for (file, kind) in [
        ("legacy/v1/cpu_manager_state", "cpu_manager"),
        ("write-sequence/gate-off/036.json", "cpu_manager"),
        ("k136-gate-off/00-none/memory_manager_state", "memory_manager"),
        ("hash-strings/mem-v1.json", "memory_manager"),
    ] {
        assert!(json(file)[kind].is_object(), "{file}");
    }
}

#[test]
fn a_file_that_steliad_cannot_work_with_is_told_with_the_reason() {
    for (file, reason) in [
        (
            "k136-gate-off/00-none/cpu_manager_state",
            "the CPU manager policy is \"none\", not \"static\": no container has CPUs of its own",
        ),
        (
            "write-sequence/gate-off/002.json",
            "the shared pool is empty: there is nowhere to float",
        ),
        ("legacy/v1/cpu_manager_state", ""),
    ] {
        let cpus = &json(file)["cpu_manager"];
        assert_eq!(
            [&cpus["usable"], &cpus["reason"]],
            [&json!(reason.is_empty()), &json!(reason)]
        );
    }
}

#[test]
fn a_file_that_is_absent_or_empty_or_wrong_is_refused_with_the_reason() {
    let folder = TempDir::new().unwrap();
    for (name, text, error) in [
        ("cpu_manager_state", Some(""), "the file is empty"),
        (
            "other",
            Some(r#"{"policyName":"static"}"#),
            "the file is of no known schema: missing field",
        ),
        (
            "checksum",
            Some(r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#),
            "the file has checksum 1, its content gives 1353318690",
        ),
        ("memory_manager_state", None, "there is no such file"),
    ] {
        let path = folder.path().join(name);
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let path = path.to_str().unwrap();
        let refused = |line: &[&str]| match steliactl(line, &Pods::default()).unwrap_err() {
            Failure::Partial { printed, reason } => {
                // The reason is said once, in the answer.
                assert_eq!(reason, format!("{path} cannot be used"));
                printed
            }
            other => panic!("{other:?}"),
        };
        let printed = refused(&[path]);
        assert!(
            printed.starts_with(&format!("File:    {path}\nUsable:  no: {error}")),
            "{printed}"
        );
        assert_eq!(printed.contains("\nCure:    "), text.is_some(), "{printed}");
        let value: Value = serde_json::from_str(&refused(&[path, "--json"])).unwrap();
        let mut members = value.as_object().unwrap().values();
        assert!(
            members.next().unwrap()["error"].as_str().unwrap().starts_with(error),
            "{value}"
        );
    }
}
