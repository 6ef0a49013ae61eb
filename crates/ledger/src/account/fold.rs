//! Computes accounts from a sequence of entries.

use std::collections::BTreeMap;

use super::coverage::{Coverage, Moment, Uncovered};
use super::located;
use super::sum::WindowSum;
use super::{Account, Day, Gap, LocatedTime, Range, Window};
use crate::day::{HOUR_US, day};
use crate::entry::{Class, Entry, Event};
use crate::replay::{FullReading, LedgerState, OpenSeat, ReadingDelta, ReplayVisitor};

/// Limits of the lists of an account.
const MAX_WORST_WINDOWS: usize = 10;
const MAX_GAPS: usize = 100;
const MAX_STATES: usize = 100;
const MAX_ATTRIBUTIONS: usize = 20;
const MAX_HOUR_RANGES: usize = 10_000;

/// The accounts of all VMs, or of one, from the entries of a ring in their order. `until_us` 0: to the end. Entries are passed in with their
/// hashes. An entry that does not follow from those before it is not counted.
pub fn accounts(
    entries: impl IntoIterator<Item = (Entry, String)>,
    since_us: u64,
    until_us: u64,
    only: Option<&str>,
) -> BTreeMap<String, Account> {
    let mut replay = LedgerState::default();
    let mut builder = AccountBuilder::new(since_us, until_us, only);
    let mut last = (0, String::new());
    for (entry, hash) in entries {
        // A reading that does not follow closes its seat, and the error needs no other handling.
        let _ = replay.follow(&entry, &mut builder);
        // An entry without a hash is not in the ring.
        if !hash.is_empty() {
            last = (entry.seq, hash);
        }
    }
    let mut accounts = builder.finish();
    for account in accounts.values_mut() {
        (account.seq, account.hash) = last.clone();
    }
    accounts
}

/// Accounts under construction. Receives the changes of a [`LedgerState`].
pub struct AccountBuilder {
    since_us: u64,
    until_us: u64,
    only: Option<String>,
    vms: BTreeMap<String, Vm>,
    coverage: Coverage,
    /// The time of the current entry.
    now: Moment,
}

/// The account of one VM under construction.
#[derive(Default)]
struct Vm {
    account: Account,
    /// The consecutive windows of each open seat.
    sums: BTreeMap<u64, WindowSum>,
    /// The same of the current day, and that day.
    day_sums: BTreeMap<u64, (String, WindowSum)>,
    days: BTreeMap<String, Day>,
    gaps: Vec<Gap>,
    state: String,
    located: Vec<LocatedTime>,
}

impl AccountBuilder {
    /// `until_us` 0: to the end. `only`: one VM.
    pub fn new(since_us: u64, until_us: u64, only: Option<&str>) -> Self {
        Self {
            since_us,
            until_us: if until_us == 0 { u64::MAX } else { until_us },
            only: only.map(str::to_owned),
            vms: BTreeMap::new(),
            coverage: Coverage::default(),
            now: Moment::default(),
        }
    }

    /// Continues after the entries from which this coverage was computed.
    pub(crate) fn resume(coverage: Coverage) -> Self {
        Self {
            coverage,
            ..Self::new(0, 0, None)
        }
    }

    /// The accounts of the entries, and the coverage to continue with: a gap that has not ended is counted later.
    pub(crate) fn into_parts(mut self) -> (BTreeMap<String, Account>, Coverage) {
        self.coverage.end_gaps();
        self.take_gaps();
        let coverage = std::mem::take(&mut self.coverage);
        (self.accounts(), coverage)
    }

    /// The accounts by pod UID, without VMs that have nothing in the period.
    pub fn finish(mut self) -> BTreeMap<String, Account> {
        self.coverage.end(self.now);
        self.take_gaps();
        self.accounts()
    }

