//! The increase of a seat's counters from one reading to the next.

use std::collections::BTreeMap;

use stelia_kernel::counters::interrupts::{rise, vfio_device};

use super::{FullReading, OpenSeat, UNOBSERVED_THREAD};
use crate::account::{Ran, Range, Totals};
use crate::sample::{Bound, Counters, START_TIME_UNIT_US};

/// Limit of the runs of a bound kernel thread on other CPUs: it starts, waits, and is bound then
/// (kernel/kthread.c, `kthread` and `kthread_bind`).
const MAX_RUNS_BEFORE_BOUND: u64 = 2;

/// Longest time that a sample takes, in microseconds. A thread that is new in a reading and started less than this after the previous one
/// may have run before that too, because the clock is read once in a sample.
const MAX_SAMPLE_DURATION_US: u64 = 1_000_000;

/// The readings of a seat cannot follow each other: one of its threads ran on other CPUs, or they are from different boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the counters contradict each other: a thread ran elsewhere, or one of them fell")]
pub struct Contradiction;

/// How much counters rose from one reading of a seat to a later one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadingDelta {
    /// Microseconds of `CLOCK_BOOTTIME`.
    pub us: u64,
    pub switches: u64,
    /// Switch-ins of the seat's threads, lower and upper bound.
    pub own: Range,
    /// Switch-ins of bound kernel threads, lower and upper bound.
    pub bound: Range,
    /// All other switch-ins. The lower bound is 0 if a bound kernel thread or a task of the container ended, because its last switch-ins
    /// are not known.
    pub other: Range,
    pub(crate) telescoped: Telescoped,
    /// All but switch-ins of tasks.
    pub totals: Totals,
}

/// Bounds of a window's switch-ins of bound threads that can be summed over consecutive windows. They are not limited by 0, so that errors
/// of consecutive windows cancel out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Telescoped {
    pub(crate) least: i128,
    pub(crate) most: i128,
    /// The uncertainty of the reading that begins the window. The same reading ends the previous window, so a sum of both windows adds it
    /// to `least` and subtracts it from `most`.
    pub(crate) first_uncertainty: i128,
}

/// A tick of `/proc/stat` (USER_HZ, 100 on all architectures that Linux runs VMs on).
const TICK_NS: u64 = 10_000_000;

/// Interrupts that the processor delivers to the VM: posted interrupts (arch/x86/kernel/irq.c), and on arm64 the doorbell that wakes a vCPU
/// (arch/arm64/kvm/vgic/vgic-v4.c).
const POSTED_INTERRUPTS: [&str; 4] = ["PIN", "NPI", "PIW", DOORBELL];
/// Each vCPU has a line of that name for as long as its VM runs.
const DOORBELL: &str = "vcpu";

impl ReadingDelta {
    /// Compares two readings of an open seat.
    pub fn new(open: &OpenSeat, before: &FullReading, now: &FullReading) -> Result<Self, Contradiction> {
        let (from, to) = (&before.counters, &now.counters);
        let risen = |from: u64, to: u64| to.checked_sub(from).ok_or(Contradiction);
        let switches = risen(from.switches, to.switches)?;
        let own = Range {
            least: to.own.0.saturating_sub(from.own.1),
            most: risen(from.own.0, to.own.1)?,
        };
        let (bound, mut telescoped, kernel_threads) = bound_threads(before, now)?;
        // A thread that ended may have run once more after the CPU was read; an unobserved one had ended before the sample.
        let ended = !now.gone.is_empty() || before.gone.iter().any(|thread| *thread != UNOBSERVED_THREAD);
        let most = switches
            .checked_sub(own.least)
            .and_then(|rest| rest.checked_sub(bound.least))
            .ok_or(Contradiction)?;
        let least = switches.saturating_sub(own.most).saturating_sub(bound.most);
        // All other switch-ins may be those of a thread that ended.
        let (least, bound) = if ended {
            telescoped.most += i128::from(most);
            let most = bound.most.saturating_add(most);
            (0, Range { most, ..bound })
        } else {
            (least, bound)
        };
        let (devices, own_interrupts) = devices(open, from, to);
        let ns = risen(from.run_ns, to.run_ns)?;
        let mut totals = Totals {
            other_tasks: Range::default(),
            devices,
            kernel_threads,
            upkeep: rises_by_name(&from.upkeep, &to.upkeep),
            softirqs: rises_by_name(&from.softirqs, &to.softirqs),
            own_interrupts,
            own: Ran { count: 0, ns },
            delay_ns: risen(from.delay_ns, to.delay_ns)?,
            steal_ns: risen(from.steal, to.steal)?.saturating_mul(TICK_NS),
        };
        for name in POSTED_INTERRUPTS {
            if let Some(count) = totals.upkeep.remove(name) {
                totals.own_interrupts.insert(name.to_owned(), count);
            }
        }
        Ok(Self {
            us: risen(before.up, now.up)?,
            switches,
            own,
            bound,
            other: Range { least, most },
            telescoped,
            totals,
        })
    }

