use std::fs;

use clap::Parser;
use tempfile::TempDir;

use super::*;
use crate::cli::{Cli, Command};

const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

/// Runs a command line as `main` does, without a bus.
fn steliactl(line: &[&str]) -> Result<String, Failure> {
    let cli = Cli::try_parse_from([&["steliactl", "kubelet-state"], line].concat()).unwrap();
    match &cli.command {
        Command::KubeletState { path } => cli.output_options()?.print(&gather(path.as_deref(), Pods::default())?),
        other => panic!("{other:?}"),
    }
}

fn refused(line: &[&str]) -> (String, String) {
    let failure = steliactl(line).unwrap_err();
    assert_eq!(failure.exit_code(), 1);
    let Failure::Partial { printed, reason } = failure else {
        panic!("{failure:?}")
    };
    (printed, reason)
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn a_folder_is_both_files() {
    let text = steliactl(&[&format!("{FOLDER}/k136-gate-on/05a-podlevel-podscope")]).unwrap();
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
    33333333-aaaa-4bbb-8ccc-000000000003  init       13-14,77-78
    33333333-aaaa-4bbb-8ccc-000000000003  side       13,77
    33333333-aaaa-4bbb-8ccc-000000000003  instance   14-15,78-79
    33333333-aaaa-4bbb-8ccc-000000000003  helper     16,80

    POD                                   POD CPUS     SHARED IN POD
    33333333-aaaa-4bbb-8ccc-000000000001  1-10,65-74   9-10,73-74
    33333333-aaaa-4bbb-8ccc-000000000003  13-16,77-80  -

    File:    ../../tests/data/kubelet-checkpoints/k136-gate-on/05a-podlevel-podscope/memory_manager_state
    Schema:  V2
    Policy:  Static

    NODE  WITH NODES  TYPE           TOTAL BYTES   SYSTEM      ALLOCATABLE   RESERVED     FREE
    0     0,1         hugepages-2Mi  116500987904  0           116500987904  0            116500987904
    0     0,1         memory         137438953472  2147483648  18790481920   18790481920  0
    1     0,1         hugepages-2Mi  115964116992  0           115964116992  0            115964116992
    1     0,1         memory         137438953472  2147483648  19327352832   17716740096  1610612736

    POD                                   CONTAINER  NODES  TYPE    BYTES
    33333333-aaaa-4bbb-8ccc-000000000001  dnsmasq    0,1    memory  8589934592
    33333333-aaaa-4bbb-8ccc-000000000001  instance   0,1    memory  17179869184
    33333333-aaaa-4bbb-8ccc-000000000001  virtiofsd  0,1    memory  8589934592
    33333333-aaaa-4bbb-8ccc-000000000002  instance   0,1    memory  2147483648
    33333333-aaaa-4bbb-8ccc-000000000003  helper     0,1    memory  3221225472
    33333333-aaaa-4bbb-8ccc-000000000003  init       0,1    memory  1073741824
    33333333-aaaa-4bbb-8ccc-000000000003  instance   0,1    memory  4294967296
    33333333-aaaa-4bbb-8ccc-000000000003  side       0,1    memory  1073741824
    33333333-aaaa-4bbb-8ccc-000000000001  -          0,1    memory  25769803776
    33333333-aaaa-4bbb-8ccc-000000000003  -          0,1    memory  8589934592
    ");
}

#[test]
fn a_pod_that_the_daemon_knows_has_its_name_in_both_tables() {
    let web = Pod {
        pod_uid: "33333333-aaaa-4bbb-8ccc-000000000003".to_owned(),
        pod_namespace: "team-a".to_owned(),
        pod_name: "web-0".to_owned(),
    };
    let path = format!("{FOLDER}/k136-gate-on/05a-podlevel-podscope");
    let files = gather(Some(Path::new(&path)), Pods::from_iter([web])).unwrap();
    let text = files.text(TextStyle::from(true));
    let rows = text.lines().filter(|line| line.starts_with("team-a/web-0 "));
    assert_eq!(rows.count(), 10, "{text}");
    assert!(!text.contains("8ccc-000000000003"), "{text}");
    assert!(text.contains("33333333-aaaa-4bbb-8ccc-000000000001"), "{text}");
}

#[test]
fn json_has_a_name_for_everything() {
    let text = steliactl(&["--json", &format!("{FOLDER}/k136-gate-off/03a-vm40")]).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let pod = "ce32ebd2-f905-449e-b74b-4231a84b88e1";
    let cpu = serde_json::json!({
        "file": format!("{FOLDER}/k136-gate-off/03a-vm40/cpu_manager_state"),
        "schema": "V2",
        "policy": "static",
        "default_cpus": "0,21-64,85-127",
        "shared_pool": "0,21-64,85-127",
        "unknown_keys": [], "usable": true,
        "reason": "",
        "entries": [{ "pod_uid": pod, "pod_namespace": "", "pod_name": "", "container": "instance", "cpus": "1-20,65-84" }],
        "pod_entries": [],
    });
    assert_eq!(value["cpu_manager"], cpu);
    let memory = &value["memory_manager"];
    assert_eq!((&memory["schema"], &memory["policy"]), (&"V1".into(), &"Static".into()));
    let blocks = serde_json::json!([
        { "nodes": "0", "type": "memory", "size_bytes": 8_589_934_592u64 },
        { "nodes": "0", "type": "hugepages-2Mi", "size_bytes": 85_899_345_920u64 },
    ]);
    assert_eq!(
        memory["entries"],
        serde_json::json!([{ "pod_uid": pod, "pod_namespace": "", "pod_name": "", "container": "instance", "blocks": blocks }])
    );
    let node = &memory["nodes"][0];
    assert_eq!(
        (&node["node"], &node["assignments"], &node["with_nodes"]),
        (&0.into(), &2.into(), &"0".into())
    );
    let table = serde_json::json!({
        "total_bytes": 137_438_953_472u64, "system_reserved_bytes": 2_147_483_648u64, "allocatable_bytes": 18_790_481_920u64,
        "reserved_bytes": 8_589_934_592u64, "free_bytes": 10_200_547_328u64
    });
    assert_eq!(node["memory"]["memory"], table);
}

#[test]
fn json_of_the_oldest_and_the_newest_schemas_has_ids_and_pods() {
    let value = |line: &str| -> Value {
        serde_json::from_str(&steliactl(&["--json", &format!("{FOLDER}/{line}")]).unwrap()).unwrap()
    };
    let old = value("legacy/v0-statefile");
    assert_eq!(
        old["cpu_manager"]["entries"],
        serde_json::json!([{ "container_id": "0c5a1bd3a8c1", "cpus": "1-2" }])
    );
    assert_eq!(old["memory_manager"], Value::Null);
    let new = value("rebuilt-1.37/05a-podlevel-podscope");
    let pod = serde_json::json!({
        "pod_namespace": "", "pod_name": "", "pod_uid": "33333333-aaaa-4bbb-8ccc-000000000001", "cpus": "1-10,65-74", "shared_pool": "9-10,73-74"
    });
    assert_eq!(
        (&new["cpu_manager"]["schema"], &new["cpu_manager"]["pod_entries"][0]),
        (&"V4".into(), &pod)
    );
    let block = serde_json::json!({ "nodes": "0-1", "type": "memory", "size_bytes": 25_769_803_776u64 });
    assert_eq!(
        new["memory_manager"]["pod_entries"][0]["blocks"],
        serde_json::json!([block])
    );
}

#[test]
fn the_kind_of_a_file_is_told_by_its_name_or_content() {
    let kind = |path: &str| {
        let value: Value = serde_json::from_str(&steliactl(&[path, "--json"]).unwrap()).unwrap();
        (value["cpu_manager"].is_object(), value["memory_manager"].is_object())
    };
    let (cpu, memory) = ((true, false), (false, true));
    assert_eq!(kind(&format!("{FOLDER}/legacy/v1/cpu_manager_state")), cpu);
    assert_eq!(kind(&format!("{FOLDER}/write-sequence/gate-off/036.json")), cpu);
    assert_eq!(
        kind(&format!("{FOLDER}/k136-gate-off/00-none/memory_manager_state")),
        memory
    );
    assert_eq!(kind(&format!("{FOLDER}/hash-strings/mem-v1.json")), memory);
    let v3 = fs::read_to_string(format!(
        "{FOLDER}/rebuilt-1.37/05a-podlevel-podscope/memory_manager_state"
    ))
    .unwrap();
    let copied = folder(&[("copy", &v3)]);
    assert_eq!(kind(copied.path().join("copy").to_str().unwrap()), memory);
}

#[test]
fn without_a_legend_and_without_pods_only_the_lines_are_left() {
    let path = format!("{FOLDER}/k136-gate-off/01-static-empty/cpu_manager_state");
    let expected = format!(
        "File:         {path}\nSchema:       V2\nPolicy:       static\nDefault set:  0-127\n\
         Shared pool:  0-127\nUsable:       yes\n"
    );
    assert_eq!(steliactl(&[&path, "--no-legend"]).unwrap(), expected);
}

#[test]
fn a_file_that_steliad_cannot_work_with_is_told_with_the_reason() {
    let usable = |path: &str| {
        let text = steliactl(&[&format!("{FOLDER}/{path}")]).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("Usable:"))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(
        usable("k136-gate-off/00-none/cpu_manager_state"),
        "no: the CPU manager policy is \"none\", not \"static\": no container has CPUs of its own"
    );
    assert_eq!(
        usable("write-sequence/gate-off/002.json"),
        "no: the shared pool is empty: there is nowhere to float"
    );
    assert_eq!(usable("legacy/v1/cpu_manager_state"), "yes");
}

#[test]
fn a_file_that_is_absent_or_empty_or_wrong_is_refused_with_the_reason() {
    let there = folder(&[("cpu_manager_state", ""), ("other", r#"{"policyName":"static"}"#)]);
    let path = |name: &str| there.path().join(name).to_str().unwrap().to_owned();
    let reason = |name: &str| {
        let (printed, reason) = refused(&[&path(name)]);
        // The reason is said once, in the answer.
        assert_eq!(reason, format!("{} cannot be used", path(name)));
        let begins = format!("File:    {}\nUsable:  no: ", path(name));
        let told = printed.strip_prefix(&begins).unwrap_or_default();
        let (reason, cure) = told.split_once('\n').unwrap_or_default();
        (reason.to_owned(), cure.to_owned())
    };
    let (empty, cure) = reason("cpu_manager_state");
    assert_eq!(
        (empty.as_str(), cure.as_str()),
        (
            "the file is empty",
            "Cure:    the file was not written to its end (power loss, full disk): drain the node, stop kubelet, remove the file, start kubelet\n"
        )
    );
    // Nothing is said of kubelet's directory where another path was typed.
    assert_eq!(reason("memory_manager_state"), (ABSENT.to_owned(), String::new()));
    let (unknown, cure) = reason("other");
    assert!(
        unknown.starts_with("the file is of no known schema: missing field"),
        "{unknown}"
    );
    assert!(cure.starts_with("Cure:    no kubelet writes such content ("), "{cure}");
}

#[test]
fn where_kubelet_never_wrote_the_file_the_cure_is_that_of_the_page() {
    let none = TempDir::new().unwrap();
    let files = super::folder(none.path(), NOT_WRITTEN);
    let text = files.text(TextStyle::from(true));
    assert!(
        text.contains("no: No such file: kubelet writes it ") && text.contains("\nCure:    kubelet never ran here"),
        "{text}"
    );
}

#[test]
fn in_a_folder_the_cpus_file_must_be_there_and_the_memorys_may() {
    let none = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
    let only_memory = folder(&[("memory_manager_state", none)]);
    let (printed, reason) = refused(&[only_memory.path().to_str().unwrap()]);
    assert!(reason.contains("cpu_manager_state cannot be used"), "{reason}");
    assert!(printed.contains("Usable:  no: there is no such file"), "{printed}");
    // What was read is printed all the same.
    assert!(printed.contains("Policy:  None"), "{printed}");

    let cpu = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    let only_cpu = folder(&[("cpu_manager_state", cpu)]);
    let text = steliactl(&[only_cpu.path().to_str().unwrap()]).unwrap();
    assert!(
        text.contains("Policy:       none") && !text.contains("memory"),
        "{text}"
    );
}

#[test]
fn a_wrong_checksum_is_in_the_json_too() {
    let wrong = folder(&[
        (
            "cpu_manager_state",
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#,
        ),
        ("memory_manager_state", "{}"),
    ]);
    let (printed, reason) = refused(&["--json", wrong.path().to_str().unwrap()]);
    let value: Value = serde_json::from_str(&printed).unwrap();
    let text = "the file has checksum 1, its content gives 1353318690";
    assert_eq!(value["cpu_manager"]["error"], text);
    let memory = value["memory_manager"]["error"].as_str().unwrap();
    assert!(memory.starts_with("the file is of no known schema"), "{memory}");
    assert!(
        reason.contains("cpu_manager_state cannot") && reason.contains("; "),
        "{reason}"
    );
}

#[test]
fn without_a_path_the_folder_is_the_one_that_the_daemon_reads() {
    let root = TempDir::new().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("var/lib/k0s/kubelet/cpu_manager_state", "{}");
    let folder = read_by_the_daemon(root.path()).unwrap();
    assert!(folder.ends_with("k0s/kubelet"), "{}", folder.display());
    write("var/lib/kubelet/cpu_manager_state", "{}");
    let unclear = read_by_the_daemon(root.path()).unwrap_err().to_string();
    assert!(unclear.contains("set kubelet-root"), "{unclear}");
    write("etc/stelia/steliad.toml", "kubelet-root = \"/k\"");
    assert_eq!(read_by_the_daemon(root.path()).unwrap(), Path::new("/k"));
}
