//! The accounts of one VM on several nodes and in several pods, merged into one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::{Account, Day, Ran, Totals};
use crate::day::HOUR_US;

/// Limit of the times without the VM that are listed.
const MAX_TIMES: usize = 400;

/// The account of one pod, and the copied ring that has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeAccount {
    pub node: String,
    /// Where the ring is.
    pub directory: String,
    /// The times of the ring's first and last entry, microseconds since the epoch.
    #[serde(skip)]
    pub from_us: u64,
    #[serde(skip)]
    pub until_us: u64,
    #[serde(flatten)]
    pub account: Account,
}

impl NodeAccount {
    fn overlaps(&self, other: &Self) -> bool {
        self.from_us <= other.until_us && other.from_us <= self.until_us
    }

    fn spans(&self, other: &Self) -> bool {
        self.from_us <= other.from_us && other.until_us <= self.until_us
    }
}

/// A pod that two rings have at the same times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repeated {
    /// Pod UID.
    pub vm: String,
    /// The node whose account is counted.
    pub counted: String,
    pub counted_directory: String,
    /// The node whose account is not.
    pub left_out: String,
    pub left_out_directory: String,
    /// Whether the ring that is left out has times that no counted one has.
    pub has_more_times: bool,
}

/// One account of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MergedAccount {
    /// The accounts that are counted, in the order in which their days begin.
    pub parts: Vec<NodeAccount>,
    pub promised_us: u64,
    pub covered_us: u64,
    pub totals: Totals,
    pub days: Vec<Day>,
    pub repeated: Vec<Repeated>,
    /// Whole hours of the period in which no account, counted or left out, had CPUs of its own, ascending, at most 400.
    pub without: Vec<TimeWithout>,
}

/// A time in which no account has the VM, microseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimeWithout {
    pub from_us: u64,
    pub until_us: u64,
}

impl MergedAccount {
    /// Hours without the VM are those of the period from `since_us` to `until_us`; 0: from the first hour of the accounts. A pod runs on one
    /// node, so of accounts of one pod from rings with the same times the one that covers most is counted; those of other times are added.
    pub fn of(accounts: impl IntoIterator<Item = NodeAccount>, since_us: u64, until_us: u64) -> Self {
        let mut by_pod: BTreeMap<String, Vec<NodeAccount>> = BTreeMap::new();
        for one in accounts {
            by_pod.entry(one.account.vm.clone()).or_default().push(one);
        }
        let mut merged = Self::default();
        let mut hours = Vec::new();
        for copies in by_pod.into_values() {
            hours.extend(copies.iter().flat_map(|one| one.account.hours.clone()));
            merged.add_copies(copies);
        }
        let begin = |one: &NodeAccount| one.account.days.first().map(|first| first.day.clone());
        merged.parts.sort_by_key(|one| (begin(one), one.account.name.clone()));
        let mut days: BTreeMap<String, Day> = BTreeMap::new();
        for part in &merged.parts {
            let account = &part.account;
            merged.promised_us = merged.promised_us.saturating_add(account.promised_us);
            merged.covered_us = merged.covered_us.saturating_add(account.covered_us);
            merged.totals.add(&account.totals);
            for one in &account.days {
                days.entry(one.day.clone()).or_default().merge(one);
            }
        }
        merged.days = days.into_iter().map(|(day, sums)| Day { day, ..sums }).collect();
        merged.without = without(hours, since_us, until_us);
        merged
    }

    /// Counts the accounts of one pod from copies of rings.
    fn add_copies(&mut self, mut copies: Vec<NodeAccount>) {
        copies.sort_by_key(|one| Reverse((one.account.covered_us, one.account.promised_us)));
        let mut counted: Vec<NodeAccount> = Vec::new();
        let mut left_out = Vec::new();
        for one in copies {
            if counted.iter().any(|other| other.overlaps(&one)) {
                left_out.push(one)
            } else {
                counted.push(one)
            }
        }
        for one in left_out {
            let Some(other) = counted.iter().find(|other| other.overlaps(&one)) else {
                continue;
            };
            self.repeated.push(Repeated {
                counted: other.node.clone(),
                counted_directory: other.directory.clone(),
                has_more_times: !counted.iter().any(|other| other.spans(&one)),
                vm: one.account.vm,
                left_out: one.node,
                left_out_directory: one.directory,
            });
        }
        self.parts.extend(counted);
    }
}

