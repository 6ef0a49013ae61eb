//! What becomes of the ledger while something happens to the daemon or to the VM: nothing is lost, and nothing is booked twice.

use std::collections::BTreeSet;
use std::path::Path;

use stelia_ledger::account::{Gap, Range};
use stelia_ledger::entry::{Closed, Event};
use stelia_ledger::ring::read;

use super::intruder::{Intruder, TIMES};
use super::{DIRECTORY, account, booked_as_traced, difference, more, settled, wait_booked};
use crate::support::*;

/// Switch-ins of others that were recorded.
fn traced(pod: &Pod, vcpus: &[Thread]) -> u64 {
    times(&strange_to_vcpus(&recorded(&pod.exclusive()), vcpus))
}

#[test]
fn what_ran_while_the_daemon_was_away_is_booked_once_by_the_next_one() {
    on_node(|| {
        let pod = Pod::vm("away", 2);
        let vcpus = assert_isolated(&pod, 2).vcpus;
        let cpu = first_of(&pod.exclusive());
        wait_booked(&pod);
        // The time until a new VM's counters are read is a gap.
        let gaps = account(&pod).gaps;
        let booked_while = |what: &str, away: &dyn Fn(Intruder)| {
            let after = booked_as_traced(&pod, what, || {
                let intruder = Intruder::in_vcpu(&pod, cpu, "intruder");
                start_recording(&pod.exclusive());
                away(intruder);
                pod.wait_state("isolated");
                stop_recording();
                let traced = traced(&pod, &vcpus);
                assert!(traced >= TIMES, "it did not intrude: {traced}");
                traced
            });
            assert_eq!(after.gaps, gaps, "{what}");
        };
        booked_while("it sees nothing and is killed", &|intruder| {
            let _stopped = StoppedDaemon::stop();
            intruder.run();
            kill_daemon();
        });
        booked_while("it is told to end", &|intruder| {
            run("systemctl stop steliad");
            intruder.run();
            run("systemctl start steliad");
        });
    });
}

/// vCPU threads of seats of this VM that were opened.
fn opened(pod: &Pod) -> BTreeSet<u32> {
    let entries = read::entries(Path::new(DIRECTORY), None).expect(DIRECTORY);
    let events = entries.flatten().flat_map(|(entry, _)| entry.events);
    let threads = events.filter_map(|event| match event {
        Event::Opened { vm, threads, .. } if vm == pod.uid => Some(threads),
        _ => None,
    });
    threads.flatten().map(|thread| thread.id.unsigned_abs()).collect()
}

/// The seat of the one that was there goes on.
#[test]
fn a_plugged_vcpu_is_booked_from_then_on_and_no_total_changes() {
    on_node(|| {
        let accel = Accel::of_node();
        let model = if accel == Accel::Kvm { "host" } else { "qemu64" };
        let machine = ["-machine", "pc", "-smp", "1,sockets=2,maxcpus=2"];
        let pod = start_on(accel, "grown", "2", &[], &[&machine, &OTHER[..]].concat()).running();
        let first = assert_isolated(&pod, 1).vcpus.remove(0);
        wait_booked(&pod);
        let cpu = first_of(&first.allowed);
        Intruder::in_vcpu(&pod, cpu, "intruder").intrude();
        let before = settled(&pod);
        assert!(before.totals.other_tasks.least >= TIMES, "{before:#?}");

        start_recording(&pod.exclusive());
        plug_vcpu(&pod, model);
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2));
        let vcpus = assert_isolated(&pod, 2).vcpus;
        let both: BTreeSet<u32> = vcpus.iter().map(|vcpu| vcpu.tid).collect();
        wait_until("both are booked", || {
            reconcile();
            both.is_subset(&opened(&pod))
        });
        // Opened at once, and read when what KVM makes late is where it belongs: from then on no time is left out.
        wait_until("both are read", || {
            reconcile();
            let (one, next) = (account(&pod), account(&pod));
            let covered = next.covered_us - one.covered_us;
            covered > 0 && covered == next.promised_us - one.promised_us
        });
        stop_recording();
        let after = settled(&pod);
        let traced = traced(&pod, &vcpus);
        let (booked, booked_before) = (after.totals.other_tasks, before.totals.other_tasks);
        // What a bound kernel thread that ended ran last; twice would be what the intruder ran once more.
        let unknown = (TIMES / 2).min(booked.most - booked.least);
        let more = booked.most - booked_before.most;
        assert!(more <= traced + unknown, "booked twice: {after:#?}");
        assert!(after.totals.other_tasks.least >= before.totals.other_tasks.least);
        assert!(after.totals.own.ns >= before.totals.own.ns && after.covered_us > before.covered_us);
        // Until the new one is pinned the VM is not isolated, which is said.
        let said = |gap: &Gap| matches!(gap.why, Closed::Moved | Closed::NotIsolated | Closed::NotRead);
        assert!(after.gaps.iter().all(said), "{:?}", after.gaps);
    });
}

/// Threads that begin to run while they are read make an interval, where five tries do not help; but never one without the truth.
#[test]
fn guests_that_sleep_and_wake_are_booked_as_nobody_or_as_an_interval_with_0_in_it() {
    on_node(|| {
        let pod = start_on(Accel::of_node(), "asleep", "4", &[], &system()).running();
        topology(&pod);
        wait_booked(&pod);
        let vcpus = pod.threads().vcpus;
        booked_as_traced(&pod, "guests that sleep", || {
            let before = settled(&pod);
            start_recording(&pod.exclusive());
            let told: Vec<Range> = (0..20).map(|_| account(&pod).totals.other_tasks).collect();
            let after = settled(&pod);
            stop_recording();
            let is_nobody = |told: &Range| more(*told, before.totals.other_tasks) == Some(0);
            let (nobody, others): (Vec<Range>, Vec<Range>) = told.into_iter().partition(is_nobody);
            let woke = after.totals.own.count - before.totals.own.count;
            assert!(woke > 100, "the guest did not wake");
            assert!(!nobody.is_empty());
            let intervals = others.iter().map(|told| difference(*told, before.totals.other_tasks));
            assert!(intervals.clone().all(|told| told.least == 0), "{others:?}");
            let traced = traced(&pod, &vcpus);
            assert_eq!(traced, 0);
            traced
        });
    });
}
