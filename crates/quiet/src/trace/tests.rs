use std::cell::Cell;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::files::Store;
use crate::testing::tracefs::Tracefs;
use crate::testing::{Call, FakeKernel};

const OURS: &str = "steliad-quiet";
const FOREIGN: &str = "somebody";
const MINUTE: u64 = 60_000_000;

const EVENTS: [&str; 13] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "irq_vectors/local_timer_entry",
    "irq_vectors/local_timer_exit",
    "irq_vectors/thermal_apic_entry",
    "irq_vectors/thermal_apic_exit",
    "irq_vectors/vector_alloc",
    "nmi/nmi_handler",
    "timer/hrtimer_start",
];

fn target() -> Target {
    Target {
        cpus: "2-3".parse().unwrap(),
        own: [100, 101, 107].into(),
        by_thread: false,
    }
}

/// tracefs with another program's instance, which has a trigger and a synthetic event of its own.
fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new(8);
    kernel.tree().tracefs = Some(Tracefs::with(&EVENTS));
    kernel.make_directory(&format!("{ROOT}/instances/{FOREIGN}")).unwrap();
    kernel
        .write(plan::DYNAMIC, "s:wakeup_latency u64 lat; pid_t pid")
        .unwrap();
    let at = |event: &str| format!("{ROOT}/instances/{FOREIGN}/events/{event}/trigger");
    let triggers = [
        ("sched/sched_waking", "hist:keys=pid:ts0=common_timestamp"),
        (
            "sched/sched_switch",
            "hist:keys=next_pid:wl=common_timestamp-$ts0:onmatch(sched.sched_waking).wakeup_latency($wl,next_pid)",
        ),
    ];
    for (event, text) in triggers {
        kernel.write(&at(event), text).unwrap();
    }
    kernel.tree().tracefs.as_mut().unwrap().writes.clear();
    kernel
}

fn with<T>(kernel: &FakeKernel, then: impl FnOnce(&mut Tracefs) -> T) -> T {
    then(kernel.tree().tracefs.as_mut().unwrap())
}

/// Nothing of ours is there, and what others have is as it was.
fn assert_clean(kernel: &FakeKernel) {
    let untouched = self::kernel();
    let [now, then] = [kernel, &untouched].map(|kernel| {
        with(kernel, |tracefs| {
            let synthetic = tracefs.synthetic().into_iter().map(str::to_owned).collect::<Vec<_>>();
            let instances = tracefs.instances().into_iter().map(str::to_owned).collect::<Vec<_>>();
            (instances, synthetic, tracefs.triggers(FOREIGN))
        })
    });
    assert_eq!(now, then);
    let kept = kernel.load(NAME).unwrap();
    assert!(matches!(kept.as_deref(), None | Some("null")), "{kept:?}");
}

