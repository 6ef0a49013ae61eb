//! A whole run, successful and failing.

use rstest::rstest;

use super::*;

#[rstest]
#[case(Signal::TERM)]
#[case(Signal::HUP)]
#[tokio::test]
async fn a_good_day_from_register_to_deregister(#[case] signal: Signal) {
    // Given a daemon and a QEMU that do what they are asked
    let mut bench = Bench::new(Some(Behaviour::default()), "", "-m 1G");
    bench.logged("guest running").await;
    // Then the guest was continued only after its vCPUs were handed over, and QEMU's socket was added
    bench
        .logged("isolated: vcpu 0 -> cpu 2 (tid 100), vcpu 1 -> cpu 3 (tid 101)")
        .await;
    assert_eq!(
        bench.calls.names(),
        [
            "RegisterInstance '' '2-3'",
            "AttachVcpus 0:7000:core-id=0 1:7001:core-id=1"
        ]
    );
    assert_eq!(bench.orders(), "cont");
    let (anchor, qemu) = (bench.calls.pid("anchor"), bench.calls.pid("qemu"));
    assert!(alive(anchor) && alive(qemu) && anchor != qemu);
    // When the pod is terminated
    bench.signal(Signal::USR1);
    bench.signal(signal);
    // Then the guest powers down, its exit code is passed on, the container is deregistered and the anchor is gone
    assert_eq!(bench.exit_code().await, 7);
    assert_eq!(bench.orders(), "cont system_powerdown");
    assert_eq!(bench.calls.names()[2..], ["Deregister ''"]);
    bench.dies(anchor).await;
}

#[tokio::test]
async fn a_refusal_is_told_with_name_and_text_and_starts_no_qemu() {
    let mut bench = Bench::new(Some(Behaviour::refusing()), "", "");
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::REFUSED));
    let log = bench.read("log");
    assert!(log.contains("Isolation1.Error.NotGuaranteed: pod x"), "{log}");
    assert!(!bench.dir.path().join("commands").exists());
    assert!(!bench.calls.names().iter().any(|c| c.starts_with("Deregister")));
}

#[tokio::test]
async fn without_a_daemon_it_gives_up_with_its_own_code() {
    let mut bench = Bench::new(None, "", "");
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::UNREACHABLE));
    assert!(bench.read("log").contains("connect on "));
}

#[tokio::test]
async fn a_failed_attach_keeps_the_guest_paused_and_is_tried_again() {
    let mut bench = Bench::new(Some(Behaviour::failing(1)), "", "");
    bench
        .logged("io.stelia.Isolation1.Error.CpusetConflict: CPU 2 is taken")
        .await;
    assert_eq!(bench.orders(), "");
    bench.logged("guest running").await;
    assert_eq!(bench.orders(), "cont");
    bench.signal(Signal::INT);
    assert_eq!(bench.exit_code().await, 7);
}

#[tokio::test]
async fn a_migrated_guest_is_not_continued() {
    let mut bench = Bench::new(Some(Behaviour::default()), "", "-incoming defer");
    bench.logged("ready for the migration").await;
    assert_eq!(bench.terminated().await, 3);
    assert_eq!(bench.orders(), "quit");
}

#[tokio::test]
async fn a_deaf_qemu_is_killed_and_a_second_sigterm_changes_nothing() {
    let mut bench = Bench::running("deaf").await;
    let started = Instant::now();
    bench.signal(Signal::TERM);
    sleep(Duration::from_millis(700)).await;
    bench.signal(Signal::TERM);
    // Grace 1 s, quit 3 s, then SIGKILL
    assert_eq!(bench.exit_code().await, 137);
    let took = started.elapsed().as_secs_f32();
    assert!((3.5..6.0).contains(&took), "{took}");
    assert_eq!(bench.orders(), "cont system_powerdown quit");
    bench.logged("deregistered").await;
}

#[tokio::test]
async fn a_dead_anchor_is_a_warning_only() {
    let mut bench = Bench::running("").await;
    kill_process(Pid::from_raw(bench.calls.pid("anchor")).unwrap(), Signal::TERM).unwrap();
    bench.logged("the anchor died (signal 15)").await;
    assert_eq!(bench.terminated().await, 7);
}

/// What PID 1 of a container has to do: reap orphans, and name the uid that it has outside.
#[tokio::test]
#[ignore = "needs user namespaces for everyone: cargo test runner -- --include-ignored"]
async fn as_pid_1_in_a_user_namespace_it_reaps_orphans_and_names_its_outer_uid() {
    let unshare = [
        "unshare",
        "--user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--map-user=77",
        "--kill-child",
    ];
    let mut bench = Bench::of(Setup {
        wrapper: &unshare,
        daemon: Some(Behaviour::default()),
        ..Setup::default()
    });
    bench.logged("guest running").await;
    bench.logged("reaped ").await;
    // When QEMU dies on its own
    kill_process(Pid::from_raw(bench.calls.pid("qemu")).unwrap(), Signal::ABORT).unwrap();
    // Then the container is deregistered
    bench.logged("QEMU ended: signal 6").await;
    bench.logged("deregistered").await;
    assert_eq!(bench.exit_code().await, 134);
}
