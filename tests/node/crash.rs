//! The daemon dies, at any moment: no VM notices, and nothing is half-done afterwards.

use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{panicking, scope, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stelia_api::client::{Dict, InstanceProxy, ManagerProxy};
use zbus::connection::Builder;
use zbus::{Fd, Variant};

use crate::client::{block_on, pidfd};
use crate::contained::{set_drop_in, unconfigure};
use crate::container::{RULE, database, is_given_back, is_partition, until_partition};
use crate::support::guest::Accel;
use crate::support::host::{CGROUP, Thread, leftovers, output, read, run, scopes, thread, wait_until};
use crate::support::pods::{Pod, on_node, on_node_undoing};
use crate::support::promise::{assert_isolated, state};

/// As its unit calls it.
pub const DAEMON: &str = "/usr/libexec/stelia/steliad";

/// One that is just being started again has no process to kill.
pub fn kill_daemon() {
    output(&[
        "systemctl",
        "kill",
        "--signal=KILL",
        "--kill-whom=main",
        "steliad.service",
    ]);
}

/// Up to `below` milliseconds, another each time; printed, so that a failure can be told.
fn pause(below: u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock");
    let pause = now.subsec_micros() % below;
    println!("  kill after {pause} ms");
    sleep(Duration::from_millis(u64::from(pause)));
}

pub fn wait_state(pod: &Pod, wanted: &str) {
    wait_until(&format!("{} {wanted} again", pod.name), || {
        (state(pod).as_deref() == Some(wanted)).then_some(())
    });
}

/// Whether the guest runs in the end, or the runner gave up.
fn runs(pod: &Pod) -> bool {
    wait_until("guest running, or the container ended", || {
        let ended = thread(pod.pid).is_none();
        let running = pod.logs().contains("guest running");
        (running || ended).then_some(running)
    })
}

#[test]
fn a_running_vm_does_not_notice_that_the_daemon_is_killed() {
    on_node(|| {
        let pod = Pod::vm("untouched", 2);
        let before = assert_isolated(&pod, 2);
        for _ in 0..10 {
            pause(1500);
            kill_daemon();
            assert_eq!(pod.threads(), before);
            wait_state(&pod, "isolated");
            assert_eq!(assert_isolated(&pod, 2), before);
            pod.assert_alone();
        }
    });
}

#[test]
fn a_daemon_killed_during_registration_and_attach_leaves_whole_or_nothing() {
    on_node(|| {
        let mut isolated = 0;
        for round in 0..6 {
            let name = format!("interrupted{round}");
            let ready = AtomicBool::new(false);
            let (pod, whole) = scope(|threads| {
                // From before the pod exists until its guest runs: every moment of the way may be hit.
                threads.spawn(|| {
                    pause(3000);
                    for _ in 0..3 {
                        pause(2000);
                        if !ready.load(Ordering::Relaxed) {
                            kill_daemon();
                        }
                    }
                });
                let pod = Pod::start_vm(&name, 2, &[]);
                let whole = runs(&pod);
                ready.store(true, Ordering::Relaxed);
                (pod, whole)
            });
            if whole {
                isolated += 1;
                wait_state(&pod, "isolated");
                pod.wait_settled();
                assert_isolated(&pod, 2);
                pod.assert_alone();
            } else {
                println!("  the runner gave up:\n{}", pod.logs());
            }
            run(&["kubelet-standin", "pod", "delete", &name, "--grace", "1"]);
            wait_until("scope gone", || scopes().is_empty().then_some(()));
            wait_until("not listed any more", || state(&pod).is_none().then_some(()));
        }
        println!("  {isolated} of 6 interrupted registrations ended isolated");
        assert!(isolated > 0, "not one runner came through");
    });
}

/// `steliad-failpoints` (`testing/simulator`) in the place of the packaged daemon, until this is dropped. The unit's mount
/// namespace is made from the node's whenever the daemon starts, so every daemon started meanwhile is this one.
pub struct Failpoints(());

impl Failpoints {
    pub fn mount() -> Failpoints {
        run(&["mount", "--bind", "/job/steliad-failpoints", DAEMON]);
        Failpoints(())
    }

    /// Restarts the daemon, to be killed before its n-th change of the system, and returns its process, or nothing when that has
    /// died already; the one that systemd starts after it lives.
    pub fn daemon_that_dies_at(&self, n: u32) -> String {
        run(&["systemctl", "set-environment", &format!("STELIAD_FAILPOINT={n}")]);
        let restarted = output(&["systemctl", "restart", "steliad"]);
        run(&["systemctl", "unset-environment", "STELIAD_FAILPOINT"]);
        if !restarted.status.success() {
            // It died while it started: a change was waiting for it, such as the move of a thread that KVM had just made.
            run(&["systemctl", "start", "steliad"]);
            return String::new();
        }
        main_pid()
    }
}

impl Drop for Failpoints {
    /// The packaged daemon runs again, also after a test that failed.
    fn drop(&mut self) {
        // The running daemon's namespace has a copy of the mount, which is busy until that daemon ends.
        let unmount = output(&["umount", "--lazy", DAEMON]);
        let unset = output(&["systemctl", "unset-environment", "STELIAD_FAILPOINT"]);
        let restart = output(&["systemctl", "restart", "steliad"]);
        if !panicking() {
            assert!(
                [&unmount, &unset, &restart].iter().all(|out| out.status.success()),
                "{unmount:?} {unset:?} {restart:?}"
            );
        }
    }
}

/// The daemon's process; nothing while there is none. systemd is not asked: it would take too long to see a daemon that dies.
/// Its cgroup now and then has others, too: a holder, which the daemon starts with an argument, or what is about to become
/// one, and a reload's `busctl`, which systemd starts.
pub fn main_pid() -> String {
    let procs = format!("{CGROUP}/system.slice/steliad.service/cgroup.procs");
    let procs = fs::read_to_string(procs).unwrap_or_default();
    let is_daemon = |pid: &&str| {
        let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text("cmdline") == format!("{DAEMON}\0") && text("status").contains("\nPPid:\t1\n")
    };
    procs.lines().find(is_daemon).unwrap_or_default().to_owned()
}

/// The steps that the daemon is killed at: each one, or every so many from one of the first on (`STELIA_EVERY`), another at each run.
fn steps() -> impl Iterator<Item = u32> {
    let every = std::env::var("STELIA_EVERY").map_or(1, |text| text.parse().expect("STELIA_EVERY"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock");
    let first = 1 + now.subsec_micros() % every;
    println!("  killed at step {first}, and {every} by {every} steps later");
    (first..).step_by(every as usize)
}

/// A VM that asks for nothing by itself: one container serves all steps, and root does on the system bus what its runner
/// would do on the socket.
pub fn quiet_vm(name: &str) -> Pod {
    let accel = Accel::of_node();
    let qemu = accel.qemu().join(" ");
    let command = format!("stelia-runner anchor & sleep infinity & exec {qemu} -smp 2");
    let options = [accel.device(), &["--cpus", "2"]].concat();
    let pod = Pod::start(name, &options, &["sh", "-c", &command]);
    wait_until("vCPUs, helpers and the anchor", || {
        let threads = pod.threads();
        let all = threads.vcpus.len() == 2 && threads.others.len() >= 3 && threads.anchor.len() == 1;
        all.then_some(())
    });
    pod.wait_settled();
    pod
}

/// Register and attach, as often as it takes: a daemon that dies leaves its caller without an answer.
pub fn isolate(pod: &Pod) {
    let threads = pod.threads();
    let (qemu, anchor) = (pidfd(pod.pid), pidfd(threads.anchor[0].tid));
    // As the container numbers them, which is how QEMU tells them.
    let number = |vcpu: &Thread| {
        let status = read(format!("/proc/{}/status", vcpu.tid));
        let line = status.lines().find(|line| line.starts_with("NSpid:"));
        let number = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
        number.expect("NSpid")
    };
    let list: Vec<(u32, i32)> = (0..).zip(threads.vcpus.iter().map(number)).collect();
    wait_until("registered and attached", || {
        let done = block_on(async {
            let bus = Builder::system().build().await?;
            let mut options = Dict::new();
            options.insert("anchor", Variant::from(Fd::from(anchor.as_fd())));
            let manager = ManagerProxy::new(&bus).await?;
            let (path, _) = manager.register_instance(&pod.uid, "", options).await?;
            let instance = InstanceProxy::builder(&bus).path(path).build().await?;
            let vcpus = list.iter().map(|(index, tid)| (*index, *tid, Dict::new())).collect();
            instance.attach_vcpus(Fd::from(qemu.as_fd()), vcpus, Dict::new()).await
        });
        done.map_err(|error| println!("  {error}")).ok().map(drop)
    });
}

#[test]
fn killed_between_any_two_steps_of_register_and_attach_the_state_is_whole_or_absent() {
    on_node(|| {
        let pod = quiet_vm("steps");
        let before = pod.threads();
        let failpoints = Failpoints::mount();
        for n in steps() {
            let daemon = failpoints.daemon_that_dies_at(n);
            isolate(&pod);
            let died = main_pid() != daemon;
            wait_state(&pod, "isolated");
            assert_isolated(&pod, 2);
            pod.assert_alone();
            if !died {
                println!("  fewer than {n} steps");
                assert!(n > 20, "fewer than {n} steps");
                return;
            }
            run(&["steliactl", "deregister", &pod.uid]);
            assert_eq!(pod.threads(), before);
            wait_until("nothing is left", || leftovers().is_empty().then_some(()));
        }
    });
}

#[test]
fn killed_between_any_two_steps_of_deregister_the_container_is_isolated_or_as_kubelet_made_it() {
    on_node(|| {
        let pod = quiet_vm("steps");
        let origin = pod.threads();
        isolate(&pod);
        let failpoints = Failpoints::mount();
        for n in steps() {
            let before = assert_isolated(&pod, 2);
            let daemon = failpoints.daemon_that_dies_at(n);
            let done = output(&["steliactl", "deregister", &pod.uid]).status.success();
            let died = wait_until("the daemon's answer or its end", || {
                (done || main_pid() != daemon).then_some(main_pid() != daemon)
            });
            let left = wait_until("whole or absent", || {
                let kept = state(&pod).as_deref() == Some("isolated") && pod.scope().exists();
                let left = state(&pod).is_none() && !pod.scope().exists();
                (kept || left).then_some(left)
            });
            if left {
                assert_eq!(pod.threads(), origin);
            } else {
                assert_eq!(assert_isolated(&pod, 2), before);
            }
            if !died {
                println!("  fewer than {n} steps");
                assert!(done && left && n > 8, "fewer than {n} steps");
                return;
            }
            if left {
                isolate(&pod);
            }
        }
    });
}

/// Adopted by a rule at the daemon's start, deregistered without one.
#[test]
fn killed_between_any_two_steps_a_container_is_a_partition_or_as_kubelet_made_it() {
    on_node_undoing(unconfigure, || {
        let pod = database("steps", "runc", &[]);
        let failpoints = Failpoints::mount();
        for n in steps() {
            set_drop_in(RULE);
            let daemon = failpoints.daemon_that_dies_at(n);
            until_partition(&pod, &format!("although the daemon was killed at step {n}"));
            let adopting = main_pid() != daemon;

            set_drop_in("audit-interval-s = 3600\n");
            let daemon = failpoints.daemon_that_dies_at(n);
            let done = output(&["steliactl", "deregister", &pod.uid]).status.success();
            let leaving = wait_until("the daemon's answer or its end", || {
                (done || main_pid() != daemon).then_some(main_pid() != daemon)
            });
            wait_until("whole or absent", || {
                (is_partition(&pod) || is_given_back(&pod)).then_some(())
            });
            println!("  step {n}: died while it adopted: {adopting}, while it deregistered: {leaving}");
            if !adopting && !leaving {
                assert!(done && is_given_back(&pod) && n > 6, "fewer than {n} steps");
                return;
            }
        }
    });
}