/// A row of one of our histograms: event, keys, values, hits and sum.
type Row<'a> = (&'a str, &'a str, &'a [&'a str], u64, Option<u64>);

fn count<const N: usize>(kernel: &FakeKernel, rows: [Row<'_>; N]) {
    for (event, keys, values, hits, sum) in rows {
        with(kernel, |tracefs| tracefs.count(OURS, event, keys, values, hits, sum));
    }
}

fn switches(kernel: &FakeKernel, comm: &str, cpu: &str, hits: u64) {
    let row = (
        "sched/sched_switch",
        "next_comm,common_cpu",
        &[comm, cpu][..],
        hits,
        None,
    );
    count(kernel, [row]);
}

fn ran(kernel: &FakeKernel, comm: &str, cpu: &str, ns: u64) {
    let row = ("synthetic/stelia_run", "comm,common_cpu", &[comm, cpu][..], 1, Some(ns));
    count(kernel, [row]);
}

/// On CPU 2, as it is counted where threads are told apart.
fn by_thread(kernel: &FakeKernel, comm: &str, thread: &str, hits: u64, ns: u64) {
    let values = [comm, thread, "2"];
    let switch = (
        "sched/sched_switch",
        "next_comm,next_pid,common_cpu",
        &values[..],
        hits,
        None,
    );
    let run = (
        "synthetic/stelia_run",
        "comm,pid,common_cpu",
        &values[..],
        hits,
        Some(ns),
    );
    count(kernel, [switch, run]);
}

/// Each with its CPU, name, count and time.
pub(super) fn listed(all: &[stelia_api::attribution::Occupant]) -> Vec<(u32, &str, u64, Option<u64>)> {
    let listed = all.iter().map(|one| (one.cpu, one.name.as_str(), one.count, one.ns));
    listed.collect()
}

#[test]
fn what_ran_between_begin_and_finish_is_told_and_nothing_is_left() {
    let kernel = kernel();
    let clock = Cell::new(1000);
    begin(kernel.system(), &target(), &|| clock.get()).unwrap();
    let files = |name: &str| kernel.read(&format!("{INSTANCE}/{name}")).unwrap();
    assert_eq!((files("tracing_on").trim(), files("buffer_size_kb").trim()), ("0", "4"));
    switches(&kernel, "ksoftirqd/2", "2", 5);
    switches(&kernel, "a b, c", "3", 2);
    // Not one of the CPUs.
    switches(&kernel, "elsewhere", "4", 9);
    ran(&kernel, "ksoftirqd/2", "2", 7000);
    let (irq, n, nmi) = ("irq,name,common_cpu", "n,common_cpu", "handled,common_cpu");
    let (softirq, vector) = ("vec,common_cpu", "vector,common_cpu");
    let rows: [Row<'_>; 8] = [
        ("irq/irq_handler_entry", irq, &["30", "nvme0q3", "2"], 4, None),
        ("synthetic/stelia_irq", n, &["30", "2"], 4, Some(800)),
        ("irq/softirq_entry", softirq, &["3", "2"], 6, None),
        ("irq_vectors/local_timer_entry", vector, &["236", "3"], 250, None),
        ("synthetic/stelia_vector", n, &["236", "3"], 250, Some(9000)),
        ("irq_vectors/thermal_apic_entry", vector, &["250", "3"], 1, None),
        ("nmi/nmi_handler", nmi, &["0", "3"], 3, Some(20)),
        ("nmi/nmi_handler", nmi, &["1", "3"], 2, Some(40)),
    ];
    count(&kernel, rows);
    clock.set(61_000);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| clock.get()).unwrap();
    assert_eq!((attribution.from_us, attribution.until_us), (1000, 61_000));
    assert_eq!((attribution.cpus.as_str(), attribution.dropped), ("2-3", 0));
    assert_eq!(attribution.problems, [""; 0]);
    assert_eq!(
        listed(&attribution.tasks),
        [(2, "ksoftirqd/2", 5, Some(7000)), (3, "a b, c", 2, None)]
    );
    assert_eq!(listed(&attribution.interrupts), [(2, "30 nvme0q3", 4, Some(800))]);
    assert_eq!(listed(&attribution.softirqs), [(2, "net_rx", 6, None)]);
    let vectors = [
        (3, "local_timer", 250, Some(9000)),
        (3, "nmi", 2, Some(60)),
        (3, "thermal_apic", 1, None),
    ];
    assert_eq!(listed(&attribution.vectors), vectors);
    assert_clean(&kernel);
    let again = finish(kernel.system(), &BTreeSet::new(), &|| clock.get()).unwrap_err();
    assert!(matches!(again, TraceError::NotBegun), "{again}");
}

/// Linux 7.2.13 refuses the text of a trigger as it prints it.
#[test]
fn what_a_kernel_prints_wrong_is_read_and_removed_all_the_same() {
    let kernel = kernel();
    with(&kernel, |tracefs| tracefs.prints_cpu_twice = true);
    begin(kernel.system(), &target(), &|| 1).unwrap();
    switches(&kernel, "ksoftirqd/2", "2", 5);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2).unwrap();
    assert_eq!(attribution.problems, [""; 0]);
    assert_eq!(listed(&attribution.tasks), [(2, "ksoftirqd/2", 5, None)]);
    assert_clean(&kernel);
}

/// arm64 has neither `irq_vectors` nor `nmi`: its timer is an interrupt of each CPU.
#[test]
fn on_arm64_the_timer_is_none_of_the_devices_interrupts() {
    let kernel = kernel();
    let events: Vec<&str> = EVENTS
        .into_iter()
        .filter(|event| !["irq_vectors/", "nmi/"].iter().any(|group| event.starts_with(group)))
        .collect();
    kernel.tree().tracefs = Some(Tracefs::with(&events));
    kernel.tree().add_irq(13, "arch_timer", None);
    kernel.tree().change_irq(13, |one| one.chip = "GICv3".into());
    begin(kernel.system(), &target(), &|| 1).unwrap();
    for (irq, name) in [("13", "arch_timer"), ("30", "nvme0q3")] {
        let keys = "irq,name,common_cpu";
        count(&kernel, [("irq/irq_handler_entry", keys, &[irq, name, "2"], 4, None)]);
    }
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2).unwrap();
    assert_eq!(attribution.problems, [""; 0]);
    assert_eq!(listed(&attribution.interrupts), [(2, "30 nvme0q3", 4, None)]);
    assert_eq!(listed(&attribution.vectors), [(2, "arch_timer", 4, None)]);
}

