//! Programs beside QEMU.

use super::*;

#[tokio::test]
async fn helpers_come_before_and_after_qemu_and_are_told_apart() {
    // Given one that QEMU needs, in a file, and one that needs QEMU, as an option
    let file = r#"
        [[helper]]
        name = "fs"
        wait-for = "DIR/ready"
        command = ["sh", "-c", "echo 'not yet'; sleep 0.3; echo one; echo two >&2; : > DIR/ready; exec sleep 1000"]
    "#;
    let mut bench = Bench::with(
        &[
            "--helpers",
            "DIR/helpers.toml",
            "--helper",
            "name=dhcp,start=after,command=sh -c 'test -S DIR/qmp && echo here; exec sleep 1000'",
        ],
        &[("helpers.toml", file)],
    );
    bench.logged("guest running").await;
    bench.logged("here helper=\"dhcp\"").await;
    let log = bench.read("log");
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    assert!(at("one helper=\"fs\"") < at("two helper=\"fs\""));
    assert!(at("two helper=\"fs\"") < at("QEMU has 2 vCPUs"));
    let state = bench.state(|_| true).await;
    assert_eq!(state.helpers.values().collect::<Vec<_>>(), ["running", "running"]);
    // Then they end when QEMU has ended, and not before
    assert_eq!(bench.terminated().await, 7);
    let log = bench.read("log");
    let ended = log.find("QEMU ended").unwrap();
    assert_eq!(log.matches("stopped: signal 15").count(), 2);
    assert!(log.find("stopped: signal 15").unwrap() > ended, "{log}");
}

#[tokio::test]
async fn one_that_ends_is_started_again_and_the_guest_does_not_notice() {
    let mut bench = Bench::with(
        &["--helper", "name=flaky,command=sh -c 'echo up >> DIR/starts; exit 3'"],
        &[],
    );
    bench.logged("ended: exit code 3; again in 500 ms").await;
    bench.logged("again in 1000 ms").await;
    bench.logged("guest running").await;
    assert!(bench.read("starts").lines().count() >= 2);
    assert_eq!(bench.terminated().await, 7);
}

#[tokio::test]
async fn the_end_of_a_fatal_one_shuts_the_guest_down_and_fails() {
    let mut bench = Bench::with(
        &[
            "--helper",
            "name=fs,on-exit=fatal,command=sh -c 'while ! test -e DIR/die; do sleep 0.1; done'",
        ],
        &[],
    );
    bench.logged("guest running").await;
    bench.write("die", "");
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::HELPER));
    assert!(bench.read("log").contains("exit code 0: shutting"));
    assert_eq!(bench.orders(), "cont system_powerdown");
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}

#[tokio::test]
async fn one_that_cannot_be_started_and_is_fatal_keeps_qemu_from_starting() {
    let mut bench = Bench::with(
        &[
            "--helper",
            "name=fs,on-exit=fatal,wait-for=DIR/never,command=/nonexistent",
        ],
        &[],
    );
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::HELPER));
    let log = bench.read("log");
    assert!(log.contains("helper fs: ended: not started: No such file"), "{log}");
    assert!(!bench.dir.path().join("commands").exists());
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}

#[tokio::test]
async fn a_deaf_one_is_killed_with_what_it_started() {
    let mut bench = Bench::with(
        &[
            "--helper",
            "name=deaf,on-exit=ignore,command=sh -c 'trap \"\" TERM; sleep 1000 & echo $! > DIR/child; wait; wait'",
        ],
        &[],
    );
    bench.logged("guest running").await;
    assert_eq!(bench.terminated().await, 7);
    assert!(bench.read("log").contains("does not end within 1 s"));
    let child: i32 = bench.read("child").trim().parse().unwrap();
    bench.dies(child).await;
}

#[tokio::test]
async fn in_json_every_line_is_an_object_whatever_is_printed() {
    let mut bench = Bench::of(Setup {
        daemon: Some(Behaviour::failing(1)),
        options: &[
            "--log-format=json",
            "--helper",
            "name=odd,on-exit=ignore,command=printf 'a \"quote\\\\n\\\\001\\\\377\\\\n'",
        ],
        ..Setup::default()
    });
    bench.logged("guest running").await;
    assert_eq!(bench.terminated().await, 7);
    let log = bench.read("log");
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    assert!(lines.len() > 5, "{log}");
    assert!(
        lines
            .iter()
            .all(|line| line["level"].is_string() && line["message"].is_string())
    );
    assert!(lines.iter().any(|line| line["helper"] == "odd"));
}
