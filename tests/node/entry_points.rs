//! The two entry points: who gets in, and what those who do not belong can do to those who do.

use std::fs;
use std::process::{Command, Stdio};

use stelia_api::client::Dict;

use crate::attack::{ATTACKS, over};
use crate::ledger::wait_booked;
use crate::support::*;

#[test]
fn a_pod_that_attacks_the_socket_disturbs_nobody_else() {
    on_node(|| {
        let attacker = Pod::start("attacker", &["--cpus", "2"], &["sleep", "10000"]);
        // A daemon whose peak is of this test alone.
        restart("steliad.service");
        let pid = main_pid("steliad");
        // The first VM has things opened that stay: the ledger's ring, the connection to steliad-quiet.
        let first = Pod::vm("neighbour", 2);
        wait_booked(&first);
        first.delete(1);
        wait_until("it is gone", || scopes().is_empty());
        let (peak, open) = (kib(&pid, "VmHWM"), descriptors(&pid));
        for name in ATTACKS {
            let _ = fs::remove_file(over());
            let mut command = attacker.exec_command();
            command.args(process_words("attack", &format!("STELIA_ATTACK={name}")));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let attacking = command.spawn().expect("kubelet-standin");
            // Meanwhile somebody else comes, runs, and goes.
            let other = Pod::vm("neighbour", 2);
            assert_isolated(&other, 2);
            other.delete(1);
            put(over(), "");
            let out = attacking.wait_with_output().expect("the attack's output");
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && text.contains("ATTACKED"), "{name}: {out:?}");
            assert_eq!(main_pid("steliad"), pid, "the daemon was started again");
            let now = kib(&pid, "VmHWM");
            assert!(now < 16 << 10, "{name}: from {peak} to {now} KiB");
        }
        let left = || format!("{open} before, now {:?}", run(&format!("ls -l /proc/{pid}/fd")));
        wait_until_or("its descriptors are closed", left, || descriptors(&pid) <= open + 2);
        assert!(!journal("-u steliad.service").contains("panicked"));
        assert!(scopes().is_empty());
    });
}

#[test]
fn what_a_pod_may_not_see_answers_as_what_does_not_exist() {
    on_node(|| {
        let (one, two) = (Pod::vm("one", 2), Pod::vm("two", 2));
        let nobody = "00000000-0000-4000-8000-000000000000";
        for question in ["show", "register", "deregister"] {
            let of = |uid: &str| ask_from(&one, &format!("{question}|{uid}"));
            let (other, none) = (of(&two.uid), of(nobody));
            assert_eq!(other.0, none.0, "{question}");
            let text = other.1.replace(&two.uid, nobody);
            assert_eq!(text, none.1, "{question}");
        }
        assert_isolated(&one, 2);
        assert_isolated(&two, 2);
    });
}

#[test]
fn two_containers_of_a_pod_do_not_take_each_others_cpus() {
    on_node(|| {
        let vm = Pod::vm("two-vm", 2);
        let sidecar = ["--in", "two-vm", "--container", "sidecar", "--cpus", "2"];
        let sidecar = Pod::idle("two-side", &sidecar);
        assert_eq!(sidecar.uid, vm.uid);
        let before = assert_isolated(&vm, 2);
        for claim in [format!("|{}", vm.exclusive()), "|".to_owned()] {
            assert_refused(&ask_from(&sidecar, &claim), "InstanceExists", "has an instance already");
        }
        assert_eq!(assert_isolated(&vm, 2).vcpus, before.vcpus);
        vm.deregister();
        let own = vm.exclusive().to_string();
        assert_refused(&ask_from(&sidecar, &format!("|{own}")), "CpusetMismatch", &own);
        assert!(scopes().is_empty());
    });
}

#[test]
fn threads_and_processes_of_others_are_not_attached() {
    on_node(|| {
        let (one, two) = (Pod::vm("one", 2), Pod::vm("two", 2));
        let before = (assert_isolated(&one, 2), assert_isolated(&two, 2));
        assert_refused(&ask_from(&one, "foreign-thread"), "ForeignProcess", "thread");
        assert_refused(&ask_from(&one, "foreign-process"), "ForeignProcess", &one.uid);
        // Even root hands no process of one pod to another.
        let bus = Bus::open();
        let path = bus.block_on(async { manager(&bus.connection).await.get_instance(&one.uid).await });
        let (qemu, thread) = (before.1.one("qemu-system").tid, before.1.vcpus[0].tid.cast_signed());
        let attached = bus.try_attach(&path.expect("path"), qemu, &[thread]);
        assert_refused(&refusal(attached), "ForeignProcess", &one.uid);
        let after = (assert_isolated(&one, 2), assert_isolated(&two, 2));
        assert_eq!((after.0.vcpus, after.1.vcpus), (before.0.vcpus, before.1.vcpus));
    });
}

