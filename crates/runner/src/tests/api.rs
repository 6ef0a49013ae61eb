//! Cloud Hypervisor and Firecracker, by their API; descriptors that a VMM is given.

use rstest::rstest;

use super::*;
use crate::state::Isolation;

fn bench(daemon: Behaviour, how: &str, args: &str, options: &[&str]) -> Bench {
    let setup = Setup {
        daemon: Some(daemon),
        qemu: how,
        args,
        options,
        ..Setup::default()
    };
    let mut command = vec!["--", "sh", "-c", QEMU, "vmm"];
    command.extend(args.split_whitespace());
    let kind = how.split_whitespace().next().unwrap();
    let options = [
        "--api-socket",
        "DIR/api",
        "--vmm",
        kind,
        "--cpuset",
        "2-3",
        "--grace",
        "1",
    ];
    Bench::started("run", &options, &command, &setup)
}

/// A VMM whose guest runs.
pub async fn running(how: &str) -> Bench {
    let bench = bench(Behaviour::default(), how, "", &[]);
    bench.logged("guest running").await;
    bench
}

/// What the fake was sent, without queries. The first requests to pause may come before it has booted.
pub fn orders(bench: &Bench) -> Vec<String> {
    bench.read("commands").lines().map(ToOwned::to_owned).collect()
}

/// What pauses the guest, resumes it, and asks it to power down.
pub const FIRECRACKER: [&str; 3] = [
    r#"PATCH /vm {"state":"Paused"}"#,
    r#"PATCH /vm {"state":"Resumed"}"#,
    r#"PUT /actions {"action_type":"SendCtrlAltDel"}"#,
];
pub const CLOUD_HYPERVISOR: [&str; 3] = [
    "PUT /api/v1/vm.pause",
    "PUT /api/v1/vm.resume",
    "PUT /api/v1/vm.power-button",
];

fn requests(how: &str) -> [&'static str; 3] {
    if how.starts_with("firecracker") {
        FIRECRACKER
    } else {
        CLOUD_HYPERVISOR
    }
}

#[rstest]
#[case("cloud-hypervisor", "--kernel /k", "--kernel /k --api-socket path=DIR/api")]
#[case("firecracker", "--config-file /c -- x", "--config-file /c --api-sock DIR/api -- x")]
#[tokio::test]
async fn a_guest_is_paused_attached_resumed_and_powered_down(
    #[case] how: &str,
    #[case] given: &str,
    #[case] args: &str,
) {
    let mut bench = bench(Behaviour::default(), how, given, &[]);
    bench.logged("guest running").await;
    // Then it was paused, its threads were handed over by their names, and it was resumed
    assert_eq!(orders(&bench), requests(how)[..2]);
    let args = args.replace("DIR", bench.dir.path().to_str().unwrap());
    assert_eq!(bench.read("given").trim(), args);
    let calls = bench.calls.names();
    assert!(
        calls[1].starts_with("AttachVcpus 0:") && calls[1].contains(" 1:"),
        "{calls:?}"
    );
    assert_eq!(calls[1].contains("core-id=1"), how == "cloud-hypervisor", "{calls:?}");
    // And what it ran before is in the log and in the state
    bench.logged("does not start paused: within at most").await;
    let state = bench.state(|state| state.guest == "running").await;
    let window = state.window.unwrap();
    assert!(
        !state.paused_start && window.wall_us > 0 && window.run_us.is_some_and(|run| run > 0),
        "{window:?}"
    );
    assert_eq!(state.readiness(), Ok("isolated".into()));
    assert_eq!(state.vcpus.len(), 2);
    // When the pod is terminated, then the guest is asked to end
    assert_eq!(bench.terminated().await, 7);
    assert_eq!(orders(&bench)[2..], requests(how)[2..]);
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}

#[rstest]
#[case("cloud-hypervisor unbooted")]
#[case("firecracker unbooted")]
#[tokio::test]
async fn one_that_is_booted_by_others_is_paused_when_it_is(#[case] how: &str) {
    // A helper that starts after the VMM may be what boots it.
    let helper = "name=boots,start=after,on-exit=ignore,command=touch DIR/ready";
    let bench = bench(Behaviour::default(), how, "", &["--helper", helper]);
    let state = bench.state(|state| state.guest == "prelaunch").await;
    assert!(state.readiness().is_err());
    bench.until("ready", || bench.dir.path().join("ready").exists()).await;
    bench.write("boot", "");
    bench.logged("guest running").await;
    let orders = orders(&bench);
    let (last, tries) = orders.split_last().unwrap();
    let [pause, resume, _] = requests(how);
    assert!(last == resume && tries.iter().all(|order| order == pause), "{orders:?}");
}