    /// Whether other tasks or other devices' interrupts ran: the two classes that are promised to be 0.
    pub fn is_disturbed(&self) -> bool {
        self.other.most > 0 || self.totals.devices.values().any(|count| *count > 0)
    }
}

/// Switch-ins of bound threads as bounds and as summable bounds, and how often and how long each ran.
fn bound_threads(
    before: &FullReading,
    now: &FullReading,
) -> Result<(Range, Telescoped, BTreeMap<String, Ran>), Contradiction> {
    let (mut sum, mut by_name) = (Range::default(), BTreeMap::<String, Ran>::new());
    let mut telescoped = Telescoped::default();
    for (thread, bound) in &now.counters.bound {
        let (first, last) = bound.switches;
        let (range, ns) = match before.counters.bound.get(thread) {
            Some(known) => {
                let (known_first, known_last) = known.switches;
                telescoped.least += i128::from(first) - i128::from(known_last);
                telescoped.first_uncertainty += i128::from(known_last) - i128::from(known_first);
                rise_of_thread(known, bound)?
            }
            // All of its runs are in this window, the first ones maybe on other CPUs.
            None if thread.start.saturating_mul(START_TIME_UNIT_US)
                >= before.up.saturating_add(MAX_SAMPLE_DURATION_US) =>
            {
                telescoped.least += i128::from(first) - i128::from(MAX_RUNS_BEFORE_BOUND);
                let least = first.saturating_sub(MAX_RUNS_BEFORE_BOUND);
                (Range { least, most: last }, bound.run_ns)
            }
            // It existed at the previous reading, which does not have it: how many of its runs are in this window is not known.
            None => {
                telescoped.least -= i128::from(last) - i128::from(first);
                (Range { least: 0, most: last }, bound.run_ns)
            }
        };
        let known_first = before.counters.bound.get(thread).map_or(0, |known| known.switches.0);
        telescoped.most += i128::from(last) - i128::from(known_first);
        sum.add(range);
        if range.most > 0 {
            let name = bound.name.split('/').next().unwrap_or_default();
            let ran: &mut Ran = by_name.entry(name.to_owned()).or_default();
            ran.add(Ran { count: range.most, ns });
        }
    }
    Ok((sum, telescoped, by_name))
}

fn rise_of_thread(before: &Bound, now: &Bound) -> Result<(Range, u64), Contradiction> {
    let range = Range {
        least: now.switches.0.saturating_sub(before.switches.1),
        most: now.switches.1.checked_sub(before.switches.0).ok_or(Contradiction)?,
    };
    Ok((range, now.run_ns.checked_sub(before.run_ns).ok_or(Contradiction)?))
}

/// Interrupts of other devices, and of the VM's own.
fn devices(open: &OpenSeat, from: &Counters, to: &Counters) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let (mut others, mut own) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    for (irq, now) in &to.devices {
        // An interrupt number that now belongs to another device starts from 0.
        let before = from.devices.get(irq).filter(|before| before.name == now.name);
        let count = u64::from(rise(before.map_or(0, |before| before.count), now.count));
        if count == 0 {
            continue;
        }
        // A line that other drivers share is not the VM's own.
        let device = vfio_device(&now.name);
        let is_own = device.is_some_and(|device| open.own_devices.iter().any(|own| own == device));
        let sum = if is_own { &mut own } else { &mut others };
        *sum.entry(now.name.clone()).or_default() += count;
    }
    (others, own)
}

fn rises_by_name(from: &BTreeMap<String, u32>, to: &BTreeMap<String, u32>) -> BTreeMap<String, u64> {
    let risen = |(name, now): (&String, &u32)| {
        let before = from.get(name).copied().unwrap_or(0);
        let count = u64::from(match name.as_str() {
            // The sum of the lines falls when a VM ends.
            DOORBELL => now.saturating_sub(before),
            _ => rise(before, *now),
        });
        (count > 0).then(|| (name.clone(), count))
    };
    to.iter().filter_map(risen).collect()
}