    fn accounts(self) -> BTreeMap<String, Account> {
        let (end, until_us) = (self.now.at.min(self.until_us), self.until_us);
        let finished = self.vms.into_iter().filter_map(|(uid, vm)| {
            let located = located::finish(vm.located.clone(), vm.account.since_us, until_us);
            let mut account = Account { located, ..vm.finish() };
            account.until_us = if until_us == u64::MAX { end } else { until_us };
            let has_content = account.promised_us > 0 || !account.states.is_empty() || !account.attributions.is_empty();
            has_content.then_some((uid, account))
        });
        finished.collect()
    }

    fn wants(&self, vm: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == vm)
    }

    fn is_within(&self, at: u64) -> bool {
        at > self.since_us && at <= self.until_us
    }

    /// Ends the seat's sum: its next window does not follow the last one.
    fn end_sum(&mut self, number: u64, uid: &str) {
        if let Some(vm) = self.vms.get_mut(uid) {
            vm.end_sum(number);
        }
    }

    fn vm(&mut self, uid: &str, name: &str) -> Option<&mut Vm> {
        if !self.wants(uid) {
            return None;
        }
        let since_us = self.since_us;
        let vm = self.vms.entry(uid.to_owned()).or_insert_with(|| Vm {
            account: Account {
                vm: uid.to_owned(),
                since_us,
                ..Account::default()
            },
            ..Vm::default()
        });
        if !name.is_empty() {
            name.clone_into(&mut vm.account.name);
        }
        Some(vm)
    }

    /// The day of the period to which what ends at this time is booked. The period's end is not in it.
    fn day_of(&self, at: u64) -> String {
        day(at.min(self.until_us.saturating_sub(1)))
    }

    /// The part of a time between two readings of the realtime clock that is in the period.
    fn clipped(&self, from: u64, until: u64) -> u64 {
        until.min(self.until_us).saturating_sub(from.max(self.since_us))
    }

    /// How much of a time that lasted `us` is in the period. The realtime clock may have been set meanwhile, so the length is that of
    /// `CLOCK_BOOTTIME`; if the realtime clock did not advance, the end decides.
    fn share(&self, us: u64, from: u64, until: u64) -> u64 {
        let wall = until.saturating_sub(from);
        let part = self.clipped(from, until).min(wall);
        match wall {
            0 => u64::from(self.is_within(until)) * us,
            _ => u64::try_from(u128::from(us) * u128::from(part) / u128::from(wall)).unwrap_or(u64::MAX),
        }
    }

    fn take_gaps(&mut self) {
        for gap in self.coverage.take_uncovered() {
            let Uncovered { from, until, .. } = gap;
            // After a boot CLOCK_BOOTTIME begins at 0.
            let wall = until.at.saturating_sub(from.at);
            let us = until.up.checked_sub(from.up).unwrap_or(wall);
            let lasted = self.share(us, from.at, until.at);
            let (since_us, until_us) = (self.since_us, self.until_us);
            let today = self.day_of(until.at);
            if let (Some(vm), true) = (self.vm(&gap.vm, ""), lasted > 0) {
                vm.add_gap(&gap, lasted, (from.at.max(since_us), until.at.min(until_us)), today);
            }
        }
    }
}

impl ReplayVisitor for AccountBuilder {
    fn entry(&mut self, entry: &Entry) {
        let (at, up) = (entry.at, entry.up);
        self.now = Moment { at, up };
        self.coverage.entry(self.now);
        self.take_gaps();
        if entry.events.iter().any(|event| matches!(event, Event::Missed { .. })) {
            self.coverage.missed();
        }
    }

