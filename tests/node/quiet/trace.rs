//! Who ran on a VM's CPUs, as `steliad-quiet` has the kernel count it: held against a trace of each switch, by another instance of
//! tracefs, and against `/proc/interrupts`. No times: they mean nothing on an emulated node.

use std::collections::BTreeSet;
use std::path::Path;

use stelia_api::attribution::Attribution;
use stelia_cpus::CpuSet;
use steliad_quiet::order::{OrderAnswer, Target};
use steliad_quiet::request::Request;

use super::interrupts::{Interrupt, Watch};
use super::load::{core, read_blocks_on};
use super::{NVME, PROGRAM, UNITS, come_back, from_the_daemons_cgroup, vm_on, wait_steered};
use crate::ledger::intruder::{Intruder, TIMES};
use crate::support::*;

const TRACEFS: &str = "/sys/kernel/tracing";
const OURS: &str = "/sys/kernel/tracing/instances/steliad-quiet";
/// A name that is hard to read in a text.
const NAME: &str = "in }, \"x: 7";

/// What of ours is in tracefs.
pub fn remains() -> Vec<String> {
    let events = read_if_there(format!("{TRACEFS}/dynamic_events"));
    let events = events.lines().filter(|line| line.contains("stelia")).map(str::to_owned);
    let instance = Path::new(OURS).exists().then(|| OURS.to_owned());
    events.chain(instance).collect()
}

fn asked(request: &Request) -> OrderAnswer {
    let answer = from_the_daemons_cgroup(&serde_json::to_string(request).expect("JSON"));
    parse(&answer)
}

fn begin(target: &Target) {
    let answer = asked(&Request::Begin(target.clone()));
    assert!(matches!(answer, OrderAnswer::Begun), "{answer:?}");
}

fn refused(request: &Request) -> String {
    match asked(request) {
        OrderAnswer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

fn target(pod: &Pod) -> Target {
    Target {
        cpus: pod.exclusive(),
        own: pod.threads().vcpus.iter().map(|thread| thread.tid as i32).collect(),
        by_thread: false,
    }
}

/// Each switch to a task of that name on these CPUs, written down one by one.
fn witness(cpus: &CpuSet) -> Trace {
    Trace::switches_to("witness", cpus, "in }*")
}

fn counted(attribution: &Attribution, name: &str) -> u64 {
    let tasks = attribution.tasks.iter().filter(|one| one.name == name);
    tasks.map(|one| one.count).sum()
}

/// Also where the VM is pinned and not isolated.
pub fn an_intruder_is_named_with_each_of_its_switches() {
    let queue = Interrupt::named("nvme0q1");
    let pod = vm_on("traced", &core(&queue.placed()));
    let own = pod.exclusive();
    wait_steered(&own);
    let target = target(&pod);
    assert_eq!(target.own.len(), 2, "{:?}", pod.threads());

    // The daemon's own count after an intrusion would replace this one.
    let stopped = StoppedDaemon::stop();
    begin(&target);
    let witness = witness(&own);
    let watch = Watch::start(&own);
    let first = first_of(&own);
    Intruder::in_vcpu(&pod, first, NAME).run();
    let reader = first_of(&queue.mask().difference(&own));
    read_blocks_on(reader, NVME, 50);
    // This program ends meanwhile, and not by itself.
    output("systemctl kill --signal=KILL steliad-quiet.service");
    wait_until("it is not running", || activity("steliad-quiet.service") != "active");
    Intruder::in_vcpu(&pod, first, NAME).run();
    let fired = watch.risen();
    let OrderAnswer::Attributed(attribution) = asked(&Request::Finish { own: BTreeSet::new() }) else {
        panic!("nothing is attributed")
    };
    let text = witness.text();
    let seen = text.lines().filter(|line| line.contains("sched_switch:")).count() as u64;
    drop(stopped);
    assert_eq!(attribution.problems, [""; 0]);
    assert_eq!((attribution.dropped, &attribution.cpus), (0, &own.to_string()));
    assert!(attribution.from_us < attribution.until_us);

    // Each sleep is a switch to it, and what else made it wait is one more.
    assert!(seen >= 2 * TIMES, "{seen}");
    assert_eq!(counted(&attribution, NAME), seen);
    let mut tasks = attribution.tasks.iter();
    let ours = tasks.find(|one| one.name == NAME && one.cpu == first);
    assert!(ours.is_some_and(|one| one.ns.is_some_and(|ns| ns > 0)), "{ours:?}");
    for thread in pod.threads().vcpus {
        assert_eq!(counted(&attribution, &thread.name), 0, "{thread:?}");
    }
    // The disk's queue fired here for what others read.
    let name = format!("{} {}", queue.irq, queue.name);
    let interrupts = attribution.interrupts.iter().filter(|one| one.name == name);
    let interrupts: u64 = interrupts.map(|one| one.count).sum();
    assert_eq!(Some(&interrupts), fired.get(&queue));
    let is_timer = |name: &str| ["local_timer", "arch_timer"].contains(&name);
    let mut vectors = attribution.vectors.iter().filter(|one| is_timer(&one.name));
    let timer = vectors.any(|one| one.count > 0 && one.ns.is_some());
    assert!(timer, "{:#?}", attribution.vectors);
    assert!(attribution.softirqs.iter().any(|one| one.count > 0));
    // The daemon may count this intrusion too, for a few seconds.
    wait_until("nothing remains of it", || remains().is_empty());
}

#[test]
fn who_else_runs_on_a_vms_cpus_is_named() {
    on_node(an_intruder_is_named_with_each_of_its_switches);
}

#[test]
fn only_vms_cpus_are_looked_at_and_what_is_begun_is_removed() {
    on_node_undoing(come_back, || {
        let pod = Pod::vm("traced", 2);
        let target = target(&pod);
        let others = Target {
            cpus: cpus("0-7"),
            ..target.clone()
        };
        let reason = refused(&Request::Begin(others));
        assert!(reason.ends_with("are no VM's"), "{reason}");
        assert_eq!(remains(), Vec::<String>::new());
        let reason = refused(&Request::Finish { own: BTreeSet::new() });
        assert!(reason.starts_with("nothing is counted"), "{reason}");

        // Twice: the second replaces the first. Somebody else's instance is left alone by all of this.
        let witness = witness(&target.cpus);
        begin(&target);
        begin(&target);
        assert!(!remains().is_empty());
        run(&[&["systemctl", "stop"], &UNITS[..]].concat());
        run(&[PROGRAM, "--restore"]);
        assert_eq!(remains(), Vec::<String>::new());
        // It can still be read.
        witness.text();
        come_back();
        let reason = refused(&Request::Finish { own: BTreeSet::new() });
        assert!(reason.starts_with("nothing is counted"), "{reason}");
    });
}
