//! Entries, one after the other, into accounts.

use std::collections::BTreeMap;

use super::coverage::{Coverage, Moment, Uncovered};
use super::sum::Chain;
use super::{Account, Day, Gap, Range, Window};
use crate::day::day;
use crate::entry::{Class, Entry, Event};
use crate::replay::{FullReading, LedgerState, OpenSeat, ReadingDelta, ReplayVisitor};

/// Limits of the lists of an account.
const MAX_WORST_WINDOWS: usize = 10;
const MAX_GAPS: usize = 100;
const MAX_STATES: usize = 100;
const MAX_ATTRIBUTIONS: usize = 20;

/// The accounts of all VMs, or of one, from the entries of a ring in their order. `until_us` 0: to the end. Entries are passed in with their
/// hashes. One that does not follow from those before it counts for nothing.
pub fn accounts(
    entries: impl IntoIterator<Item = (Entry, String)>,
    since_us: u64,
    until_us: u64,
    only: Option<&str>,
) -> BTreeMap<String, Account> {
    let mut replay = LedgerState::default();
    let mut folded = Folded::new(since_us, until_us, only);
    let mut last = (0, String::new());
    for (entry, hash) in entries {
        // What does not follow has closed its seat.
        let _ = replay.follow(&entry, &mut folded);
        // Without one it is of a sample that is not kept.
        if !hash.is_empty() {
            last = (entry.seq, hash);
        }
    }
    let mut accounts = folded.finish();
    for account in accounts.values_mut() {
        (account.seq, account.hash) = last.clone();
    }
    accounts
}

/// What has been folded so far: it follows a [`LedgerState`].
pub struct Folded {
    since_us: u64,
    until_us: u64,
    only: Option<String>,
    vms: BTreeMap<String, Vm>,
    coverage: Coverage,
    /// The time of the current entry.
    now: Moment,
}

/// What is known of one VM so far.
#[derive(Default)]
struct Vm {
    account: Account,
    chains: BTreeMap<u64, Chain>,
    day: BTreeMap<u64, (String, Chain)>,
    days: BTreeMap<String, Day>,
    gaps: Vec<Gap>,
    state: String,
}

impl Folded {
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

    /// Continues behind the entries from which this coverage was computed.
    pub(crate) fn behind(coverage: Coverage) -> Self {
        Self {
            coverage,
            ..Self::new(0, 0, None)
        }
    }

    /// What the entries booked, and how to go on from there: a time without windows that has not ended is not booked yet.
    pub(crate) fn booked(mut self) -> (BTreeMap<String, Account>, Coverage) {
        self.coverage.settle();
        self.take_gaps();
        let coverage = std::mem::take(&mut self.coverage);
        (self.accounts(), coverage)
    }

    /// By pod UID, without those of which nothing is known in that time.
    pub fn finish(mut self) -> BTreeMap<String, Account> {
        self.coverage.end(self.now);
        self.take_gaps();
        self.accounts()
    }

    fn accounts(self) -> BTreeMap<String, Account> {
        let (end, until_us) = (self.now.at.min(self.until_us), self.until_us);
        let finished = self.vms.into_iter().filter_map(|(vm, of)| {
            let mut account = of.finish();
            account.until_us = if until_us == u64::MAX { end } else { until_us };
            let is_there = account.promised_us > 0 || !account.states.is_empty() || !account.attributions.is_empty();
            is_there.then_some((vm, account))
        });
        finished.collect()
    }

    fn wants(&self, vm: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == vm)
    }

    fn is_within(&self, at: u64) -> bool {
        at > self.since_us && at <= self.until_us
    }

    /// The next window of this seat does not follow the last one that was counted.
    fn cut(&mut self, number: u64, vm: &str) {
        if let Some(of) = self.vms.get_mut(vm) {
            of.cut(number);
        }
    }

    fn vm(&mut self, vm: &str, name: &str) -> Option<&mut Vm> {
        if !self.wants(vm) {
            return None;
        }
        let since_us = self.since_us;
        let of = self.vms.entry(vm.to_owned()).or_insert_with(|| Vm {
            account: Account {
                vm: vm.to_owned(),
                since_us,
                ..Account::default()
            },
            ..Vm::default()
        });
        if !name.is_empty() {
            name.clone_into(&mut of.account.name);
        }
        Some(of)
    }

    /// The part of a time between two wall clock readings that was asked for.
    fn clipped(&self, from: u64, until: u64) -> u64 {
        until.min(self.until_us).saturating_sub(from.max(self.since_us))
    }

    /// How much of a time that lasted `us` was asked for. The wall clock may have been set: how long it was is what the other clock says,
    /// where it was is told by its end.
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
            // After a boot the other clock began anew.
            let wall = until.at.saturating_sub(from.at);
            let us = until.up.checked_sub(from.up).unwrap_or(wall);
            let lasted = self.share(us, from.at, until.at);
            let (since_us, until_us) = (self.since_us, self.until_us);
            if let (Some(of), true) = (self.vm(&gap.vm, ""), lasted > 0) {
                of.gap(&gap, lasted, (from.at.max(since_us), until.at.min(until_us)));
            }
        }
    }
}