    fn event(&mut self, entry: &Entry, event: &Event, open: Option<&OpenSeat>) {
        let (at, within) = (entry.at, self.is_within(entry.at));
        match event {
            Event::Boot { .. } => {
                self.coverage.booted();
                let all = self.vms.values_mut();
                all.for_each(|vm| located::record(&mut vm.located, &[], at));
            }
            Event::Opened {
                seat,
                vm: uid,
                name,
                cpus,
                cgroup,
                ..
            } => {
                let Some(vm) = self.vm(uid, name) else { return };
                vm.account.is_container = cgroup.is_some();
                self.coverage.opened(uid, *seat, cpus);
            }
            Event::Closed { seat, why, .. } => {
                let Some(open) = open else { return };
                self.end_sum(*seat, &open.vm);
                self.coverage.closed(&open.vm, *seat, *why);
            }
            Event::State { vm: uid, state } => {
                let Some(vm) = self.vm(uid, "") else { return };
                located::end(&mut vm.located, state, at);
                // States are repeated at the beginning of each segment.
                if vm.state != *state {
                    vm.state.clone_from(state);
                    if within && vm.account.states.len() < MAX_STATES {
                        vm.account.states.push((at, state.clone()));
                    }
                }
                self.coverage.state(uid, state);
            }
            Event::Located { vm: uid, parts } => {
                let Some(vm) = self.vm(uid, "") else { return };
                located::record(&mut vm.located, parts, at);
            }
            Event::Attributed { vm: uid, attribution } if within => {
                if let Some(vm) = self.vm(uid, "") {
                    vm.account.attributions.push(attribution.clone());
                    if vm.account.attributions.len() > MAX_ATTRIBUTIONS {
                        vm.account.attributions.remove(0);
                    }
                }
            }
            _ => {}
        }
    }

    fn reading(&mut self, number: u64, open: &OpenSeat, now: &FullReading) {
        let Some(before) = &open.last else {
            let at = Moment::of(now);
            return self.coverage.covered(&open.vm, &open.seat.cpus, at, at);
        };
        let Ok(delta) = ReadingDelta::new(open, before, now) else {
            return self.end_sum(number, &open.vm);
        };
        let (begins, ends) = (Moment::of(before), Moment::of(now));
        self.coverage.covered(&open.vm, &open.seat.cpus, begins, ends);
        let covered = self.share(delta.us, before.at, now.at);
        let covered = covered.saturating_mul(open.seat.cpus.len() as u64);
        let is_counted = self.is_within(now.at);
        if !is_counted {
            self.end_sum(number, &open.vm);
        }
        if covered == 0 && !is_counted {
            return;
        }
        let today = self.day_of(now.at);
        let within = (before.at.max(self.since_us), now.at.min(self.until_us));
        if let Some(vm) = self.vm(&open.vm, &open.name) {
            vm.add_covered(covered, today.clone());
            vm.add_hours(within);
            if is_counted {
                vm.add_window(number, open, (before, now), &delta, today);
            }
        }
    }
}

impl Vm {
    fn add_covered(&mut self, us: u64, day: String) {
        let sums_of_day = self.days.entry(day).or_default();
        for sum in [
            &mut self.account.covered_us,
            &mut self.account.promised_us,
            &mut sums_of_day.covered_us,
            &mut sums_of_day.promised_us,
        ] {
            *sum = sum.saturating_add(us);
        }
    }

    fn add_window(
        &mut self,
        number: u64,
        open: &OpenSeat,
        (before, now): (&FullReading, &FullReading),
        delta: &ReadingDelta,
        today: String,
    ) {
        self.account.totals.add(&delta.totals);
        let is_continued = |sum: &WindowSum| sum.is_continued_by(before);
        if !self.sums.get(&number).is_some_and(is_continued) {
            self.end_sum(number);
        }
        if !self
            .day_sums
            .get(&number)
            .is_some_and(|(day, sum)| *day == today && is_continued(sum))
        {
            self.end_day_sum(number);
        }
        let sum = self.sums.entry(number);
        sum.or_insert_with(|| WindowSum::starting_at(before)).add(delta, now);
        let sum = self.day_sums.entry(number);
        let (_, sum) = sum.or_insert_with(|| (today.clone(), WindowSum::starting_at(before)));
        sum.add(delta, now);
        let sums_of_day = self.days.entry(today).or_default();
        let devices = delta.totals.devices.values();
        sums_of_day.devices = devices.fold(sums_of_day.devices, |sum, count| sum.saturating_add(*count));
        sums_of_day.delay_ns = sums_of_day.delay_ns.saturating_add(delta.totals.delay_ns);
        self.add_worst(open, before, now, delta);
    }

