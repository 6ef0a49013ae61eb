//! What is told of kubelet's file.

use super::super::state_file::read_state_file;
use super::*;
use crate::cli::Command;
use crate::shared::daemon::Pods;
use crate::tests::fixtures::{cli, pod};

const FOLDER: &str = "../../tests/data/kubelet-checkpoints";

/// Runs a command line as `main` does.
fn steliactl(line: &[&str], pods: &Pods) -> Result<String, Failure> {
    let cli = cli(&[&["doctor", "--kubelet-state"], line].concat());
    let Command::Doctor { kubelet_state, .. } = cli.asked() else {
        panic!("{line:?}")
    };
    let file = kubelet_state.as_deref().unwrap();
    cli.output_options()?.print(&read_state_file(file, pods))
}

fn json_of(file: &str) -> Value {
    let text = steliactl(&[&format!("{FOLDER}/{file}"), "--json"], &Pods::default());
    serde_json::from_str(&text.unwrap()).unwrap()
}

#[test]
fn a_file_is_a_table_with_the_names_of_pods() {
    let web = pod("33333333-aaaa-4bbb-8ccc-000000000003", "team-a/web-0");
    let pods = Pods::from_iter([web]);
    let text = |file: &str| steliactl(&[&format!("{FOLDER}/{file}")], &pods).unwrap();
    insta::assert_snapshot!("cpus", text("k136-gate-on/05a-podlevel-podscope/cpu_manager_state"));
}

#[test]
fn json_has_a_name_for_everything() {
    let vm = "ce32ebd2-f905-449e-b74b-4231a84b88e1";
    holds(
        &json_of("k136-gate-off/03a-vm40/cpu_manager_state"),
        json!({
            "/schema": "V2", "/policy": "static", "/default_cpus": "0,21-64,85-127", "/shared_pool": "0,21-64,85-127", "/reason": "",
            "/is_refused": false, "/assignments/0/pod_uid": vm, "/assignments/0/container": "instance", "/assignments/0/cpus": "1-20,65-84",
        }),
    );
    let cpus = json_of("rebuilt-1.37/05a-podlevel-podscope/cpu_manager_state");
    assert_eq!(cpus["schema"], "V4");
    let mut all = cpus["assignments"].as_array().unwrap().iter();
    let pod = "33333333-aaaa-4bbb-8ccc-000000000001";
    let whole = all.find(|one| one["container"] == "" && one["pod_uid"] == pod);
    assert_eq!(whole.unwrap()["cpus"], "1-10,65-74");
}

#[test]
fn a_file_that_steliad_cannot_work_with_is_told_with_the_reason() {
    for (file, reason) in [
        ("k136-gate-off/00-none/cpu_manager_state", "policy is \"none\""),
        ("write-sequence/gate-off/002.json", "the shared pool is empty"),
    ] {
        let state = json_of(file);
        says(state["reason"].as_str().unwrap(), &[reason]);
        assert_eq!(state["is_refused"], false);
    }
    assert_eq!(json_of("k136-gate-off/02-article/cpu_manager_state")["reason"], "");
}

#[test]
fn a_file_that_is_absent_or_empty_or_wrong_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, error) in [
        ("cpu_manager_state", Some(""), "the file is empty"),
        ("other", Some(r#"{"policyName":"static"}"#), "no known schema"),
        (
            "checksum",
            Some(r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#),
            "1353318690",
        ),
        ("absent", None, "no such file"),
        (
            "memory_manager_state",
            Some(r#"{"machineState":{}}"#),
            "memory_manager_state",
        ),
    ] {
        if let Some(text) = text {
            write(folder.path(), name, text);
        }
        let path = folder.path().join(name).display().to_string();
        let refused = |line: &[&str]| match steliactl(line, &Pods::default()).unwrap_err() {
            Failure::Partial { printed, reason, .. } => {
                // The reason is said once, in the answer.
                assert_eq!(reason, format!("{path} cannot be used"));
                printed
            }
            other => panic!("{other:?}"),
        };
        let printed = refused(&[&path]);
        says(&printed, &["Usable:  no: ", error]);
        let value: Value = serde_json::from_str(&refused(&[&path, "--json"])).unwrap();
        assert_eq!(value["is_refused"], true);
        says(value["reason"].as_str().unwrap(), &[error]);
    }
}
