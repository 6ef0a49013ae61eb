//! Partitions are made and unmade while others move tasks between cgroups all the time, as systemd and every runtime do.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::*;

/// Shells that move themselves to and fro between two cgroups.
struct Movers {
    shells: Vec<Killed>,
    cgroup: PathBuf,
}

impl Movers {
    fn start(count: usize) -> Self {
        let cgroup = PathBuf::from(CGROUP).join("movers");
        for place in ["", "a", "b"] {
            fs::create_dir_all(cgroup.join(place)).expect("cgroup");
            // With a cpuset of its own each move waits for whoever changes cpusets.
            if place.is_empty() {
                put(cgroup.join("cgroup.subtree_control"), "+cpuset");
            }
        }
        let script = "n=0; while :; do echo 0 > $0/a/cgroup.procs && echo 0 > $0/b/cgroup.procs && n=$((n + 1)) && echo $n > $1; done";
        let shell = |number: usize| {
            let counts = format!("/run/movers-{number}");
            let shell = Command::new("sh").args(["-c", script]).arg(&cgroup).arg(counts).spawn();
            Killed(shell.expect("sh"))
        };
        let shells = (0..count).map(shell).collect();
        Self { shells, cgroup }
    }

    fn moves(&self) -> u64 {
        let count = |number: usize| -> Option<u64> { read_if_there(format!("/run/movers-{number}")).parse().ok() };
        (0..self.shells.len()).filter_map(count).sum()
    }

    fn stop(&mut self) {
        self.shells.clear();
        for place in ["a", "b", ""] {
            let path = self.cgroup.join(place);
            wait_until("empty", || fs::remove_dir(&path).is_ok());
        }
    }
}

/// On a kernel whose isolated partitions can stop the node this never ended when VMs had them: see `docs/kernels.md`.
#[test]
fn a_node_on_which_tasks_are_moved_all_the_time_stands_vms_that_come_and_go() {
    let undo = || drop(fs::remove_dir(PathBuf::from(CGROUP).join("movers")));
    on_node_undoing(undo, || {
        let sleepers = ["one", "two", "three"].map(|name| Sleeper::start(name, &ONE_CPU));
        let bus = Bus::open();
        let mut movers = Movers::start(3);
        let before = wait_until("tasks are moved", || Some(movers.moves()).filter(|moves| *moves > 0));
        for round in 0..4 {
            for sleeper in &sleepers {
                sleeper.isolate(&bus);
                assert_eq!(sleeper.pod.partition(), kind());
                assert!(workers().is_disjoint(&sleeper.pod.exclusive()), "round {round}");
            }
            for sleeper in &sleepers {
                bus.deregister(&sleeper.pod);
            }
            wait_until("given back", || partitioned().is_empty());
        }
        let moves = movers.moves() - before;
        println!("  12 partitions made and unmade during {moves} moves");
        assert!(moves > 0);
        movers.stop();
    });
}