#[test]
fn what_was_counted_while_the_rest_was_set_up_is_not_told() {
    let kernel = kernel();
    // The clock is asked when all is set and read.
    begin(kernel.system(), &target(), &|| 1000).unwrap();
    switches(&kernel, "early", "2", 5);
    ran(&kernel, "early", "2", 500);
    switches(&kernel, "both", "2", 3);
    ran(&kernel, "both", "2", 300);
    // As if this had been there at the first look.
    let mut kept = load(kernel.system()).unwrap().unwrap();
    kept.before = read_counts(&kernel, &kept.target, &kept.events).unwrap();
    save(kernel.system(), &Some(kept)).unwrap();
    switches(&kernel, "both", "2", 7);
    ran(&kernel, "both", "2", 900);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2000).unwrap();
    assert_eq!(listed(&attribution.tasks), [(2, "both", 4, Some(600))]);
}

#[test]
fn own_threads_that_no_filter_holds_are_left_out_by_their_numbers() {
    let kernel = kernel();
    let own = (1..2000).map(|i| 1_000_000 + 2 * i).collect();
    let target = Target { own, ..target() };
    begin(kernel.system(), &target, &|| 1).unwrap();
    for (comm, thread, hits, ns) in [
        ("CPU 0/KVM", "1000002", 70, 99),
        ("intruder", "1000003", 4, 11),
        ("intruder", "1000005", 3, 2),
    ] {
        by_thread(&kernel, comm, thread, hits, ns);
    }
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2).unwrap();
    assert_eq!(listed(&attribution.tasks), [(2, "intruder", 7, Some(13))]);
    assert_clean(&kernel);
}

#[test]
fn own_threads_that_are_named_at_the_end_are_left_out_too() {
    let kernel = kernel();
    let target = Target {
        by_thread: true,
        ..target()
    };
    begin(kernel.system(), &target, &|| 1).unwrap();
    // One that came meanwhile, and another's of the same name.
    for (thread, hits) in [("200", 70), ("300", 4)] {
        by_thread(&kernel, "sh", thread, hits, hits * 10);
    }
    let attribution = finish(kernel.system(), &[200, 201].into(), &|| 2).unwrap();
    assert_eq!(listed(&attribution.tasks), [(2, "sh", 4, Some(40))]);
    assert_clean(&kernel);
}

#[test]
fn a_second_begin_replaces_the_first() {
    let kernel = kernel();
    begin(kernel.system(), &target(), &|| 1000).unwrap();
    switches(&kernel, "before", "2", 5);
    let other = Target {
        cpus: "4".parse().unwrap(),
        ..Target::default()
    };
    begin(kernel.system(), &other, &|| 2000).unwrap();
    switches(&kernel, "after", "4", 1);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 3000).unwrap();
    assert_eq!((attribution.from_us, attribution.cpus.as_str()), (2000, "4"));
    assert_eq!(listed(&attribution.tasks), [(4, "after", 1, None)]);
    assert_clean(&kernel);
}

#[test]
fn what_is_dropped_is_told_as_far_as_it_was_dropped_since() {
    let kernel = kernel();
    begin(kernel.system(), &target(), &|| 1).unwrap();
    with(&kernel, |tracefs| tracefs.dropped = 1);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2).unwrap();
    assert!(attribution.dropped > 0, "{attribution:?}");
}

#[test]
fn a_count_goes_on_for_as_long_as_somebody_may_wait() {
    for (age, stays) in [(0, true), (14 * MINUTE, true), (16 * MINUTE, false)] {
        let kernel = kernel();
        begin(kernel.system(), &target(), &|| MINUTE).unwrap();
        expire(kernel.system(), MINUTE + age).unwrap();
        let finished = finish(kernel.system(), &BTreeSet::new(), &|| MINUTE + age);
        assert_eq!(finished.is_ok(), stays, "{age}");
        assert_clean(&kernel);
    }
    // A clock that was set back.
    let kernel = kernel();
    begin(kernel.system(), &target(), &|| MINUTE).unwrap();
    expire(kernel.system(), MINUTE - 1).unwrap();
    assert_clean(&kernel);
}

