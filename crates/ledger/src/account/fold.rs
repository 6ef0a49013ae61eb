//! Entries folded into accounts.

use std::collections::BTreeMap;

use super::{Account, Day, Gap, Range, Window};
use crate::day::day;
use crate::entry::{Class, Entry, Event};
use crate::standing::{Numbers, Open, Standing};

const WORST: usize = 10;
const GAPS: usize = 100;
const ATTRIBUTIONS: usize = 20;
const STATES: usize = 100;
/// Interrupts that the processor delivers to a guest (posted interrupts: arch/x86/kernel/irq.c).
const DELIVERED: [&str; 3] = ["PIN", "NPI", "PIW"];
/// `USER_HZ`: /proc/stat counts in these, nanoseconds.
const TICK: u64 = 10_000_000;

/// The accounts of a time, in the order of the pods' UIDs: of one VM (`only`), or of all that had CPUs then. `entries` come with their
/// hashes, in the order in which they were written, from the segment on that `since_us` lies in.
pub fn accounts(
    entries: impl Iterator<Item = (Entry, String)>,
    since_us: u64,
    until_us: u64,
    only: Option<&str>,
) -> Vec<Account> {
    let mut folded = Folded::new(since_us, until_us, only);
    for (entry, hash) in entries {
        folded.add(&entry, &hash);
    }
    folded.end()
}

/// What one entry alone books, by VM: the windows that end with it, and gaps.
pub fn booked(before: &Standing, entry: &Entry) -> Vec<Account> {
    let mut folded = Folded {
        standing: before.clone(),
        ..Folded::new(0, u64::MAX, None)
    };
    folded.add(entry, "");
    folded.of.into_values().collect()
}

/// What has been folded so far.
#[derive(Debug, Default)]
pub struct Folded {
    since_us: u64,
    until_us: u64,
    only: Option<String>,
    standing: Standing,
    of: BTreeMap<String, Account>,
}

impl Folded {
    pub fn new(since_us: u64, until_us: u64, only: Option<&str>) -> Self {
        Self {
            since_us,
            until_us,
            only: only.map(str::to_owned),
            ..Self::default()
        }
    }

    /// The next entry. Without a hash it is of a look that is not kept, or not yet.
    pub fn add(&mut self, entry: &Entry, hash: &str) {
        let counts = (self.since_us..=self.until_us).contains(&entry.at);
        if counts {
            self.events(entry);
        }
        // A boot closes what is open as its first event.
        for event in &entry.events {
            if let Event::Closed { seat, why } = event
                && let Some(open) = self.standing.seats.get(seat)
                && counts
            {
                let open = open.clone();
                self.gap(&open, entry, *why);
            }
            self.standing.happened(event);
        }
        for reading in &entry.readings {
            let Some(open) = self.standing.seats.get_mut(&reading.seat) else {
                continue;
            };
            let last = open.last.take();
            let now = Numbers::read(last.clone(), entry, reading);
            open.last = Some(now.clone());
            let open = open.clone();
            if let (true, Some(last)) = (counts, last) {
                self.window(&open, &last, &now);
            }
        }
        (self.standing.at, self.standing.up) = (entry.at, entry.up);
        if counts && !hash.is_empty() {
            for account in self.of.values_mut() {
                account.seq = entry.seq;
                hash.clone_into(&mut account.hash);
            }
        }
    }

    /// The accounts.
    pub fn end(mut self) -> Vec<Account> {
        // What is open is promised on, and was not read since.
        let until = self.until_us.min(self.standing.at.max(self.since_us));
        for open in std::mem::take(&mut self.standing.seats).into_values() {
            if let Some(last) = &open.last {
                let from = last.at.max(self.since_us);
                let us = until.saturating_sub(from).saturating_mul(open.seat.cpus.len() as u64);
                if let (true, Some(account)) = (us > 0, self.account(&open.vm, &open.name)) {
                    account.promised_us = account.promised_us.saturating_add(us);
                    of_day(account, until).promised_us += us;
                }
            }
        }
        self.of.into_values().collect()
    }

    fn account(&mut self, vm: &str, name: &str) -> Option<&mut Account> {
        if self.only.as_ref().is_some_and(|only| only != vm) {
            return None;
        }
        let new = || Account {
            vm: vm.to_owned(),
            since_us: self.since_us,
            until_us: self.until_us,
            ..Account::default()
        };
        let account = self.of.entry(vm.to_owned()).or_insert_with(new);
        if !name.is_empty() {
            name.clone_into(&mut account.name);
        }
        Some(account)
    }

