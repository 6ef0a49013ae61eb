//! The ledger of whole containers.

use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use super::accounts::{account, booked_as_traced, difference, settled, wait_booked};
use super::intruder::{Intruder, TIMES};
use crate::contained::{configure, unconfigure};
use crate::container::{own, until_partition};
use crate::support::host::{output, run, wait_until};
use crate::support::pods::{Pod, on_node_undoing};
use crate::support::promise::state;

const RULE: &str =
    "audit-interval-s = 3600\n[[adopt]]\nname = \"databases\"\nkind = \"container\"\npods = [\"ledger-*\"]\n";
/// More threads than CPUs, none of which ever ends.
const SERVICE: &str = "for n in 1 2 3; do { while :; do :; done; } & done; exec sleep 100000";

fn kill(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("its end");
}

/// Whether the journal says of this pod that something else ran on its CPUs.
fn told(pod: &Pod) -> bool {
    let grep = "--grep=something else ran on the CPUs";
    let told = output(&["journalctl", "--boot", "--output=cat", grep, "--unit=steliad"]);
    String::from_utf8_lossy(&told.stdout).contains(&pod.name)
}

#[test]
fn a_steady_service_is_alone_and_a_task_that_is_moved_into_it_hides_nobody() {
    on_node_undoing(unconfigure, || {
        configure(RULE);
        let pod = Pod::start("ledger-steady", &["--cpus", "2"], &["sh", "-c", SERVICE]);
        until_partition(&pod, "after its start");
        wait_booked(&pod);
        assert!(account(&pod).is_container);
        booked_as_traced(&pod, "a steady service", || {
            sleep(Duration::from_secs(3));
            0
        });
        // It ran some hundred times elsewhere before it comes, and never again.
        let script = "for n in $(seq 300); do sleep 0.001; done; touch /tmp/ledger-ran; exec sleep 1000";
        let _ = std::fs::remove_file("/tmp/ledger-ran");
        let moved = Command::new("bash").args(["-c", script]).spawn().expect("bash");
        wait_until("it has run", || std::fs::metadata("/tmp/ledger-ran").ok());
        let before = settled(&pod);
        std::fs::write(own(&pod).join("cgroup.procs"), moved.id().to_string()).expect("into the container");
        let after = settled(&pod);
        println!(
            "  moved: {:?} to {:?}",
            before.totals.other_tasks, after.totals.other_tasks
        );
        assert_eq!(
            after.totals.other_tasks.least, before.totals.other_tasks.least,
            "{after:#?}"
        );
        assert_eq!(after.gaps, before.gaps, "its runs elsewhere contradict nothing");
        booked_as_traced(&pod, "beside the one that came", || {
            sleep(Duration::from_secs(3));
            0
        });
        kill(moved);
        // Tasks that begin and end are the container's own: at most so many others.
        let before = settled(&pod);
        let loops = "for n in $(seq 40); do sleep 0.01; done";
        run(&["kubelet-standin", "pod", "exec", &pod.name, "--", "sh", "-c", loops]);
        let after = settled(&pod);
        println!(
            "  exec'd: {:?} to {:?}",
            before.totals.other_tasks, after.totals.other_tasks
        );
        assert_eq!(
            after.totals.other_tasks.least, before.totals.other_tasks.least,
            "{after:#?}"
        );
        assert!(
            after.totals.other_tasks.most > before.totals.other_tasks.most,
            "{after:#?}"
        );
        run(&["steliactl", "reconcile"]);
        assert!(!told(&pod), "an interval with 0 in it is no intrusion");
        // It is shown as a container's, and none of its tasks is named as another's.
        let text = run(&["steliactl", "ledger", &pod.uid]);
        assert!(text.contains("container's CPUs") && !text.contains("VM's"), "{text}");
        let watched = run(&["steliactl", "-o", "json", "ledger", &pod.uid, "--watch", "3s"]);
        let watched: serde_json::Value = serde_json::from_str(&watched).expect("JSON");
        let names: Vec<&str> = watched["tasks"]
            .as_array()
            .expect("tasks")
            .iter()
            .filter_map(|task| task["name"].as_str())
            .collect();
        assert!(
            names.iter().all(|name| !["sh", "sleep", "bash"].contains(name)),
            "{watched:#}"
        );
        // A restarted daemon has a gap with its reason, and goes on.
        run(&["systemctl", "restart", "steliad"]);
        wait_booked(&pod);
        wait_until("the gap is told", || {
            let whys: Vec<_> = account(&pod).gaps.iter().map(|gap| gap.why).collect();
            whys.contains(&stelia_ledger::entry::Closed::Restarted).then_some(())
        });
    });
}

#[test]
fn who_runs_beside_a_contained_container_is_booked() {
    on_node_undoing(unconfigure, || {
        configure(&format!("partition = \"member\"\n{RULE}"));
        let pod = Pod::start("ledger-contained", &["--cpus", "2"], &["sleep", "100000"]);
        wait_until("it is contained", || {
            (state(&pod).as_deref() == Some("contained")).then_some(())
        });
        wait_booked(&pod);
        let cpu = pod.exclusive().iter().next().expect("a CPU");
        // Nothing of the container runs, so this is certain, unless a bound kernel thread ends meanwhile.
        let certain = (0..3).any(|_| {
            let before = settled(&pod);
            Intruder::beside(cpu, "intruder").intrude();
            wait_until("it is in the account", || {
                let booked = difference(account(&pod).totals.other_tasks, before.totals.other_tasks);
                (booked.most >= TIMES).then_some(())
            });
            let after = settled(&pod);
            let booked = difference(after.totals.other_tasks, before.totals.other_tasks);
            println!("  booked {booked:?}");
            booked.least >= TIMES
        });
        assert!(certain, "never was it certain");
        run(&["steliactl", "reconcile"]);
        wait_until("it is told", || told(&pod).then_some(()));
    });
}