#[test]
fn what_a_killed_program_left_half_done_is_removed_at_the_next_start() {
    let steps = {
        let kernel = kernel();
        begin(kernel.system(), &target(), &|| 1).unwrap();
        with(&kernel, |tracefs| tracefs.writes.clone())
    };
    for done in 0..=steps.len() {
        let kernel = kernel();
        kernel.make_directory(INSTANCE).unwrap();
        for (path, text) in &steps[..done] {
            kernel.write(path, text).unwrap();
        }
        // One that this version does not set.
        let other = plan::trigger("timer/hrtimer_start");
        kernel.write(&other, "hist:keys=hrtimer:ts9=common_timestamp").unwrap();
        expire(kernel.system(), 1).unwrap();
        assert_clean(&kernel);
    }
}

#[test]
fn without_tracefs_and_without_the_event_it_is_said_so() {
    let none = FakeKernel::new(8);
    let error = begin(none.system(), &target(), &|| 1).unwrap_err().to_string();
    assert!(error.contains("not mounted at /sys/kernel/tracing"), "{error}");
    remove(none.system()).unwrap();
    let bare = FakeKernel::new(8);
    bare.tree().tracefs = Some(Tracefs::with(&["timer/hrtimer_start"]));
    let error = begin(bare.system(), &target(), &|| 1).unwrap_err().to_string();
    assert_eq!(error, "the kernel has no event sched/sched_switch");
    assert_eq!(with(&bare, |tracefs| tracefs.instances().len()), 0);
}

#[test]
fn without_synthetic_events_all_is_counted_and_nothing_timed() {
    let kernel = kernel();
    with(&kernel, |tracefs| tracefs.without_synthetic = true);
    begin(kernel.system(), &target(), &|| 1).unwrap();
    switches(&kernel, "intruder", "2", 5);
    let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 2).unwrap();
    assert_eq!(listed(&attribution.tasks), [(2, "intruder", 5, None)]);
    let begins = [
        "how long tasks ran is not known: write \"s:stelia_run",
        "how long devices' interrupts took is not known: ",
        "how long softirqs took is not known: ",
        "how long the CPUs' own interrupts took is not known: ",
    ];
    for (problem, begins) in attribution.problems.iter().zip(begins) {
        assert!(problem.starts_with(begins), "{problem}");
    }
    assert_eq!(attribution.problems.len(), begins.len());
    assert_clean(&kernel);
}

#[test]
fn a_refused_trigger_is_a_problem_with_the_kernels_reason() {
    let kernel = kernel();
    begin(kernel.system(), &target(), &|| 1).unwrap();
    let path = format!("{INSTANCE}/events/sched/sched_switch/trigger");
    let error = kernel
        .write(&path, "hist:keys=next_pid:x=common_timestamp-$nothing")
        .unwrap_err();
    let error = explained(&kernel, error).to_string();
    assert!(error.ends_with(": Couldn't find it"), "{error}");
}

proptest! {
    /// Whichever write, directory or record fails: either nothing is begun and nothing is left, or a problem says what is
    /// missing and the rest is counted.
    #[test]
    fn whatever_fails_nothing_is_left(
        cpus in prop::collection::btree_set(0_u32..8, 1..8),
        own in prop::collection::btree_set(1_i32..40, 0..12),
        event in prop::sample::select(EVENTS.to_vec()),
        call in prop::sample::select(vec![Call::Write, Call::Read, Call::List, Call::Make, Call::Save]),
        times in 1_u32..3,
    ) {
        let kernel = kernel();
        let path = match call {
            Call::Write => plan::trigger(event),
            Call::Read => plan::hist(event),
            Call::List => format!("{INSTANCE}/events/{}", event.split('/').next().unwrap()),
            Call::Save => NAME.to_owned(),
            _ => INSTANCE.to_owned(),
        };
        kernel.tree().fail(call, &path, Errno::IO, Some(times));
        let target = Target { cpus: cpus.iter().copied().collect(), own, ..Target::default() };
        let begun = begin(kernel.system(), &target, &|| 5);
        kernel.tree().heal();
        match begun {
            Ok(()) => {
                let cpu = cpus.iter().next().unwrap().to_string();
                switches(&kernel, "intruder", &cpu, 3);
                let attribution = finish(kernel.system(), &BTreeSet::new(), &|| 6).unwrap();
                prop_assert_eq!(attribution.tasks.len(), 1);
            }
            Err(error) => prop_assert!(error.to_string().len() > 10),
        }
        // What could not be kept is found at the next start.
        expire(kernel.system(), 6).unwrap();
        assert_clean(&kernel);
    }
}