    fn events(&mut self, entry: &Entry) {
        for event in &entry.events {
            match event {
                Event::Opened { vm, name, .. } => drop(self.account(vm, name)),
                Event::State { vm, state } => {
                    if let Some(account) = self.account(vm, "") {
                        // Said again at the beginning of a segment.
                        let news = account.states.last().is_none_or(|(_, last)| last != state);
                        if news && account.states.len() < STATES {
                            account.states.push((entry.at, state.clone()));
                        }
                    }
                }
                Event::Attributed { vm, attribution } => {
                    if let Some(account) = self.account(vm, "") {
                        account.attributions.push(attribution.clone());
                        if account.attributions.len() > ATTRIBUTIONS {
                            account.attributions.remove(0);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// From the last reading of a seat to the entry that closes it.
    fn gap(&mut self, open: &Open, entry: &Entry, why: crate::entry::Closed) {
        let Some(last) = &open.last else { return };
        let from = last.at.max(self.since_us);
        let us = entry
            .at
            .saturating_sub(from)
            .saturating_mul(open.seat.cpus.len() as u64);
        let Some(account) = self.account(&open.vm, &open.name).filter(|_| us > 0) else {
            return;
        };
        account.promised_us = account.promised_us.saturating_add(us);
        let day = of_day(account, entry.at);
        day.promised_us = day.promised_us.saturating_add(us);
        match account.gaps.len() < GAPS {
            true => account.gaps.push(Gap {
                cpus: open.seat.cpus.to_string(),
                from_us: from,
                until_us: entry.at,
                why,
            }),
            false => account.gaps_left_out += 1,
        }
    }

    fn window(&mut self, open: &Open, last: &Numbers, now: &Numbers) {
        // What contradicts itself was not written by a keeper: nothing follows from it.
        let (Some((least, most)), true) = (now.foreign(last), now.up >= last.up) else {
            return;
        };
        let lasted = (now.up - last.up).min(
            now.at
                .saturating_sub(self.since_us)
                .max(u64::from(now.at > self.since_us)),
        );
        let us = lasted.saturating_mul(open.seat.cpus.len() as u64);
        let Some(account) = self.account(&open.vm, &open.name) else {
            return;
        };
        account.promised_us = account.promised_us.saturating_add(us);
        account.covered_us = account.covered_us.saturating_add(us);
        let rose = |index: usize| {
            let of = |numbers: &Numbers| numbers.numbers.get(index).copied().unwrap_or_default();
            of(now).saturating_sub(of(last))
        };
        let delay_ns = rose(4);
        let totals = &mut account.totals;
        add(&mut totals.other_tasks, least, most);
        totals.own.count = totals.own.count.saturating_add(rose(1));
        totals.own.ns = totals.own.ns.saturating_add(rose(3));
        totals.delay_ns = totals.delay_ns.saturating_add(delay_ns);
        totals.steal_ns = totals.steal_ns.saturating_add(rose(5).saturating_mul(TICK));
        let (mut devices, mut worst) = (0u64, Vec::new());
        let window = |class, name: &str, count, delay_ns| Window {
            cpus: open.seat.cpus.to_string(),
            from_us: last.at,
            until_us: now.at,
            class,
            name: name.to_owned(),
            count,
            delay_ns,
        };
        for (name, count, is_own) in now.fired(last, &open.own_devices) {
            let of = if is_own {
                &mut totals.own_interrupts
            } else {
                &mut totals.devices
            };
            rise(of, name, count);
            if !is_own {
                devices = devices.saturating_add(count);
                let count = Range {
                    least: count,
                    most: count,
                };
                worst.push(window(Class::Devices, name, count, 0));
            }
        }
        for (name, count) in &now.upkeep {
            let count = u64::from(count.wrapping_sub(last.upkeep.get(name).copied().unwrap_or_default()));
            let of = match DELIVERED.contains(&name.as_str()) {
                true => &mut totals.own_interrupts,
                false => &mut totals.upkeep,
            };
            rise(of, name, count);
        }
        for (name, count) in &now.softirqs {
            let count = u64::from(count.wrapping_sub(last.softirqs.get(name).copied().unwrap_or_default()));
            rise(&mut totals.softirqs, name, count);
        }
        for (thread, bound) in &now.bound {
            let (was, was_ns) = last
                .bound
                .get(thread)
                .map_or((0, 0), |was| (was.switches.0, was.run_ns));
            let kind = bound.name.split('/').next().unwrap_or_default();
            let count = bound.switches.0.saturating_sub(was);
            if count > 0 {
                let ran = totals.kernel_threads.entry(kind.to_owned()).or_default();
                ran.count = ran.count.saturating_add(count);
                ran.ns = ran.ns.saturating_add(bound.run_ns.saturating_sub(was_ns));
            }
        }
        if most > 0 {
            worst.push(window(Class::OtherTasks, "", Range { least, most }, delay_ns));
        }
        account.worst.extend(worst);
        account
            .worst
            .sort_by_key(|window| std::cmp::Reverse((window.count.least, window.count.most)));
        account.worst.truncate(WORST);
        let day = of_day(account, now.at);
        day.promised_us = day.promised_us.saturating_add(us);
        day.covered_us = day.covered_us.saturating_add(us);
        add(&mut day.other_tasks, least, most);
        day.devices = day.devices.saturating_add(devices);
        day.delay_ns = day.delay_ns.saturating_add(delay_ns);
    }
}

fn add(range: &mut Range, least: u64, most: u64) {
    range.least = range.least.saturating_add(least);
    range.most = range.most.saturating_add(most);
}

fn rise(of: &mut BTreeMap<String, u64>, name: &str, by: u64) {
    if by > 0 {
        let count = of.entry(name.to_owned()).or_default();
        *count = count.saturating_add(by);
    }
}

fn of_day(account: &mut Account, us: u64) -> &mut Day {
    let day = day(us);
    let at = match account.days.binary_search_by(|known| known.day.cmp(&day)) {
        Ok(at) => at,
        Err(at) => {
            account.days.insert(at, Day { day, ..Day::default() });
            at
        }
    };
    &mut account.days[at]
}