#[rstest]
#[case("firecracker unbooted")]
#[case("cloud-hypervisor unbooted")]
#[tokio::test]
async fn one_that_nobody_configures_is_asked_seldom(#[case] how: &str) {
    let bench = bench(Behaviour::default(), how, "", &[]);
    bench.state(|state| state.guest == "prelaunch").await;
    let before = bench.read("asked").lines().count();
    sleep(Duration::from_secs(3)).await;
    let asked = bench.read("asked").lines().count() - before;
    // Every 0.1 s at first. Nobody is asked to pause what is not there.
    assert!(asked <= 35, "{asked}");
    assert!(
        !bench
            .read("asked")
            .contains(requests(how)[0].split(" {").next().unwrap())
    );
}

#[rstest]
#[tokio::test]
async fn a_guest_that_was_shut_down_is_not_ready_until_it_is_booted_again(
    #[values("--require-isolation=yes", "--require-isolation=no")] option: &str,
) {
    let bench = bench(Behaviour::default(), "cloud-hypervisor", "", &[option]);
    bench.logged("guest running").await;
    // When another program shuts it down, and Cloud Hypervisor stays
    bench.write("shutdown", "");
    let state = bench.state(|state| state.guest == "shutdown").await;
    assert_eq!(state.readiness(), Err("the guest is shut down".into()));
    assert!(state.liveness().is_ok());
    bench.logged("the guest is shut down").await;
    // Then what becomes of its instance is followed all the same
    bench.becomes(Some("waiting"));
    let state = bench.state(|state| state.isolation == Isolation::Waiting).await;
    let text = state.readiness().unwrap_err();
    assert!(text.starts_with("the guest is shut down"), "{text}");
    // And it is asked seldom, and nothing is said of QEMU
    let before = bench.read("asked").lines().count();
    sleep(Duration::from_secs(3)).await;
    let asked = bench.read("asked").lines().count() - before;
    assert!(asked <= 4, "{asked}");
    let log = bench.read("log");
    assert!(!log.contains("debug-threads") && !log.contains("still trying"), "{log}");
    // When it is booted again
    *bench.calls.state.lock().unwrap() = None;
    let attaches = || bench.calls.names().join("\n").matches("AttachVcpus").count();
    assert_eq!(attaches(), 1);
    bench.write("boot", "");
    // Then its new threads are attached
    let state = bench
        .state(|state| state.guest == "running" && state.isolation == Isolation::Isolated)
        .await;
    assert_eq!((state.readiness(), attaches()), (Ok("isolated".into()), 2));
    // And it was neither paused nor resumed once more
    assert_eq!(orders(&bench).len(), 2);
}

#[tokio::test]
async fn one_that_is_shut_down_before_its_release_is_held_again_when_it_boots() {
    let how = "cloud-hypervisor";
    let bench = bench(Behaviour::failing(1), how, "", &[]);
    bench.logged("the guest stays paused").await;
    bench.write("shutdown", "");
    bench.state(|state| state.guest == "shutdown").await;
    bench.write("boot", "");
    bench.logged("guest running").await;
    let [pause, resume, _] = CLOUD_HYPERVISOR;
    assert_eq!(orders(&bench), [pause, pause, resume]);
}

/// A restored guest did not run and is resumed; half an answer to the pause hides no window; one that cannot be paused is attached while it
/// runs.
#[rstest]
#[tokio::test]
async fn whether_a_guest_ran_before_its_threads_were_attached_is_in_the_state(
    #[values("cloud-hypervisor", "firecracker")] kind: &str,
    #[values("restored", "half", "unpausable")] how: &str,
) {
    let bench = running(&format!("{kind} {how}")).await;
    let state = bench.state(|state| state.guest == "running").await;
    let never_ran = how == "restored";
    assert_eq!((state.paused_start, state.window.is_none()), (never_ran, never_ran));
    let (log, resume) = (bench.read("log"), requests(kind)[1].to_owned());
    let is_unpausable = how == "unpausable";
    assert_eq!(log.contains("the guest cannot be paused"), is_unpausable, "{log}");
    assert_eq!(orders(&bench).contains(&resume), !is_unpausable);
}

#[rstest]
#[case("cloud-hypervisor", 3)]
#[case("firecracker", 128 + 15)]
#[tokio::test]
async fn without_isolation_it_stays_paused_and_is_told_to_quit(#[case] how: &str, #[case] code: i32) {
    let mut bench = bench(Behaviour::failing(99), how, "", &[]);
    bench.logged("the guest stays paused").await;
    assert_eq!(orders(&bench), requests(how)[..1]);
    bench.signal(Signal::TERM);
    // Firecracker has no command for that: SIGTERM.
    assert_eq!(bench.exit_code().await, code);
    assert!(!orders(&bench).contains(&requests(how)[2].to_owned()));
}

