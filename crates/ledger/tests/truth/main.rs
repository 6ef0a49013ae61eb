//! What accounts say is what ran: a host of which everything is known is read, written and added up as the daemon does it.

#![allow(clippy::unwrap_used)]

mod host;
mod play;

use proptest::prelude::*;

use host::{Run, VMS};
use play::{Played, Step, play};

fn runs(workers: bool) -> impl Strategy<Value = Run> {
    let workers = u32::from(workers);
    prop_oneof![
        4 => Just(Run::Own),
        2 => Just(Run::Foreign),
        2 => (0..3usize).prop_map(Run::Bound),
        1 => Just(Run::Device),
        workers => (0..=2u64).prop_map(Run::Born),
        workers => Just(Run::Ends),
    ]
}

/// `rest`: the longest time between two steps, microseconds.
fn steps(workers: bool, slack: usize, rest: u64) -> impl Strategy<Value = Vec<Step>> {
    let on_a_cpu = move || (0..3usize, runs(workers));
    let during = move || proptest::collection::vec(on_a_cpu(), 0..=slack);
    let look = (
        during(),
        during(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.15),
    );
    let step = prop_oneof![
        8 => on_a_cpu().prop_map(|(cpu, what)| Step::Run(cpu, what)),
        5 => look.prop_map(|(before, after, taken, segment)| Step::Look { before, after, taken, segment }),
        3 => (1..rest).prop_map(Step::Later),
        1 => Just(Step::Killed),
        1 => Just(Step::Stopped),
        1 => (-5_000_000_000_000..5_000_000_000_000i64).prop_map(Step::Clock),
        1 => (0..3usize).prop_map(Step::Hidden),
        1 => (0..2usize, 0..3usize).prop_map(|(vm, state)| Step::State(vm, state)),
        1 => Just(Step::Boot),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Each VM's range has the truth in it, in all and on each day, and its days are its totals.
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
            let told = account
                .days
                .iter()
                .find(|told| told.day == *day)
                .map(|day| day.other_tasks)
                .unwrap_or_default();
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
    }

    #[test]
    fn counts_are_exact_where_nothing_ran_meanwhile_and_no_worker_may_have_come_and_gone(
        steps in steps(false, 0, 60_000_000)
    ) {
        let played = play(&steps);
        check(&played)?;
        for vm in VMS {
            let (told, truth) = (played.account(vm).totals.other_tasks, played.truth(vm));
            if played.longest_rest <= 240_000_000 {
                prop_assert_eq!((told.least, told.most), (truth.foreign, truth.foreign));
            }
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
        let look = Step::Look { before: during.clone(), after: during, taken: true, segment: false };
        let round = [Step::Later(200_000_000), Step::Run(0, Run::Foreign), look];
        let played = play(&vec![round; looks].concat());
        check(&played)?;
        let told = played.account(VMS[0]).totals.other_tasks;
        prop_assert!(told.least > 0 && told.most - told.least <= 4 * slack as u64, "{told:?}");
    }
}
