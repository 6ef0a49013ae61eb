//! `list`, `show` and `status` against a daemon.

use super::*;
use crate::cli::Command;
use crate::shared::daemon::{CALL_TIMEOUT, Client};
use crate::tests::fixtures::says;
use crate::view::monitor;

fn json(root: &Path, line: &[&str]) -> serde_json::Value {
    let text = steliactl(root, &[&["--json"], line].concat()).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn list_is_a_table_that_pipes() {
    let text = steliactl(no_vm().path(), &["list"]).unwrap();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["VM", "STATE", "CPUS", "VCPUS", "AGE", "NOTE"]);
    assert_eq!(words[1][..4], ["team-a/web", "degraded", "2-3", "0"]);
    let rows = steliactl(no_vm().path(), &["list", "--no-legend", "--problems"]).unwrap();
    assert!(
        rows.starts_with("team-a/web  degraded  2-3  0  ") && rows.lines().count() == 1,
        "{rows}"
    );
}

#[test]
fn show_lists_the_threads_that_are_asked_for() {
    let text = steliactl(a_vm().path(), &["show", "web"]).unwrap();
    says(
        &text,
        &["1 thread on shared CPUs 0-1,4-7, 1 thread in the container cgroup"],
    );
    insta::assert_snapshot!(
        steliactl(a_vm().path(), &["show", "web", "--threads", "-l"]).unwrap().split_once("\n\n").unwrap().1, @r"
        qemu-system-x86 (pid 900, 7 in the container)
        TID  THREAD           WHERE        CPUS     CPU TIME
        900  qemu-system-x86  shared CPUs  0-1,4-7     1.01s
        905  CPU 0/KVM        its own CPU  2        1234.57s

        anchor?[2J (pid 801, 2 in the container)
        TID  THREAD      WHERE             CPUS  CPU TIME
        801  anchor?[2J  container cgroup  0-7      0.01s
        ");
}

#[test]
fn show_as_json_is_what_the_daemon_says_with_the_threads() {
    let value = json(a_vm().path(), &["show", UID]);
    fixtures::holds(
        &value,
        json!({"/instance/registered_us": 1_735_689_599_000_000u64, "/instance/degraded/0/code": "placeholder-ended",
               "/processes/0/threads/1": {"tid": 905, "name": "CPU 0/KVM", "cgroup": "vcpu", "allowed_cpus": "2", "cpu_time_us": 1_234_570_000}}),
    );
    // What a pattern selects is a list.
    assert_eq!(json(a_vm().path(), &["show", "we*"])[0]["instance"]["pod_name"], "web");
    let unnamed = steliactl(no_vm().path(), &["show"]).unwrap_err();
    assert_eq!(unnamed.exit_code(), 2);
}

#[test]
fn monitor_begins_with_what_is_wrong_already() {
    let begin = |line: &[&str]| {
        let cli = cli(line);
        let Command::Monitor(selection) = cli.asked() else {
            panic!("{line:?}")
        };
        let mut printed = String::new();
        block_on(async {
            let (_daemon, connection) = daemon().await;
            let client = Client::new(connection, CALL_TIMEOUT).await.unwrap();
            let print = |text: &str| {
                printed += text;
                Ok(false)
            };
            monitor::run(&client, selection, cli.output_options().unwrap(), print).await
        })
        .unwrap();
        printed
    };
    let text = begin(&["monitor"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("  node  steliad is running"), "{text}");
    assert!(lines[1].starts_with("VM  "), "{text}");
    assert!(lines[2].starts_with("team-a/web  degraded  2-3  "), "{text}");
    // A program gets events alone.
    let json = begin(&["--json=short", "monitor"]);
    assert!(
        json.lines().count() == 1 && json.contains(r#""event":"DaemonAppeared""#),
        "{json}"
    );
}

#[test]
fn a_released_vm_that_may_run_is_told_by_status_and_is_no_failure_of_verify() {
    let status = steliactl(no_vm().path(), &["status"]).unwrap();
    says(&status, &["  Released     team-a/released: "]);
    let Err(Failure::Partial { printed, .. }) = steliactl(a_vm().path(), &["-o", "json", "verify"]) else {
        panic!("a degraded VM fails")
    };
    let verified: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let all = verified["findings"].as_array().unwrap();
    let of_former = all.iter().find(|one| one["pod_uid"] == RELEASED).unwrap();
    fixtures::holds(
        of_former,
        json!({"/code": "former", "/fails": false, "/pod_name": "released"}),
    );
    let Err(Failure::Partial { printed, .. }) = steliactl(a_vm().path(), &["-o", "json", "verify", "web"]) else {
        panic!("a degraded VM fails")
    };
    assert!(!printed.contains(RELEASED), "it was not asked for: {printed}");
    // Where it alone is asked for.
    let shown = |line: &[&str]| steliactl(a_vm().path(), line);
    says(
        &shown(&["verify", "relea*"]).unwrap(),
        &[
            "NOTE  team-a/released: ",
            "0 of 1 VM verified in the kernel. 1 released.",
        ],
    );
    for (line, fact) in [
        (&["verify", "relea*", "--require=pinned"][..], "pinned is required"),
        // It is named.
        (&["verify", "released"], "released or ended"),
    ] {
        let Err(Failure::Partial { printed, code: 1, .. }) = shown(line) else {
            panic!("less than what is required fails")
        };
        says(&printed, &["FAIL  team-a/released: ", fact, "Failed: 1 VM"]);
    }
    says(
        &shown(&["noise", "relea*"]).unwrap(),
        &["NOTE  team-a/released: ", "nothing was counted"],
    );
}

#[test]
fn a_daemon_that_does_not_run_is_named_first_with_systemctls_exit_code() {
    let stopped = |line: &[&str]| {
        let cli = cli(line);
        let gone = async || Err(Failure::NotRunning);
        block_on(run(&cli, &Roots::below(Path::new("/nonexistent")), gone)).unwrap_err()
    };
    for line in [
        &["list"][..],
        &["show", "web"],
        &["why", "web"],
        &["verify"],
        &["status"],
    ] {
        let failure = stopped(line);
        assert_eq!(failure.exit_code(), 3, "{line:?}");
        assert!(
            failure
                .to_string()
                .starts_with("steliad is not running: running VMs stay isolated")
        );
    }
}