impl ReplayVisitor for Folded {
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
            Event::Boot { .. } => self.coverage.booted(),
            Event::Opened {
                seat, vm, name, cpus, ..
            } if self.vm(vm, name).is_some() => self.coverage.opened(vm, *seat, cpus),
            Event::Closed { seat, why, .. } => {
                let Some(open) = open else { return };
                self.cut(*seat, &open.vm);
                self.coverage.closed(&open.vm, *seat, *why);
            }
            Event::State { vm, state } => {
                let Some(of) = self.vm(vm, "") else { return };
                // Told anew at the beginning of each segment.
                if of.state != *state {
                    of.state.clone_from(state);
                    if within && of.account.states.len() < MAX_STATES {
                        of.account.states.push((at, state.clone()));
                    }
                }
                self.coverage.state(vm, state);
            }
            Event::Attributed { vm, attribution } if within => {
                if let Some(of) = self.vm(vm, "") {
                    of.account.attributions.push(attribution.clone());
                    if of.account.attributions.len() > MAX_ATTRIBUTIONS {
                        of.account.attributions.remove(0);
                    }
                }
            }
            _ => {}
        }
    }

    fn reading(&mut self, number: u64, open: &OpenSeat, now: &FullReading) {
        let Some(before) = &open.last else {
            return self.coverage.read(&open.vm, &open.seat.cpus, Moment::of(now));
        };
        let Ok(between) = ReadingDelta::new(open, before, now) else {
            return self.cut(number, &open.vm);
        };
        let (begins, ends) = (Moment::of(before), Moment::of(now));
        self.coverage.covered(&open.vm, &open.seat.cpus, begins, ends);
        let covered = self.share(between.us, before.at, now.at);
        let covered = covered.saturating_mul(open.seat.cpus.len() as u64);
        let counts = self.is_within(now.at);
        if !counts {
            self.cut(number, &open.vm);
        }
        if covered == 0 && !counts {
            return;
        }
        if let Some(of) = self.vm(&open.vm, &open.name) {
            of.cover(covered, day(now.at));
            if counts {
                of.count(number, open, before, now, &between);
            }
        }
    }
}

impl Vm {
    fn cover(&mut self, us: u64, day: String) {
        let of_day = self.days.entry(day).or_default();
        for sum in [
            &mut self.account.covered_us,
            &mut self.account.promised_us,
            &mut of_day.covered_us,
            &mut of_day.promised_us,
        ] {
            *sum = sum.saturating_add(us);
        }
    }

    fn count(&mut self, number: u64, open: &OpenSeat, before: &FullReading, now: &FullReading, between: &ReadingDelta) {
        self.account.totals.add(between);
        let today = day(now.at);
        let goes_on = |chain: &Chain| chain.goes_on_from(before);
        if !self.chains.get(&number).is_some_and(goes_on) {
            self.cut(number);
        }
        if !self
            .day
            .get(&number)
            .is_some_and(|(of, chain)| *of == today && goes_on(chain))
        {
            self.cut_day(number);
        }
        let chain = self.chains.entry(number).or_insert_with(|| Chain::from(before));
        chain.add(between, now);
        let (_, chain) = self
            .day
            .entry(number)
            .or_insert_with(|| (today.clone(), Chain::from(before)));
        chain.add(between, now);
        let of_day = self.days.entry(today).or_default();
        let devices = between
            .devices
            .values()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        of_day.devices = of_day.devices.saturating_add(devices);
        of_day.delay_ns = of_day.delay_ns.saturating_add(between.delay_ns);
        self.worst(open, before, now, between);
    }

    fn worst(&mut self, open: &OpenSeat, before: &FullReading, now: &FullReading, between: &ReadingDelta) {
        let window = |class, name: &str, count| Window {
            cpus: open.seat.cpus.to_string(),
            from_us: before.at,
            until_us: now.at,
            class,
            name: name.to_owned(),
            count,
            delay_ns: between.delay_ns,
        };
        let worst = &mut self.account.worst;
        if between.other.most > 0 {
            worst.push(window(Class::OtherTasks, "", between.other));
        }
        for (name, count) in &between.devices {
            let count = Range {
                least: *count,
                most: *count,
            };
            worst.push(window(Class::Devices, name, count));
        }
        // What is certain comes first; of equals the earlier.
        worst.sort_by_key(|window| std::cmp::Reverse((window.count, window.class == Class::OtherTasks)));
        worst.truncate(MAX_WORST_WINDOWS);
    }

    /// It lasted so long, in what was asked for.
    fn gap(&mut self, gap: &Uncovered, lasted: u64, (from_us, until_us): (u64, u64)) {
        // A seat that was never read has an unknown number of CPUs: at least one.
        let lasted = lasted.saturating_mul(gap.cpus.len().max(1) as u64);
        let of_day = self.days.entry(day(until_us)).or_default();
        for sum in [&mut self.account.promised_us, &mut of_day.promised_us] {
            *sum = sum.saturating_add(lasted);
        }
        self.gaps.push(Gap {
            cpus: gap.cpus.to_string(),
            from_us: from_us.min(until_us),
            until_us,
            why: gap.why,
        });
    }

    fn cut(&mut self, number: u64) {
        if let Some(chain) = self.chains.remove(&number) {
            let totals = &mut self.account.totals;
            totals.other_tasks.add(chain.other());
            totals.own.count = totals.own.count.saturating_add(chain.own().most);
        }
        self.cut_day(number);
    }

    fn cut_day(&mut self, number: u64) {
        if let Some((day, chain)) = self.day.remove(&number) {
            self.days.entry(day).or_default().other_tasks.add(chain.other());
        }
    }

    fn finish(mut self) -> Account {
        for number in self.chains.keys().copied().collect::<Vec<_>>() {
            self.cut(number);
        }
        // One that began early may have ended late.
        self.gaps.sort_by_key(|gap| (gap.from_us, gap.until_us));
        self.account.gaps_left_out = self.gaps.len().saturating_sub(MAX_GAPS) as u64;
        self.gaps.truncate(MAX_GAPS);
        self.account.gaps = self.gaps;
        self.account.days = self.days.into_iter().map(|(day, of)| Day { day, ..of }).collect();
        self.account
    }
}
