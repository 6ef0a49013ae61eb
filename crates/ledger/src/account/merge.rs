//! The accounts of one VM on several nodes and in several pods, merged into one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Account, Day, Ran, Totals};
use crate::day::{DAY_US, Date, day};

/// Limit of the days without the VM that are listed.
const MAX_DAYS: usize = 400;

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
    /// UTC days of the period on which no account, counted or left out, had CPUs of its own, at most 400.
    pub days_without: Vec<String>,
}

impl MergedAccount {
    /// Days without the VM are those of the period from `since_us` to `until_us`; 0: from the first day of the accounts. A pod runs on one
    /// node, so of accounts of one pod from rings with the same times the one that covers most is counted; those of other times are added.
    pub fn of(accounts: impl IntoIterator<Item = NodeAccount>, since_us: u64, until_us: u64) -> Self {
        let mut by_pod: BTreeMap<String, Vec<NodeAccount>> = BTreeMap::new();
        for one in accounts {
            by_pod.entry(one.account.vm.clone()).or_default().push(one);
        }
        let mut merged = Self::default();
        let mut days_left_out = BTreeSet::new();
        for copies in by_pod.into_values() {
            days_left_out.extend(merged.add_copies(copies));
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
        merged.days_without = merged.without(since_us, until_us, &days_left_out);
        merged
    }

    /// Counts the accounts of one pod from copies of rings. Answers the days of those that are left out.
    fn add_copies(&mut self, mut copies: Vec<NodeAccount>) -> BTreeSet<String> {
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
        let mut days_left_out = BTreeSet::new();
        for one in left_out {
            let with = one.account.days.iter().filter(|day| day.promised_us > 0);
            days_left_out.extend(with.map(|day| day.day.clone()));
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
        days_left_out
    }

    fn without(&self, since_us: u64, until_us: u64, days_left_out: &BTreeSet<String>) -> Vec<String> {
        let with = self.days.iter().filter(|day| day.promised_us > 0);
        let with = with.map(|day| day.day.as_str());
        let with: BTreeSet<&str> = with.chain(days_left_out.iter().map(String::as_str)).collect();
        // The end is the first instant that is not in the period.
        let last = until_us.saturating_sub(1).max(since_us);
        let days = Date::of(since_us).days()..=Date::of(last).days();
        let days = days.map(|number| day(number.saturating_mul(DAY_US)));
        let begin = match (since_us, with.first()) {
            (0, None) => return Vec::new(),
            (0, Some(first)) => *first,
            _ => "",
        };
        days.filter(|day| day.as_str() >= begin && !with.contains(day.as_str()))
            .take(MAX_DAYS)
            .collect()
    }
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

    const OCTOBER: u64 = 1_790_812_800_000_000;

    fn part(node: &str, vm: &str, days: &[u64], covered_us: u64) -> NodeAccount {
        let days = days.iter().map(|number| Day {
            day: day(OCTOBER + number * DAY_US),
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
                ..Account::default()
            },
        }
    }

    #[test]
    fn a_vm_that_moved_has_one_account_and_days_without_it_are_named() {
        let parts = [part("n2", "b", &[2, 3], 10), part("n1", "a", &[0, 2], 9)];
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
        assert_eq!(merged.days_without, ["2026-10-02", "2026-10-05"]);
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
            assert!(merged.days_without.is_empty(), "{:?}", merged.days_without);
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
        assert_eq!(merged.days_without, ["2026-10-01"]);
        assert_eq!(MergedAccount::of([], 1, u64::MAX).days_without.len(), 400);
        assert!(MergedAccount::of([], 0, OCTOBER).days_without.is_empty());
        let merged = MergedAccount::of([part("n1", "a", &[0, 2], 9)], 0, OCTOBER + 4 * DAY_US);
        assert_eq!(
            merged.days_without,
            ["2026-10-02", "2026-10-04"],
            "from its first day on"
        );
    }
}
