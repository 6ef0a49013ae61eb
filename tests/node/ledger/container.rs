//! The ledger of whole containers.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use stelia_ledger::account::Account;

use super::accounts::{account, booked_as_traced, difference, settled, wait_booked};
use super::intruder::{Intruder, TIMES};
use super::intrusions_told;
use crate::support::*;

/// Whether the journal says of this pod that something else ran on its CPUs.
fn told(pod: &Pod) -> bool {
    intrusions_told().contains(&pod.name)
}

/// Nobody else runs in 3 s.
fn assert_nobody_booked(pod: &Pod, what: &str) {
    booked_as_traced(pod, what, || {
        sleep(Duration::from_secs(3));
        0
    });
}

/// The accounts before and after this, which is no certain run of another task.
fn nobody_for_certain_while(pod: &Pod, happens: impl FnOnce()) -> (Account, Account) {
    let before = settled(pod);
    happens();
    let after = settled(pod);
    assert_eq!(
        after.totals.other_tasks.least, before.totals.other_tasks.least,
        "{after:#?}"
    );
    (before, after)
}

#[test]
fn a_steady_service_is_alone_and_a_task_that_is_moved_into_it_hides_nobody() {
    configured(DATABASES, || {
        let pod = Pod::start("database-steady", &["--cpus", "2"], &["sh", "-c", SERVICE]);
        until_partition(&pod, "after its start");
        wait_booked(&pod);
        assert!(account(&pod).is_container);
        assert_nobody_booked(&pod, "a steady service");
        // It ran some hundred times elsewhere before it comes, and never again.
        let script = "for n in $(seq 300); do sleep 0.001; done; touch /tmp/ledger-ran; exec sleep 1000";
        let _ = std::fs::remove_file("/tmp/ledger-ran");
        let moved = Killed(Command::new("bash").args(["-c", script]).spawn().expect("bash"));
        wait_until("it has run", || std::fs::metadata("/tmp/ledger-ran").ok());
        let (before, after) = nobody_for_certain_while(&pod, || {
            put(own(&pod).join("cgroup.procs"), moved.0.id().to_string());
        });
        assert_eq!(after.gaps, before.gaps, "its runs elsewhere contradict nothing");
        assert_nobody_booked(&pod, "beside the one that came");
        drop(moved);
        // Tasks that begin and end are the container's own: at most so many others.
        let loops = "for n in $(seq 40); do sleep 0.01; done";
        let (before, after) = nobody_for_certain_while(&pod, || drop(pod.exec(&["sh", "-c", loops])));
        assert!(
            after.totals.other_tasks.most > before.totals.other_tasks.most,
            "{after:#?}"
        );
        reconcile();
        assert!(!told(&pod), "an interval with 0 in it is no intrusion");
        // It is shown as a container's, and none of its tasks is named as another's.
        let text = run(&["steliactl", "ledger", &pod.uid]);
        assert!(text.contains("Guarantee:") && !text.contains("VM's"), "{text}");
        let watched = json(&run(&["steliactl", "-o", "json", "ledger", &pod.uid, "--watch", "3s"]));
        let tasks = watched["tasks"].as_array().expect("tasks").iter();
        let mut names = tasks.filter_map(|task| task["name"].as_str());
        let is_own = names.any(|name| ["sh", "sleep", "bash"].contains(&name));
        assert!(!is_own, "{watched:#}");
        // A restarted daemon has a gap with its reason, and goes on.
        restart("steliad");
        wait_booked(&pod);
        wait_until("the gap is told", || {
            let whys: Vec<_> = account(&pod).gaps.iter().map(|gap| gap.why).collect();
            whys.contains(&stelia_ledger::entry::Closed::Restarted)
        });
    });
}

#[test]
fn who_runs_beside_a_contained_container_is_booked() {
    configured(&format!("partition = \"member\"\n{DATABASES}"), || {
        let pod = Pod::start("database-pinned", &["--cpus", "2"], &["sleep", "100000"]);
        pod.wait_state("pinned");
        wait_booked(&pod);
        let cpu = first_of(&pod.exclusive());
        // Nothing of the container runs, so this is certain, unless a bound kernel thread ends meanwhile.
        let certain = (0..3).any(|_| {
            let before = settled(&pod);
            Intruder::beside(cpu, "intruder").intrude();
            wait_until("it is in the account", || {
                let booked = difference(account(&pod).totals.other_tasks, before.totals.other_tasks);
                booked.most >= TIMES
            });
            let after = settled(&pod);
            let booked = difference(after.totals.other_tasks, before.totals.other_tasks);
            booked.least >= TIMES
        });
        assert!(certain, "never was it certain");
        reconcile();
        wait_until("it is told", || told(&pod));
    });
}