#[tokio::test]
async fn a_deaf_one_is_killed() {
    let mut bench = running("cloud-hypervisor deaf").await;
    assert_eq!(bench.terminated().await, 137);
    let log = bench.read("log");
    assert!(log.contains("did not quit within 3 s: killing it"), "{log}");
    assert_eq!(orders(&bench).last().unwrap(), "PUT /api/v1/vmm.shutdown");
}

#[tokio::test]
async fn after_a_reboot_the_new_threads_are_attached() {
    let bench = running("cloud-hypervisor").await;
    let first = bench.calls.names()[1].clone();
    bench.write("reboot", "");
    bench.until("attached again", || bench.calls.names().len() > 2).await;
    let again = bench.calls.names()[2].clone();
    assert!(again.starts_with("AttachVcpus 0:") && again != first, "{first} {again}");
}

#[rstest]
#[case(&["--qmp", "/q", "--vmm", "firecracker", "--", "sh"], "Firecracker has no QMP: give --api-socket instead of --qmp")]
#[case(&["--api-socket", "/a", "--", "qemu-system-x86_64"], "QEMU has no HTTP API: give --qmp instead of --api-socket")]
#[case(&["--api-socket", "/a", "--", "sh"], "give --vmm cloud-hypervisor or --vmm firecracker")]
#[case(&["--api-socket", "/a", "--", "firecracker", "--no-api"], "Firecracker is given --no-api")]
#[case(&["--qmp", "/q", "--fd", "a=/x", "--", "qemu"], "--fd a: no argument has {fd:a} in it")]
#[case(&["--qmp", "/q", "--", "qemu", "-x", "{fd:a}"], "no --fd a=… is given")]
#[tokio::test]
async fn options_that_do_not_go_together_start_nothing(#[case] options: &[&str], #[case] text: &str) {
    let setup = Setup {
        daemon: Some(Behaviour::default()),
        ..Setup::default()
    };
    let mut bench = Bench::started("run", options, &[], &setup);
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::USAGE));
    assert!(bench.read("log").contains(text), "{}", bench.read("log"));
    assert!(bench.calls.names().is_empty());
}

#[tokio::test]
async fn a_vmm_has_its_descriptors_and_a_helper_has_not() {
    let helper = "name=looks,start=after,on-exit=ignore,command=sh -c 'ls -l /proc/self/fd > DIR/helper'";
    let options = [
        "--fd",
        "disk=DIR/disk",
        "--fd",
        "daemon=socket:DIR/socket",
        "--helper",
        helper,
    ];
    let mut bench = Bench::of(Setup {
        daemon: Some(Behaviour::default()),
        args: "-add-fd fd={fd:disk},set=1 -chardev socket,fd={fd:daemon}",
        options: &options,
        files: &[("disk", "")],
        ..Setup::default()
    });
    bench.logged("guest running").await;
    let given = bench.read("given");
    let number = |before: &str| {
        let (_, rest) = given.split_once(before).unwrap();
        rest.split(|char: char| !char.is_ascii_digit())
            .next()
            .unwrap()
            .to_owned()
    };
    let of_vmm = |number: &str| {
        let pid = bench.calls.pid("qemu");
        std::fs::read_link(format!("/proc/{pid}/fd/{number}"))
            .unwrap()
            .display()
            .to_string()
    };
    let disk = bench.dir.path().join("disk").display().to_string();
    assert_eq!(of_vmm(&number("-add-fd fd=")), disk);
    assert!(of_vmm(&number("socket,fd=")).starts_with("socket:["));
    // The runner keeps none, and a helper that starts later has none.
    let own = std::fs::read_dir(format!("/proc/{}/fd", bench.runner.id())).unwrap();
    let own: Vec<_> = own
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    assert!(!own.contains(&disk.clone().into()), "{own:?}");
    bench.until("looked", || bench.read("helper").contains("/proc/")).await;
    assert!(!bench.read("helper").contains(&disk), "{}", bench.read("helper"));
    assert_eq!(bench.terminated().await, 7);
}

#[tokio::test]
async fn a_descriptor_that_cannot_be_opened_starts_no_vmm() {
    let mut bench = Bench::of(Setup {
        daemon: Some(Behaviour::default()),
        args: "-x {fd:vhost}",
        options: &["--fd", "vhost=DIR/none"],
        ..Setup::default()
    });
    assert_eq!(bench.exit_code().await, i32::from(crate::exit_codes::RUNNER));
    let text = format!("open --fd vhost={}/none: No such file", bench.dir.path().display());
    assert!(bench.read("log").contains(&text), "{}", bench.read("log"));
    assert!(!bench.dir.path().join("commands").exists());
    assert_eq!(bench.calls.names().last().unwrap(), "Deregister ''");
}