    /// Adds what disturbed in this window to the worst windows.
    fn add_worst(&mut self, open: &OpenSeat, before: &FullReading, now: &FullReading, delta: &ReadingDelta) {
        let window = |class, name: &str, count| Window {
            cpus: open.seat.cpus.to_string(),
            from_us: before.at,
            until_us: now.at,
            class,
            name: name.to_owned(),
            count,
            delay_ns: delta.totals.delay_ns,
        };
        let worst = &mut self.account.worst;
        if delta.other.most > 0 {
            worst.push(window(Class::OtherTasks, "", delta.other));
        }
        for (name, count) in &delta.totals.devices {
            let count = Range {
                least: *count,
                most: *count,
            };
            worst.push(window(Class::Devices, name, count));
        }
        // Sorted by the lower bound; of equal windows the earlier comes first.
        worst.sort_by_key(|window| std::cmp::Reverse((window.count, window.class == Class::OtherTasks)));
        worst.truncate(MAX_WORST_WINDOWS);
    }

    /// Adds a gap that lasted so long within the period and ends on this day of it.
    fn add_gap(&mut self, gap: &Uncovered, lasted: u64, (from_us, until_us): (u64, u64), today: String) {
        // A seat that was never read has an unknown number of CPUs: at least one.
        let lasted = lasted.saturating_mul(gap.cpus.len().max(1) as u64);
        self.add_hours((from_us, until_us));
        let sums_of_day = self.days.entry(today).or_default();
        for sum in [&mut self.account.promised_us, &mut sums_of_day.promised_us] {
            *sum = sum.saturating_add(lasted);
        }
        self.gaps.push(Gap {
            cpus: gap.cpus.to_string(),
            from_us: from_us.min(until_us),
            until_us,
            why: gap.why,
        });
    }

    /// Adds the hours of a time in which it had CPUs of its own.
    fn add_hours(&mut self, (from_us, until_us): (u64, u64)) {
        let hours = from_us / HOUR_US..until_us.saturating_sub(1).max(from_us) / HOUR_US + 1;
        let known = &mut self.account.hours;
        if let Some(last) = known.last_mut()
            && (last.start..=last.end).contains(&hours.start)
        {
            last.end = last.end.max(hours.end);
        } else if known.len() < MAX_HOUR_RANGES {
            known.push(hours);
        }
    }

    fn end_sum(&mut self, number: u64) {
        if let Some(sum) = self.sums.remove(&number) {
            let totals = &mut self.account.totals;
            totals.other_tasks.add(sum.other());
            totals.own.count = totals.own.count.saturating_add(sum.own().most);
        }
        self.end_day_sum(number);
    }

    fn end_day_sum(&mut self, number: u64) {
        if let Some((day, sum)) = self.day_sums.remove(&number) {
            self.days.entry(day).or_default().other_tasks.add(sum.other());
        }
    }

    fn finish(mut self) -> Account {
        for number in self.sums.keys().copied().collect::<Vec<_>>() {
            self.end_sum(number);
        }
        // Gaps are added when they end.
        self.gaps.sort_by_key(|gap| (gap.from_us, gap.until_us));
        self.account.gaps_left_out = self.gaps.len().saturating_sub(MAX_GAPS) as u64;
        self.gaps.truncate(MAX_GAPS);
        self.account.gaps = self.gaps;
        self.account.days = self.days.into_iter().map(|(day, sums)| Day { day, ..sums }).collect();
        self.account
    }
}
