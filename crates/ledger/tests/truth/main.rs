//! Accounts are what ran: the daemon's recorder runs on a model of a host that counts everything, and accounts are compared with it.

#![allow(clippy::unwrap_used)]

mod container;
mod host;
mod play;
mod recorder;

use proptest::prelude::*;

use stelia_ledger::entry::Closed;

use host::{Run, VMS};
use play::{Played, Step, play, play_until_now};

fn runs(workers: bool) -> impl Strategy<Value = Run> {
    let workers = u32::from(workers);
    prop_oneof![
        4 => Just(Run::Own),
        2 => Just(Run::Foreign),
        2 => (0..3usize).prop_map(Run::Bound),
        1 => Just(Run::Device),
        workers => (0..=2u64).prop_map(Run::Created),
        workers => Just(Run::Ends),
    ]
}

/// `slack`: the most runs between two readings of a sample; `pause`: the longest time between two steps, microseconds.
fn steps(workers: bool, slack: usize, pause: u64) -> impl Strategy<Value = Vec<Step>> {
    let on_a_cpu = move || (0..3usize, runs(workers));
    let during = move || proptest::collection::vec(on_a_cpu(), 0..=slack);
    let sample = (
        during(),
        during(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.15),
    );
    let step = prop_oneof![
        8 => on_a_cpu().prop_map(|(cpu, what)| Step::Run(cpu, what)),
        5 => sample.prop_map(|(before, after, taken, segment)| Step::CounterSample { before, after, taken, segment }),
        3 => (1..pause).prop_map(Step::Later),
        1 => Just(Step::Killed),
        1 => Just(Step::Stopped),
        1 => (-5_000_000_000_000..5_000_000_000_000i64).prop_map(Step::Clock),
        1 => (0..3usize).prop_map(Step::Hidden),
        1 => (0..2usize, 0..3usize).prop_map(|(vm, state)| Step::State(vm, state)),
        1 => Just(Step::Boot),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The actual counts are within the bounds of each VM's account, in total and on each day, and the days add up to the totals.
fn check(played: &Played) -> Result<(), TestCaseError> {
    for vm in VMS {
        let account = played.account(vm);
        let truth = played.truth(vm);
        let told = account.totals.other_tasks;
        prop_assert!(
            told.least <= truth.foreign && truth.foreign <= told.most,
            "{told:?}, {truth:?}"
        );
        for (day, foreign) in &truth.days {
            let told = account.days.iter().find(|told| told.day == *day);
            let told = told.map(|day| day.other_tasks).unwrap_or_default();
            prop_assert!(
                told.least <= *foreign && *foreign <= told.most,
                "{day}: {told:?}, {foreign}"
            );
        }
        prop_assert_eq!(account.totals.devices.values().sum::<u64>(), truth.devices);
        prop_assert_eq!(account.days.iter().map(|day| day.devices).sum::<u64>(), truth.devices);
        prop_assert_eq!(account.totals.own.ns, truth.own_ns);
        prop_assert_eq!(account.covered_us, truth.covered_us);
        prop_assert_eq!(
            account.days.iter().map(|day| day.covered_us).sum::<u64>(),
            account.covered_us
        );
        prop_assert_eq!(
            account.days.iter().map(|day| day.promised_us).sum::<u64>(),
            account.promised_us
        );
        prop_assert!(account.covered_us <= account.promised_us);
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_truth_lies_between_least_and_most(steps in steps(true, 3, 7_200_000_000)) {
        check(&play(&steps))?;
        check(&play_until_now(&steps))?;
    }

    #[test]
    fn counts_are_exact_where_nothing_ran_meanwhile_and_no_worker_may_have_come_and_gone(
        steps in steps(false, 0, 60_000_000)
    ) {
        for played in [play(&steps), play_until_now(&steps)] {
            check(&played)?;
            for vm in VMS {
                let (told, truth) = (played.account(vm).totals.other_tasks, played.truth(vm));
                if played.max_sample_gap_us <= 240_000_000 {
                    prop_assert_eq!((told.least, told.most), (truth.foreign, truth.foreign));
                }
            }
        }
    }

    #[test]
    fn a_daemon_that_is_killed_changes_no_total(steps in steps(false, 3, 7_200_000_000)) {
        // A change of the CPUs between the last entry and the kill would lose the last window.
        let plain = |step: &Step| matches!(step, Step::Run(..) | Step::Later(_) | Step::CounterSample { .. } | Step::Killed);
        let killed: Vec<Step> = steps.into_iter().filter(plain).collect();
        let undisturbed: Vec<Step> =
            killed.iter().filter(|step| !matches!(step, Step::Killed)).cloned().collect();
        let (killed, undisturbed) = (play_until_now(&killed), play_until_now(&undisturbed));
        for vm in VMS {
            let totals = |played: &Played| {
                let totals = played.account(vm).totals;
                (totals.devices, totals.own, totals.delay_ns, totals.upkeep)
            };
            prop_assert_eq!(totals(&killed), totals(&undisturbed));
        }
    }

    #[test]
    fn whatever_the_entries_are_there_is_an_account(
        steps in steps(true, 2, 7_200_000_000),
        cut in 0..40usize, swap in 0..40usize, number in any::<u64>(),
    ) {
        let mut ring = play(&steps).ring;
        let length = ring.entries.len();
        if length > 0 {
            ring.entries.swap(cut % length, swap % length);
            if let Some(reading) = ring.entries[cut % length].readings.first_mut() {
                reading.numbers[swap % 6] = number;
            }
            ring.entries.remove(swap % length);
        }
        for vm in VMS {
            ring.account(vm);
        }
    }

    #[test]
    fn nobody_else_is_a_proof_whoever_is_killed_when(steps in steps(false, 0, 7_200_000_000)) {
        let none: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Run(_, Run::Foreign))).collect();
        let played = play(&none);
        for vm in VMS {
            let told = played.account(vm).totals.other_tasks;
            prop_assert_eq!((told.least, told.most), (0, 0));
        }
    }

    /// Where the threads run while they are read each reading is uncertain by itself; a period is so by its two ends alone.
    #[test]
    fn a_period_is_uncertain_by_its_ends_alone(slack in 1..6usize, looks in 100..200usize) {
        let kind = |number: usize| if number.is_multiple_of(2) { Run::Own } else { Run::Bound(0) };
        let during: Vec<_> = (0..slack).map(|number| (0, kind(number))).collect();
        let sample = Step::CounterSample { before: during.clone(), after: during, taken: true, segment: false };
        let round = [Step::Later(200_000_000), Step::Run(0, Run::Foreign), sample];
        let played = play(&vec![round; looks].concat());
        check(&played)?;
        let told = played.account(VMS[0]).totals.other_tasks;
        prop_assert!(told.least > 0 && told.most - told.least <= 4 * slack as u64, "{told:?}");
    }
}

/// A look at which nothing runs meanwhile, after so many seconds; the ring takes it or does not.
fn look(seconds: u64, taken: bool) -> [Step; 2] {
    let sample = Step::CounterSample {
        before: Vec::new(),
        after: Vec::new(),
        taken,
        segment: false,
    };
    [Step::Later(seconds * 1_000_000), sample]
}

fn sample(seconds: u64) -> [Step; 2] {
    look(seconds, true)
}

fn steps_of(steps: impl IntoIterator<Item = Vec<Step>>) -> Vec<Step> {
    steps.into_iter().flatten().collect()
}

#[test]
fn a_seat_that_ends_is_covered_until_it_was_last_looked_at() {
    let quiet: Vec<Step> = (0..20).flat_map(|_| sample(30)).collect();
    let last = vec![Step::Run(2, Run::Foreign), Step::Run(2, Run::Device)];
    let ends = vec![Step::State(1, 2)];
    let played = play(&steps_of([quiet, last, sample(30).into(), ends, sample(30).into()]));
    check(&played).unwrap();
    let account = played.account(VMS[1]);
    // The first sample is the seat's first reading.
    assert_eq!(account.covered_us / 1_000_000, 20 * 30);
    assert_eq!((account.promised_us - account.covered_us) / 1_000_000, 30);
    assert_eq!(
        (account.totals.other_tasks.least, account.totals.other_tasks.most),
        (1, 1)
    );
}

#[test]
fn what_ran_while_a_vm_had_no_cpus_is_nobodys_although_the_ring_was_full_then() {
    let floating = [vec![Step::State(1, 2)], look(30, false).into()].concat();
    let others = vec![Step::Run(2, Run::Foreign); 9];
    let back = vec![Step::State(1, 0)];
    let played = play(&steps_of([
        sample(30).into(),
        sample(30).into(),
        floating,
        others,
        back,
        sample(30).into(),
        sample(30).into(),
    ]));
    check(&played).unwrap();
    let account = played.account(VMS[1]);
    assert_eq!(
        (account.totals.other_tasks.most, account.gaps.len()),
        (0, 1),
        "{account:#?}"
    );
}

#[test]
fn a_worker_that_nobody_saw_is_never_told_for_certain_as_another_task() {
    let lived = vec![
        Step::Run(0, Run::Created(1)),
        Step::Run(0, Run::Bound(1)),
        Step::Later(301_000_000),
        Step::Run(0, Run::Ends),
    ];
    let played = play(&steps_of([
        sample(30).into(),
        vec![Step::Killed],
        lived,
        sample(30).into(),
        sample(30).into(),
    ]));
    check(&played).unwrap();
    let told = played.account(VMS[0]).totals.other_tasks;
    assert_eq!((told.least, told.most), (0, 3));
    // Two readings later it is as certain as before.
    let intruder = vec![Step::Run(0, Run::Foreign)];
    let (first, killed) = (sample(30).into(), vec![Step::Killed]);
    let played = play(&steps_of([
        first,
        killed,
        sample(400).into(),
        intruder,
        sample(30).into(),
    ]));
    let told = played.account(VMS[0]).totals.other_tasks;
    assert_eq!((told.least, told.most), (1, 1));
}

#[test]
fn an_upgrade_is_no_time_without_a_look() {
    let quiet: Vec<Step> = (0..40).flat_map(|_| sample(30)).collect();
    let intruder = vec![Step::Run(0, Run::Foreign)];
    let played = play(&steps_of([quiet, vec![Step::Stopped], intruder, sample(60).into()]));
    check(&played).unwrap();
    let told = played.account(VMS[0]).totals.other_tasks;
    assert_eq!((told.least, told.most), (1, 1));
}

const HOUR: i64 = 3_600_000_000;

/// 31 days of a sample every four minutes, and how many foreign switch-ins each VM had in them: each just before a sample. The clock is set by
/// more than a day, forth and back; the host boots twice; the daemon is killed and stopped; a CPU is away, and a VM has no CPUs for a while.
fn a_month() -> (Vec<Step>, [u64; 2]) {
    let (mut steps, mut foreign) = (Vec::new(), [0, 0]);
    for hour in 0..31 * 24 {
        match hour {
            70 => steps.push(Step::Clock(26 * HOUR)),
            120 => steps.push(Step::Clock(-26 * HOUR)),
            220 => steps.push(Step::Clock(-75 * HOUR)),
            290 => steps.push(Step::Clock(75 * HOUR)),
            330 => steps.push(Step::Killed),
            380 => steps.push(Step::Stopped),
            420 => steps.push(Step::Hidden(1)),
            470 | 600 => steps.push(Step::Boot),
            520 => steps.push(Step::State(1, 2)),
            523 => steps.push(Step::State(1, 0)),
            _ => {}
        }
        for part in 0..15 {
            steps.extend([Step::Run(hour % 3, Run::Own), Step::Run((hour + 1) % 3, Run::Bound(0))]);
            if part == 14 && hour % 7 == 0 && !(520..=523).contains(&hour) {
                steps.extend([Step::Run(hour % 3, Run::Foreign), Step::Run(hour % 3, Run::Foreign)]);
                foreign[usize::from(hour % 3 == 2)] += 2;
            }
            let [later, mut sample] = sample(239);
            if let Step::CounterSample { segment, .. } = &mut sample {
                *segment = part == 0 && hour % 50 == 0;
            }
            steps.extend([later, sample]);
        }
    }
    (steps, foreign)
}

#[test]
fn a_month_with_clocks_set_both_ways_and_boots_adds_up() {
    let (steps, foreign) = a_month();
    let played = play(&steps);
    check(&played).unwrap();
    for (vm, foreign) in VMS.into_iter().zip(foreign) {
        let account = played.account(vm);
        let told = account.totals.other_tasks;
        assert_eq!((told.least, told.most), (foreign, foreign), "{vm}");
        let sum = account.days.iter().map(|day| day.other_tasks.most).sum::<u64>();
        assert_eq!(sum, foreign, "{vm} by day");
        assert!(account.days.len() >= 28, "{} days", account.days.len());
        let booted = account.gaps.iter().filter(|gap| gap.why == Closed::Boot).count();
        assert!(booted >= 2, "{:?}", account.gaps);
        // At each boot an hour at most is not known, and while the CPU is away.
        assert!(account.covered_us < account.promised_us);
        assert!(account.covered_us / 99 >= account.promised_us / 100, "{account:#?}");
    }
}
