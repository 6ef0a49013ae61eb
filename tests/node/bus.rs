//! The system bus and systemd are started anew: no VM notices.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use crate::crash::{isolate, quiet_vm};
use crate::support::*;

#[test]
fn a_bus_that_is_restarted_brings_the_daemon_back_and_no_vm_notices() {
    on_node(|| {
        let pod = Pod::vm("untouched", 2);
        let before = assert_isolated(&pod, 2);
        let daemon = daemon_pid();
        restart("dbus.service");
        assert_eq!(pod.threads(), before);
        wait_new_daemon(&daemon);
        pod.wait_state("isolated");
        assert_eq!(assert_isolated(&pod, 2), before);
        let bus = "org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus";
        let owner = run(&format!(
            "busctl call {bus} GetConnectionUnixProcessID s io.stelia.Isolation1"
        ));
        assert_eq!(owner, format!("u {}", daemon_pid()));
        let later = Pod::vm("later", 2);
        assert_isolated(&later, 2);
        // What floats follows the shared pool, which the newcomer made smaller.
        assert_eq!(assert_isolated(&pod, 2).vcpus, before.vcpus);
        later.delete(1);
    });
}

/// Set however the block ends.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The container's runtime needs systemd too and is not what is tested: the pod is there before, and asks by itself.
#[test]
fn registrations_come_through_while_systemd_executes_itself_anew() {
    on_node(|| {
        let pod = quiet_vm("restless");
        let before = pod.threads();
        let daemon = daemon_pid();
        let (over, reexecuted) = (AtomicBool::new(false), AtomicU32::new(0));
        scope(|threads| {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let done = output("systemctl daemon-reexec").status.success();
                    reexecuted.fetch_add(u32::from(done), Ordering::Relaxed);
                    // It must come to something in between.
                    sleep(Duration::from_secs(2));
                }
            });
            // The scope waits for the thread, also when a promise was broken.
            let _over = AtEnd(&over);
            let mut rounds = 0;
            // A quick machine has time for more.
            while rounds < 4 || reexecuted.load(Ordering::Relaxed) < 2 {
                rounds += 1;
                assert!(rounds < 500, "systemd is not executed anew");
                isolate(&pod);
                assert_isolated(&pod, 2);
                wait_until("deregistered", || {
                    output(&["steliactl", "release", &pod.uid]);
                    pod.state().is_none()
                });
                assert_eq!(pod.threads(), before);
            }
            println!("  {rounds} rounds, systemd was executed anew {reexecuted:?} times");
        });
        wait_until("nothing is left", || leftovers().is_empty());
        // And as ever afterwards, by the same daemon.
        isolate(&pod);
        assert_isolated(&pod, 2);
        assert_eq!(daemon_pid(), daemon);
        pod.deregister();
    });
}