#[test]
fn the_sandbox_is_as_tight_as_it_is_said_to_be() {
    on_node(|| {
        for (unit, most) in [
            ("steliad.service", "18"),
            ("steliad-quiet.service", "13"),
            ("steliad-device-plugin.service", "13"),
        ] {
            let threshold = format!("--threshold={most}");
            run(&["systemd-analyze", "security", "--no-pager", &threshold, unit]);
        }
        let status = status(main_pid("steliad"));
        let field = |name: &str| field(&status, name);
        // CAP_DAC_OVERRIDE, CAP_SYS_ADMIN and CAP_SYS_NICE: 1, 21 and 23 (linux/capability.h).
        let bounds = u64::from_str_radix(&field("CapBnd:"), 16).expect("a mask");
        assert_eq!(bounds, 1 << 1 | 1 << 21 | 1 << 23);
        assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    });
}

fn as_nobody(arguments: &[&str]) -> (bool, String) {
    let call = words("runuser -u nobody -- busctl call io.stelia.Isolation1 /io/stelia/Isolation1");
    let out = output(&[&call[..], arguments].concat());
    (out.status.success(), said(&out))
}

const MANAGER: &str = "io.stelia.Isolation1.Manager";
const RULE: &str = "/etc/polkit-1/rules.d/10-test.rules";

#[test]
fn users_other_than_root_read_and_polkit_decides_the_rest() {
    on_node(|| {
        let pod = Pod::vm("watched", 2);
        let deregister = [MANAGER, "Deregister", "sa{sv}", &pod.uid, "0"];
        let reconcile = [MANAGER, "Reconcile", "a{sv}", "0"];
        let (done, text) = as_nobody(&[MANAGER, "ListInstances"]);
        assert!(done && text.contains(&pod.uid), "{text}");

        run("systemctl mask --runtime --now polkit.service");
        for call in [&deregister[..], &reconcile[..]] {
            let (done, text) = as_nobody(call);
            assert!(!done && text.contains("polkit"), "without polkitd: {text}");
        }
        // A dry run, which `steliactl verify` calls, changes nothing.
        let (done, text) = as_nobody(&[MANAGER, "Reconcile", "a{sv}", "1", "dry-run", "b", "true"]);
        assert!(done && text.contains("plan"), "without polkitd: {text}");
        run("systemctl unmask --runtime polkit.service");

        // The shipped defaults want an administrator's word.
        let (done, text) = as_nobody(&reconcile);
        assert!(!done && text.contains("io.stelia.Isolation1.maintain"), "{text}");
        let rule = "polkit.addRule(function(action, subject) {\n\
                    if (action.id == 'io.stelia.Isolation1.maintain' && subject.user == 'nobody') return polkit.Result.YES;\n\
                    });\n";
        put(RULE, rule);
        restart("polkit.service");
        let (done, text) = as_nobody(&reconcile);
        let (other, refusal) = as_nobody(&deregister);
        fs::remove_file(RULE).expect(RULE);
        run("systemctl stop polkit.service");
        assert!(done && text.contains("pass"), "{text}");
        assert!(!other && refusal.contains("manage-instances"), "{refusal}");
        pod.assert_is("isolated");
        assert_isolated(&pod, 2);
    });
}

/// What a process exec'd into the pod's container is answered that asks for wrong things on the runner socket.
fn ask_from(pod: &Pod, case: &str) -> Refusal {
    let text = pod.exec(&process_words("entry_points", &format!("STELIA_CASE={case}")));
    let line = text.lines().find_map(|line| line.split_once("REFUSED "));
    let line = line.unwrap_or_else(|| panic!("{text}")).1;
    let (name, text) = line.split_once(' ').expect("name and text");
    println!("  {case:.40}: {name}: {text}");
    (name.to_owned(), text.to_owned())
}

/// Runs in a pod: asks for the thing named by STELIA_CASE and prints the refusal.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(case) = std::env::var("STELIA_CASE") else { return };
    let (name, text) = block_on(async {
        let connection = runner_socket().await;
        let manager = manager(&connection).await;
        // A process that could be an anchor.
        let sleeper = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep"));
        let anchor = pidfd(sleeper.0.id());
        match case.split_once('|').unwrap_or((&case, "")) {
            ("foreign-thread", _) => {
                let path = manager.get_instance("").await.expect("own instance");
                // QEMU is the pod's own, the thread is not QEMU's.
                let qemu = run(&["pgrep", "-o", "-x", QEMU_NAME]).parse().expect("qemu");
                refusal(attach(&connection, &path, qemu, &[sleeper.0.id().cast_signed()]).await)
            }
            ("foreign-process", _) => {
                let path = manager.get_instance("").await.expect("own instance");
                refusal(attach(&connection, &path, sleeper.0.id(), &[1]).await)
            }
            ("show", uid) => refusal(manager.get_instance(uid).await),
            ("deregister", uid) => refusal(manager.deregister(uid, Dict::new()).await),
            ("register", uid) => refusal(register(&connection, uid, "", options(Some(&anchor), "")).await),
            (uid, cpuset) => refusal(register(&connection, uid, cpuset, options(Some(&anchor), "")).await),
        }
    });
    println!("REFUSED {name} {text}");
}
