//! As many instances as the node has CPUs for, on a node of its own with many (`run.sh`): the daemon is killed, and systemd
//! stands still.

use std::fs;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::support::*;

/// Longer than `WatchdogSec=` of the daemon's unit.
const BEYOND_THE_WATCHDOG: Duration = Duration::from_secs(70);
/// Where PID 1 is, alone.
const INIT: &str = "/sys/fs/cgroup/init.scope";

/// kubelet's file as it is, and as it is while another pod has these CPUs.
pub fn two_states(cpus: &str) -> [Vec<u8>; 2] {
    let now = fs::read(STATE).expect(STATE);
    run(&["kubelet-standin", "entry", "add", OTHER_POD, "other", cpus]);
    let then = fs::read(STATE).expect(STATE);
    run(&["kubelet-standin", "entry", "remove", OTHER_POD]);
    [now, then]
}

/// How many sleepers this node carries: two CPUs and the one that another pod is to get stay shared.
pub fn room() -> usize {
    online().len() - 3
}

/// Whether every float has the CPU, or none has it.
pub fn floats_have(sleepers: &[Sleeper], cpu: u32, wanted: bool) -> bool {
    let is_so = |sleeper: &Sleeper| sleeper.pod.float_cpus().contains(cpu) == wanted;
    sleepers.iter().all(is_so)
}

fn all_are(sleepers: &[Sleeper], state: &str) -> bool {
    let list = output("steliactl --no-legend -o wide list");
    let text = utf8(&list.stdout);
    sleepers.iter().all(|sleeper| {
        let line = text.lines().find(|line| line.contains(&sleeper.pod.uid));
        line.is_some_and(|line| line.split_whitespace().nth(1) == Some(state))
    })
}

fn many(bus: &Bus) -> Vec<Sleeper> {
    let started = Instant::now();
    let names = (0..room()).map(|n| format!("sleeper-{n}"));
    let sleepers: Vec<Sleeper> = names.map(|name| Sleeper::isolated(bus, &name)).collect();
    println!("  {} instances up after {:?}", sleepers.len(), started.elapsed());
    sleepers.iter().for_each(Sleeper::assert_whole);
    sleepers
}

#[test]
fn of_many_all_are_whole_after_the_daemon_was_killed() {
    on_node(|| {
        let sleepers = many(&Bus::open());
        let killed = daemon_pid();
        kill_daemon();
        wait_until(&format!("all {} isolated again", sleepers.len()), || {
            let now = daemon_pid();
            !now.is_empty() && now != killed && all_are(&sleepers, "isolated")
        });
        sleepers.iter().for_each(Sleeper::assert_whole);
    });
}

/// PID 1 stands still until this is dropped: before anything is undone, as that needs systemd.
struct Frozen;

impl Frozen {
    fn new() -> Self {
        // From here on it is undone, also when it does not come true.
        let frozen = Self;
        put(format!("{INIT}/cgroup.freeze"), "1");
        wait_until("PID 1 stands still", is_frozen);
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(format!("{INIT}/cgroup.freeze"), "0");
    }
}

fn is_frozen() -> bool {
    read(format!("{INIT}/cgroup.events")).contains("frozen 1")
}

/// The kernel keeps signals that stop a process from PID 1, but not the freezer: everybody who asks systemd for something waits
/// now, and neither `systemctl` nor the stand-in for kubelet is of use. What systemd would have to do for one must not hold
/// up the others, nor the daemon's watchdog messages.
#[test]
fn of_many_all_floats_follow_kubelet_while_systemd_stands_still() {
    on_node(|| {
        let bus = Bus::open();
        let sleepers = many(&bus);
        let late = Sleeper::start("late", &ONE_CPU);
        let (own_bus, pod, anchor) = (Bus::open(), late.pod.clone(), late.anchor);
        let cpu = last_of(&pool());
        let [now, then] = two_states(&cpu.to_string());
        wait_until("floats as before", || floats_have(&sleepers, cpu, true));
        let (daemon, restarted) = (daemon_pid(), restarts());
        let (frozen, since) = (Frozen::new(), Instant::now());
        // Its scope is systemd's to make.
        let waiting = spawn(move || drop(own_bus.register(&pod, anchor)));
        sleep(Duration::from_secs(1));
        for (state, wanted) in [(&then, false), (&now, true), (&then, false), (&now, true)] {
            replace_state(state);
            wait_until("all floats follow", || floats_have(&sleepers, cpu, wanted));
        }
        assert!(is_frozen() && !late.pod.scope().exists() && !waiting.is_finished());
        sleep(BEYOND_THE_WATCHDOG.saturating_sub(since.elapsed()));
        assert_eq!(daemon_pid(), daemon);
        drop(frozen);
        waiting.join().expect("registered");
        // What systemd noted meanwhile it has read by now: it has answered.
        assert_eq!((daemon_pid(), restarts()), (daemon, restarted));
        assert!(late.pod.scope().exists());
        wait_until("the late one floats", || {
            thread(late.floats).is_some_and(|now| now.cgroup == late.pod.float())
        });
        assert!(all_are(&sleepers, "isolated"));
        sleepers.iter().for_each(Sleeper::assert_whole);
        bus.deregister(&late.pod);
    });
    // Without any scope systemd takes the controller away, and the file with it.
    assert_eq!(read_if_there(format!("{SLICE}/cpuset.cpus.exclusive")), "");
}