/// The hours of the period that are in none of these ranges.
fn without(mut hours: Vec<Range<u64>>, since_us: u64, until_us: u64) -> Vec<TimeWithout> {
    hours.sort_by_key(|range| range.start);
    let first = hours.first().map(|range| range.start);
    let begin = match (since_us, first) {
        (0, None) => return Vec::new(),
        (0, Some(first)) => first,
        _ => since_us / HOUR_US,
    };
    // The end is the first instant that is not in the period.
    let end = until_us.saturating_sub(1).max(since_us) / HOUR_US + 1;
    let (mut times, mut next) = (Vec::new(), begin);
    for range in hours.into_iter().chain(std::iter::once(end..end)) {
        if next < range.start.min(end) && times.len() < MAX_TIMES {
            times.push(TimeWithout {
                from_us: next * HOUR_US,
                until_us: range.start.min(end).saturating_mul(HOUR_US),
            });
        }
        next = next.max(range.end);
    }
    times
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.other_tasks.add(other.other_tasks);
        for (sums, counts) in [
            (&mut self.devices, &other.devices),
            (&mut self.upkeep, &other.upkeep),
            (&mut self.softirqs, &other.softirqs),
            (&mut self.own_interrupts, &other.own_interrupts),
        ] {
            for (name, count) in counts {
                let sum = sums.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        for (name, ran) in &other.kernel_threads {
            self.kernel_threads.entry(name.clone()).or_default().add(*ran);
        }
        self.own.add(other.own);
        self.delay_ns = self.delay_ns.saturating_add(other.delay_ns);
        self.steal_ns = self.steal_ns.saturating_add(other.steal_ns);
    }
}

impl Ran {
    pub(crate) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

impl Day {
    fn merge(&mut self, other: &Self) {
        self.promised_us = self.promised_us.saturating_add(other.promised_us);
        self.covered_us = self.covered_us.saturating_add(other.covered_us);
        self.other_tasks.add(other.other_tasks);
        self.devices = self.devices.saturating_add(other.devices);
        self.delay_ns = self.delay_ns.saturating_add(other.delay_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Range;

    use crate::day::{DAY_US, day};

    const OCTOBER: u64 = 1_790_812_800_000_000;

    fn part(node: &str, vm: &str, days: &[u64], covered_us: u64) -> NodeAccount {
        let hours = |number: &u64| at(*number, 0) / HOUR_US..at(number + 1, 0) / HOUR_US;
        let hours = days.iter().map(hours).collect();
        let days = days.iter().map(|number| Day {
            day: day(at(*number, 0)),
            promised_us: 10,
            covered_us,
            delay_ns: 3,
            ..Day::default()
        });
        let days: Vec<Day> = days.collect();
        let sum = |of: fn(&Day) -> u64| days.iter().map(of).sum();
        NodeAccount {
            node: node.to_owned(),
            directory: format!("rings/{node}"),
            from_us: OCTOBER,
            until_us: OCTOBER + 5 * DAY_US,
            account: Account {
                vm: vm.to_owned(),
                promised_us: sum(|day| day.promised_us),
                covered_us: sum(|day| day.covered_us),
                totals: Totals {
                    devices: BTreeMap::from([("nvme".to_owned(), 2)]),
                    other_tasks: Range { least: 1, most: 2 },
                    ..Totals::default()
                },
                days,
                hours,
                ..Account::default()
            },
        }
    }

    /// An hour of a day after the first.
    fn at(day: u64, hour: u64) -> u64 {
        OCTOBER + day * DAY_US + hour * HOUR_US
    }

    fn time(from_us: u64, until_us: u64) -> TimeWithout {
        TimeWithout { from_us, until_us }
    }

    #[test]
    fn a_vm_that_moved_has_one_account_and_hours_without_it_are_named() {
        let mut parts = [part("n2", "b", &[2, 3], 10), part("n1", "a", &[0, 2], 9)];
        let on_n2 = &mut parts[0].account.hours[1];
        on_n2.start += 5;
        let merged = MergedAccount::of(parts, OCTOBER, OCTOBER + 5 * DAY_US);
        assert_eq!((merged.promised_us, merged.covered_us), (40, 38));
        assert_eq!(merged.totals.devices["nvme"], 4);
        assert_eq!(merged.totals.other_tasks, Range { least: 2, most: 4 });
        let days: Vec<(&str, u64, u64)> = merged
            .days
            .iter()
            .map(|day| (day.day.as_str(), day.promised_us, day.delay_ns))
            .collect();
        assert_eq!(
            days,
            [("2026-10-01", 10, 3), ("2026-10-03", 20, 6), ("2026-10-04", 10, 3)]
        );
        let without = [
            time(at(1, 0), at(2, 0)),
            time(at(3, 0), at(3, 5)),
            time(at(4, 0), at(5, 0)),
        ];
        assert_eq!(merged.without, without);
        let nodes: Vec<&str> = merged.parts.iter().map(|part| part.node.as_str()).collect();
        assert_eq!(nodes, ["n1", "n2"], "in the order of their days");
    }

    #[test]
    fn a_ring_that_was_copied_twice_is_counted_once() {
        for turned in [false, true] {
            let mut parts = vec![part("old", "a", &[0], 4), part("new", "a", &[0, 1], 9)];
            if turned {
                parts.reverse();
            }
            let merged = MergedAccount::of(parts, OCTOBER, OCTOBER + 2 * DAY_US);
            assert_eq!((merged.parts.len(), merged.covered_us), (1, 18));
            let [repeated] = merged.repeated.as_slice() else {
                panic!("{:?}", merged.repeated)
            };
            assert_eq!((repeated.counted.as_str(), repeated.left_out.as_str()), ("new", "old"));
            assert_eq!(repeated.left_out_directory, "rings/old");
            assert!(!repeated.has_more_times);
        }
    }

    #[test]
    fn copies_of_other_times_are_added_and_what_only_a_left_out_one_has_is_told() {
        let copy = |node: &str, from: u64, until: u64| NodeAccount {
            from_us: OCTOBER + from * DAY_US,
            until_us: OCTOBER + until * DAY_US,
            ..part(node, "a", &(from..until).collect::<Vec<_>>(), 9)
        };
        for turned in [false, true] {
            // The second begins before the first ends; the third begins after it.
            let mut copies = vec![copy("n1", 0, 3), copy("copy", 2, 4), copy("n1", 4, 6)];
            if turned {
                copies.reverse();
            }
            let merged = MergedAccount::of(copies, OCTOBER, OCTOBER + 6 * DAY_US);
            let times: Vec<(&str, u64)> = merged
                .parts
                .iter()
                .map(|part| (part.node.as_str(), (part.from_us - OCTOBER) / DAY_US))
                .collect();
            assert_eq!((times, merged.covered_us), (vec![("n1", 0), ("n1", 4)], 45));
            // The copy that is left out has the VM on the fourth day.
            assert_eq!(merged.without, []);
            let [repeated] = merged.repeated.as_slice() else {
                panic!("{:?}", merged.repeated)
            };
            assert_eq!((repeated.left_out.as_str(), repeated.has_more_times), ("copy", true));
        }
        let whole = [copy("n1", 0, 5), copy("n1", 1, 2)];
        let merged = MergedAccount::of(whole, OCTOBER, OCTOBER + 6 * DAY_US);
        assert_eq!((merged.covered_us, merged.repeated[0].has_more_times), (45, false));
    }

    #[test]
    fn an_empty_period_and_no_account_are_no_panic() {
        let merged = MergedAccount::of([], OCTOBER, OCTOBER);
        assert_eq!(merged.without, [time(at(0, 0), at(0, 1))]);
        assert_eq!(MergedAccount::of([], 1, u64::MAX).without.len(), 1);
        assert_eq!(MergedAccount::of([], 0, OCTOBER).without, []);
        let merged = MergedAccount::of([part("n1", "a", &[0, 2], 9)], 0, at(4, 0));
        let without = [time(at(1, 0), at(2, 0)), time(at(3, 0), at(4, 0))];
        assert_eq!(merged.without, without, "from its first day on");
    }
}
