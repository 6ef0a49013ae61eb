//! The daemon dies, at any moment: no VM notices, and nothing is half-done afterwards.

use std::thread::{panicking, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::*;

/// A number below this, another each time.
fn another(below: u32) -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("clock");
    now.subsec_micros() % below
}

#[test]
fn a_running_vm_does_not_notice_that_the_daemon_is_killed() {
    on_node(|| {
        let pod = Pod::vm("untouched", 2);
        let before = assert_isolated(&pod, 2);
        for _ in 0..10 {
            let pause = another(1500);
            println!("  kill after {pause} ms");
            sleep(Duration::from_millis(u64::from(pause)));
            kill_daemon();
            assert_eq!(pod.threads(), before);
            pod.wait_state("isolated");
            assert_eq!(assert_isolated(&pod, 2), before);
            pod.assert_alone();
        }
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
        let restarted = output("systemctl restart steliad");
        run("systemctl unset-environment STELIAD_FAILPOINT");
        if !restarted.status.success() {
            // It died while it started: a change was waiting for it, such as the move of a thread that KVM had just made.
            run("systemctl start steliad");
            return String::new();
        }
        daemon_pid()
    }
}

impl Drop for Failpoints {
    /// The packaged daemon runs again, also after a test that failed.
    fn drop(&mut self) {
        // The running daemon's namespace has a copy of the mount, which is busy until that daemon ends.
        let unmount = output(&["umount", "--lazy", DAEMON]);
        let unset = output("systemctl unset-environment STELIAD_FAILPOINT");
        let restart = output("systemctl restart steliad");
        if !panicking() {
            let all = [unmount, unset, restart];
            assert!(all.iter().all(|out| out.status.success()), "{all:?}");
        }
    }
}

/// The steps that the daemon is killed at: each one, or every so many from one of the first on (`STELIA_EVERY`), another at each run.
fn steps() -> impl Iterator<Item = u32> {
    let every = std::env::var("STELIA_EVERY").map_or(1, |text| text.parse().expect("STELIA_EVERY"));
    let first = 1 + another(every);
    println!("  killed at step {first}, and {every} by {every} steps later");
    (first..).step_by(every as usize)
}

/// A VM without a runner: root does on the system bus what its runner would do on the socket.
pub fn quiet_vm(name: &str) -> Pod {
    let accel = Accel::of_node();
    let qemu = accel.qemu().join(" ");
    let command = format!("stelia-runner anchor & sleep infinity & exec {qemu} -smp 2");
    let options = [accel.device(), &["--cpus", "2"]].concat();
    let pod = Pod::start(name, &options, &["sh", "-c", &command]);
    wait_until("vCPUs, helpers and the anchor", || {
        let threads = pod.threads();
        threads.vcpus.len() == 2 && threads.others.len() >= 3 && threads.anchor.len() == 1
    });
    pod.wait_settled();
    pod
}

/// Register and attach, as often as it takes: a daemon that dies leaves its caller without an answer.
pub fn isolate(pod: &Pod) {
    let threads = pod.threads();
    let anchor = pidfd(threads.anchor[0].tid);
    // As the container numbers them, which is how QEMU tells them.
    let number = |vcpu: &Thread| numbers(vcpu.tid).last().expect("NSpid").cast_signed();
    let vcpus: Vec<i32> = threads.vcpus.iter().map(number).collect();
    wait_until("registered and attached", || {
        let bus = Bus::open();
        let path = bus.try_register(&pod.uid, "", options(Some(&anchor), ""));
        let done = path.and_then(|path| bus.try_attach(&path, pod.pid, &vcpus));
        done.map_err(|error| println!("  {error}")).is_ok()
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
            let died = daemon_pid() != daemon;
            pod.wait_state("isolated");
            assert_isolated(&pod, 2);
            pod.assert_alone();
            if !died {
                println!("  fewer than {n} steps");
                assert!(n > 20, "fewer than {n} steps");
                return;
            }
            pod.deregister();
            assert_eq!(pod.threads(), before);
            wait_until("nothing is left", || leftovers().is_empty());
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
            let done = output(&["steliactl", "release", &pod.uid]).status.success();
            let died = wait_until("the daemon's answer or its end", || {
                (done || daemon_pid() != daemon).then_some(daemon_pid() != daemon)
            });
            let left = wait_until("whole or absent", || {
                let kept = pod.is("isolated") && pod.scope().exists();
                let left = pod.state().is_none() && !pod.scope().exists();
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
