//! kubelet, containerd, systemd, the daemon and QEMU end or start anew under a VM.

use serde_json::json;

use super::{started, started_vm};
use crate::real::kubelet::frame::{UNIT, beside_kubelet, beside_kubelet_undoing, wait_ready};
use crate::real::kubelet::manifest::{INSTANCE, apply, delete, of_kubelet, pod, running, seen, sleeper};
use crate::support::*;

/// What happens, and that no thread of the VM was moved by it.
fn assert_undisturbed(what: &str, pod: &Pod, before: &Threads, happens: impl FnOnce()) {
    println!("  {what}:");
    happens();
    reconcile();
    let now = assert_isolated(pod, 2);
    assert_eq!((&now.vcpus, &now.anchor), (&before.vcpus, &before.anchor), "{what}");
    assert_eq!(now.others.len(), before.others.len(), "{what}");
}

#[test]
fn a_vm_stays_isolated_when_everything_around_it_starts_anew() {
    beside_kubelet(&json!({}), || {
        let vm = started_vm("steady", 2);
        let before = assert_isolated(&vm, 2);
        let file = kubelet_state();
        assert_undisturbed("kubelet restarted", &vm, &before, || {
            restart(UNIT);
            wait_ready();
        });
        assert_eq!(kubelet_state(), file);
        assert_undisturbed("kubelet killed", &vm, &before, || {
            run(&["systemctl", "kill", "--signal=KILL", UNIT]);
            wait_ready();
        });
        assert_undisturbed("containerd restarted", &vm, &before, || {
            restart("containerd");
            // The container is known again, and another pod can be made.
            assert_eq!(running("steady", INSTANCE).pid, vm.pid);
            apply(&pod("after", &[sleeper("s", "500m", "32Mi")]));
            running("after", "s");
        });
        for command in ["systemctl daemon-reload", "systemctl daemon-reexec"] {
            assert_undisturbed(command, &vm, &before, || drop(run(command)));
        }
        assert_undisturbed("the daemon killed", &vm, &before, || {
            let daemon = daemon_pid();
            kill_daemon();
            wait_new_daemon(&daemon);
        });
        assert_undisturbed("kubelet away while the daemon starts", &vm, &before, || {
            run(&["systemctl", "stop", UNIT]);
            let daemon = daemon_pid();
            restart("steliad.service");
            wait_new_daemon(&daemon);
            run(&["systemctl", "start", UNIT]);
            wait_ready();
        });
        assert_undisturbed("the package removed and installed", &vm, &before, || {
            let package = std::env::var("NODE_DEB").expect("NODE_DEB");
            run("apt-get -qq remove -y steliad");
            assert_eq!(vm.threads(), before);
            run(&["apt-get", "-qq", "install", "-y", &package]);
            vm.wait_state("isolated");
        });
        delete("after");
        delete("steady");
        vm.wait_released();
    });
}

#[test]
fn a_killed_vm_is_isolated_anew_on_the_same_cpus_and_a_removed_one_leaves_nothing() {
    beside_kubelet_undoing(&json!({}), start_all, || {
        let mut vm = started_vm("mortal", 2);
        for victim in ["qemu-system-x86", "stelia-runner"] {
            assert_isolated(&vm, 2);
            let pid = container_of(vm.pid).into_keys().find(|pid| comm(pid) == victim);
            let pid = pid.unwrap_or_else(|| panic!("no {victim}"));
            println!("  {victim} is killed:");
            let dead = vm.pid;
            kill("-KILL", pid);
            wait_until("kubelet has started the container again", || {
                let now = of_kubelet(&seen("mortal")?, INSTANCE)?;
                (now.pid != dead).then_some(())
            });
            let again = started("mortal");
            assert_eq!((&again.uid, &again.cpus), (&vm.uid, &vm.cpus));
            assert_isolated(&again, 2);
            vm = again;
        }
        // Its pod ends while nobody is there who could give its CPUs back.
        stopped_but_for(None);
        delete("mortal");
        assert!(thread(vm.pid).is_none(), "{vm:?}");
        println!("  without the daemon there is left: {:?}", leftovers());
        start_all();
        vm.wait_released();
    });
}
