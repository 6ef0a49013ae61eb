//! Counters that need not be consistent with the switches: interrupts, softirqs and steal.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{self, Interrupts, Kind};
use stelia_kernel::counters::{ParseError, cpu_time, softirqs};

use super::super::files::Files;
use super::super::{Counters, Seat};
use super::{MAX_READ_ATTEMPTS, SampleError};

const SOFTIRQS: &str = "/proc/softirqs";
const STAT: &str = "/proc/stat";

/// Adds these counters to the seats, and removes seats with a CPU that went offline.
pub(super) fn fill(
    files: &dyn Files,
    seats: &mut BTreeMap<Seat, Counters>,
    buffer: &mut Vec<u8>,
) -> Result<(), SampleError> {
    let wanted = seats.keys().fold(CpuSet::new(), |all, seat| all.union(&seat.cpus));
    if wanted.is_empty() {
        return Ok(());
    }
    read_and_parse(files, interrupts::PATH, buffer, |text| {
        let table = interrupts::parse(text, &wanted)?;
        seats.retain(|seat, _| seat.cpus.is_subset(&table.online));
        add_interrupts(table, seats);
        Ok(())
    })?;
    read_and_parse(files, SOFTIRQS, buffer, |text| {
        let lines = softirqs::parse(text, &wanted)?;
        let mut by_cpu = SeatsByCpu::new(seats);
        for line in lines {
            for (cpu, count) in line.counts {
                by_cpu.for_each(cpu, |seat| add_count(&mut seat.softirqs, line.name, count));
            }
        }
        Ok(())
    })?;
    read_and_parse(files, STAT, buffer, |text| {
        let times = cpu_time::parse(text, &wanted)?;
        seats.retain(|seat, _| seat.cpus.iter().all(|cpu| times.contains_key(&cpu)));
        for (seat, counters) in seats.iter_mut() {
            let times = seat.cpus.iter().filter_map(|cpu| times.get(&cpu));
            counters.steal = times.map(|time| time.stolen).sum();
        }
        Ok(())
    })
}

/// Reads and parses a file; again if a CPU went online or offline meanwhile.
fn read_and_parse(
    files: &dyn Files,
    path: &str,
    buffer: &mut Vec<u8>,
    mut parse: impl FnMut(&[u8]) -> Result<(), ParseError>,
) -> Result<(), SampleError> {
    let mut attempts = MAX_READ_ATTEMPTS;
    loop {
        attempts -= 1;
        files.read(path, buffer).map_err(SampleError::read(path))?;
        match parse(buffer) {
            Err(ParseError::Columns { .. } | ParseError::Cut) if attempts > 0 => {}
            other => return other.map_err(SampleError::form(path)),
        }
    }
}

fn add_interrupts(table: Interrupts<'_>, seats: &mut BTreeMap<Seat, Counters>) {
    let mut by_cpu = SeatsByCpu::new(seats);
    for line in table.lines {
        for (cpu, count) in line.counts {
            by_cpu.for_each(cpu, |seat| match &line.kind {
                Kind::Device { irq, name } => {
                    let fired = seat.devices.entry(*irq).or_default();
                    if fired.name.is_empty() {
                        fired.name.clone_from(name);
                    }
                    fired.count = fired.count.wrapping_add(count);
                }
                Kind::PerCpu(name) => add_count(&mut seat.upkeep, name, count),
            });
        }
    }
}

/// The kernel's counters have 32 bits, so the sum has 32 bits too.
fn add_count(sums: &mut BTreeMap<String, u32>, name: &str, count: u32) {
    match sums.get_mut(name) {
        Some(sum) => *sum = sum.wrapping_add(count),
        None => {
            sums.insert(name.to_owned(), count);
        }
    }
}

/// The seats of each CPU: one, except while a VM changes its CPUs.
struct SeatsByCpu<'a> {
    counters: Vec<&'a mut Counters>,
    indexes: BTreeMap<u32, Vec<usize>>,
}

impl<'a> SeatsByCpu<'a> {
    fn new(seats: &'a mut BTreeMap<Seat, Counters>) -> Self {
        let mut indexes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut counters = Vec::with_capacity(seats.len());
        for (index, (seat, counted)) in seats.iter_mut().enumerate() {
            seat.cpus
                .iter()
                .for_each(|cpu| indexes.entry(cpu).or_default().push(index));
            counters.push(counted);
        }
        Self { counters, indexes }
    }

    fn for_each(&mut self, cpu: u32, mut change: impl FnMut(&mut Counters)) {
        for index in self.indexes.get(&cpu).into_iter().flatten() {
            if let Some(counters) = self.counters.get_mut(*index) {
                change(counters);
            }
        }
    }
}
