//! What ran on a seat from one reading to the next.

use std::collections::BTreeMap;

use stelia_quiet::counts::rise;

use super::{Known, Open};
use crate::account::{Ran, Range};
use crate::look::{Bound, Counters};

/// The first runs of a thread that the kernel makes for one CPU may be elsewhere: it starts, waits, and is bound then
/// (kernel/kthread.c, `kthread` and `kthread_bind`).
const ELSEWHERE: u64 = 2;

/// Counters of one seat rose by what cannot be: a thread of it ran on other CPUs, or the readings are not of one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the counters contradict each other: a thread ran elsewhere, or one of them fell")]
pub struct Contradiction;

/// How much counters rose from one reading of a seat to a later one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Between {
    /// Microseconds of `CLOCK_BOOTTIME`.
    pub us: u64,
    pub switches: u64,
    /// Of the threads that ran there, at least and at most.
    pub own: Range,
    /// Of bound kernel threads, at least and at most.
    pub bound: Range,
    /// What is left. At least 0 where a bound kernel thread ended: how often it ran is not known.
    pub other: Range,
    pub kernel_threads: BTreeMap<String, Ran>,
    /// By name.
    pub devices: BTreeMap<String, u64>,
    pub own_interrupts: BTreeMap<String, u64>,
    pub upkeep: BTreeMap<String, u64>,
    pub softirqs: BTreeMap<String, u64>,
    pub run_ns: u64,
    pub delay_ns: u64,
    pub steal_ns: u64,
}

/// A tick of `/proc/stat` (USER_HZ, 100 on all architectures that Linux runs VMs on).
const TICK_NS: u64 = 10_000_000;

/// Interrupts that the processor delivers to the VM (posted interrupts: arch/x86/kernel/irq.c).
const POSTED: [&str; 3] = ["PIN", "NPI", "PIW"];

impl Between {
    /// Of one open seat.
    ///
    /// # Errors
    /// Nothing can be said of this time.
    pub fn new(open: &Open, before: &Known, now: &Known) -> Result<Self, Contradiction> {
        let (from, to) = (&before.counters, &now.counters);
        let risen = |from: u64, to: u64| to.checked_sub(from).ok_or(Contradiction);
        let switches = risen(from.switches, to.switches)?;
        let own = Range {
            least: to.own.0.saturating_sub(from.own.1),
            most: risen(from.own.0, to.own.1)?,
        };
        let (bound, kernel_threads) = bound(from, to)?;
        let ended = !(before.gone.is_empty() && now.gone.is_empty());
        let most = switches
            .checked_sub(own.least)
            .and_then(|rest| rest.checked_sub(bound.least))
            .ok_or(Contradiction)?;
        let least = switches.saturating_sub(own.most).saturating_sub(bound.most);
        // One that ended may have been all of what is left.
        let (least, bound) = match ended {
            true => (
                0,
                Range {
                    most: bound.most.saturating_add(most),
                    ..bound
                },
            ),
            false => (least, bound),
        };
        let (devices, own_interrupts) = devices(open, from, to);
        let mut between = Self {
            us: risen(before.up, now.up)?,
            switches,
            own,
            bound,
            other: Range { least, most },
            kernel_threads,
            devices,
            own_interrupts,
            upkeep: risen_by_name(&from.upkeep, &to.upkeep),
            softirqs: risen_by_name(&from.softirqs, &to.softirqs),
            run_ns: risen(from.run_ns, to.run_ns)?,
            delay_ns: risen(from.delay_ns, to.delay_ns)?,
            steal_ns: risen(from.steal, to.steal)?.saturating_mul(TICK_NS),
        };
        for name in POSTED {
            if let Some(count) = between.upkeep.remove(name) {
                between.own_interrupts.insert(name.to_owned(), count);
            }
        }
        Ok(between)
    }

    /// Whether anything of the two classes that a customer asks for was seen.
    pub fn is_disturbed(&self) -> bool {
        self.other.most > 0 || self.devices.values().any(|count| *count > 0)
    }
}

/// Switch-ins, and what each ran.
fn bound(from: &Counters, to: &Counters) -> Result<(Range, BTreeMap<String, Ran>), Contradiction> {
    let (mut sum, mut by_name) = (Range::default(), BTreeMap::<String, Ran>::new());
    for (thread, now) in &to.bound {
        let (range, ns) = match from.bound.get(thread) {
            Some(before) => risen_of(before, now)?,
            None => (
                Range {
                    least: now.switches.0.saturating_sub(ELSEWHERE),
                    most: now.switches.1,
                },
                now.run_ns,
            ),
        };
        sum.least = sum.least.saturating_add(range.least);
        sum.most = sum.most.saturating_add(range.most);
        if range.most > 0 {
            let name = now.name.split('/').next().unwrap_or_default();
            let ran = by_name.entry(name.to_owned()).or_default();
            ran.count = ran.count.saturating_add(range.most);
            ran.ns = ran.ns.saturating_add(ns);
        }
    }
    Ok((sum, by_name))
}

fn risen_of(before: &Bound, now: &Bound) -> Result<(Range, u64), Contradiction> {
    let range = Range {
        least: now.switches.0.saturating_sub(before.switches.1),
        most: now.switches.1.checked_sub(before.switches.0).ok_or(Contradiction)?,
    };
    Ok((range, now.run_ns.checked_sub(before.run_ns).ok_or(Contradiction)?))
}

/// Of others' devices, and of the VM's own.
fn devices(open: &Open, from: &Counters, to: &Counters) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let (mut others, mut own) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for (irq, now) in &to.devices {
        // A number that another device has now begins anew.
        let before = from.devices.get(irq).filter(|before| before.name == now.name);
        let count = u64::from(rise(before.map_or(0, |before| before.count), now.count));
        if count == 0 {
            continue;
        }
        let is_own =
            now.name.starts_with("vfio-") && open.own_devices.iter().any(|device| now.name.contains(device.as_str()));
        let sum = if is_own { &mut own } else { &mut others };
        *sum.entry(now.name.clone()).or_default() += count;
    }
    (others, own)
}

fn risen_by_name(from: &BTreeMap<String, u32>, to: &BTreeMap<String, u32>) -> BTreeMap<String, u64> {
    let risen = |(name, now): (&String, &u32)| {
        let count = u64::from(rise(from.get(name).copied().unwrap_or(0), *now));
        (count > 0).then(|| (name.clone(), count))
    };
    to.iter().filter_map(risen).collect()
}
