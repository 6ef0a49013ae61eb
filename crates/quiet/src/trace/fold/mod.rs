//! Converts histograms to an attribution: which tasks, interrupts and softirqs ran on CPUs. Pure.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stelia_api::attribution::{Attribution, Occupant};

use super::hist::{Histogram, HistogramRow};
use super::plan;
use crate::order::Target;

/// Softirqs by their number (`include/linux/interrupt.h`).
const SOFTIRQS: [&str; 10] = [
    "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu",
];

/// Limit of the rows of one kind: an answer is a line of limited length. Further rows are summed into one for each CPU.
const MAX_ROWS_PER_KIND: usize = 10_000;
const OTHERS_NAME: &str = "(others)";

/// The driver's name of arm64's inter-processor interrupts. They have numbers, which `/proc/interrupts` hides.
const INTER_PROCESSOR: &str = "IPI";

/// How often and how long something ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub count: u64,
    /// Total time of the runs that ended; `None`: none did, or times are not measured.
    pub ns: Option<u64>,
}

impl Sum {
    fn add(&mut self, count: u64, ns: Option<u64>) {
        self.count = self.count.saturating_add(count);
        if let Some(ns) = ns {
            self.ns = Some(self.ns.unwrap_or(0).saturating_add(ns));
        }
    }
}

/// Sums by CPU and by name.
type Sums = BTreeMap<u32, BTreeMap<String, Sum>>;

/// What was counted since the triggers were set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TraceCounts {
    pub dropped: u64,
    /// Rows that could not be read.
    pub unread: u64,
    pub tasks: Sums,
    pub interrupts: Sums,
    pub softirqs: Sums,
    pub vectors: Sums,
}

impl TraceCounts {
    /// The counts in these histograms, which are given by event (as in [`plan::hist`]). `private` are the numbers of interrupts that each CPU
    /// has of its own.
    pub fn new(target: &Target, histograms: &BTreeMap<String, Vec<Histogram>>, private: &BTreeSet<u32>) -> Self {
        let all = || histograms.values().flatten();
        let reader = Reader { target, histograms };
        let (interrupts, mut vectors) = reader.interrupts(private);
        add_all(&mut vectors, reader.vectors());
        Self {
            dropped: all().fold(0, |sum, one| sum.saturating_add(one.dropped)),
            unread: all().fold(0, |sum, one| sum.saturating_add(one.unread)),
            tasks: reader.tasks(),
            interrupts,
            softirqs: reader.softirqs(),
            vectors,
        }
    }

    /// The difference to these earlier counts.
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            dropped: self.dropped.saturating_sub(earlier.dropped),
            unread: self.unread,
            tasks: since(self.tasks, &earlier.tasks),
            interrupts: since(self.interrupts, &earlier.interrupts),
            softirqs: since(self.softirqs, &earlier.softirqs),
            vectors: since(self.vectors, &earlier.vectors),
        }
    }

    /// Converts the counts to an attribution, without times and CPUs.
    pub fn into_attribution(self) -> Attribution {
        let mut problems = Vec::new();
        if self.unread > 0 {
            problems.push(format!("{} rows of the kernel's counts could not be read", self.unread));
        }
        Attribution {
            dropped: self.dropped,
            problems,
            tasks: occupants(self.tasks),
            interrupts: occupants(self.interrupts),
            softirqs: occupants(self.softirqs),
            vectors: occupants(self.vectors),
            ..Attribution::default()
        }
    }
}

fn add_all(sums: &mut Sums, more: Sums) {
    for (cpu, names) in more {
        let own = sums.entry(cpu).or_default();
        for (name, sum) in names {
            own.entry(name).or_default().add(sum.count, sum.ns);
        }
    }
}

fn since(later: Sums, earlier: &Sums) -> Sums {
    let mut sums = Sums::new();
    for (cpu, names) in later {
        for (name, sum) in names {
            let before = earlier.get(&cpu).and_then(|names| names.get(&name));
            let before = before.copied().unwrap_or_default();
            let ns = sum.ns.map(|ns| ns.saturating_sub(before.ns.unwrap_or(0)));
            let count = sum.count.saturating_sub(before.count);
            // Zero: none of its runs ended since.
            let ns = ns.filter(|ns| *ns > 0);
            if count > 0 || ns.is_some() {
                sums.entry(cpu).or_default().insert(name, Sum { count, ns });
            }
        }
    }
    sums
}

fn occupants(sums: Sums) -> Vec<Occupant> {
    let total: usize = sums.values().map(BTreeMap::len).sum();
    let rows_per_cpu = if total > MAX_ROWS_PER_KIND {
        MAX_ROWS_PER_KIND / sums.len().max(1)
    } else {
        MAX_ROWS_PER_KIND
    };
    let mut occupants = Vec::new();
    for (cpu, names) in sums {
        let mut names: Vec<(String, Sum)> = names.into_iter().collect();
        if names.len() > rows_per_cpu {
            names.sort_by_key(|(_, sum)| Reverse((sum.ns, sum.count)));
            let mut others = Sum::default();
            for (_, sum) in names.drain(rows_per_cpu..) {
                others.add(sum.count, sum.ns);
            }
            names.push((OTHERS_NAME.to_owned(), others));
        }
        occupants.extend(names.into_iter().map(|(name, sum)| Occupant {
            cpu,
            name,
            count: sum.count,
            ns: sum.ns,
            estimated: false,
        }));
    }
    occupants
}

struct Reader<'a> {
    target: &'a Target,
    histograms: &'a BTreeMap<String, Vec<Histogram>>,
}

impl<'a> Reader<'a> {
    /// The rows, for the target's CPUs, of those of the event's histograms whose first key is this.
    fn rows(
        &self,
        event: &str,
        first: &'a str,
    ) -> impl Iterator<Item = (u32, &'a Histogram, &'a HistogramRow)> + use<'a, '_> {
        let histograms = self.histograms.get(event).into_iter().flatten();
        let histograms = histograms.filter(move |one| one.keys.first().is_some_and(|key| key == first));
        histograms.flat_map(move |histogram| {
            let at = histogram.key_index("common_cpu");
            histogram.rows.iter().filter_map(move |row| {
                let cpu = row.keys.get(at?)?.parse().ok()?;
                self.target.cpus.contains(cpu).then_some((cpu, histogram, row))
            })
        })
    }

    /// The same rows with the value of the first key, which is a number.
    fn numbered(&self, event: &str, first: &'a str) -> Vec<(u32, u32, &'a HistogramRow)> {
        let rows = self.rows(event, first);
        rows.filter_map(|(cpu, _, row)| Some((cpu, row.keys.first()?.parse().ok()?, row)))
            .collect()
    }

    fn tasks(&self) -> Sums {
        let mut sums = Sums::new();
        let mut add = |event: &str, name: &'a str, number: &str, timed: bool| {
            for (cpu, histogram, row) in self.rows(event, name) {
                // The VM's own threads, if they were too many for the filter, and those that are named at the end.
                let thread = histogram
                    .key_index(number)
                    .and_then(|at| row.keys.get(at)?.parse().ok());
                if thread.is_some_and(|thread: i32| self.target.own.contains(&thread)) {
                    continue;
                }
                let name = row.keys.first().cloned().unwrap_or_default();
                let sum = sums.entry(cpu).or_default().entry(name).or_default();
                if timed {
                    sum.add(0, row.sum)
                } else {
                    sum.add(row.hits, None)
                }
            }
        };
        add(plan::SWITCH, "next_comm", "next_pid", false);
        add(&format!("synthetic/{}", plan::RUN), "comm", "pid", true);
        sums
    }

    /// Those of devices, and those that each CPU has of its own. An interrupt that several drivers share has all their names, and is counted
    /// once for them.
    fn interrupts(&self, private: &BTreeSet<u32>) -> (Sums, Sums) {
        let mut by_number: BTreeMap<(u32, u32), (BTreeSet<&str>, Sum)> = BTreeMap::new();
        for (cpu, histogram, row) in self.rows(plan::INTERRUPT_ENTRY, "irq") {
            // The event's other histogram has only the times.
            let Some(name) = histogram.key_index("name").and_then(|at| row.keys.get(at)) else {
                continue;
            };
            let Some(number) = row.keys.first().and_then(|number| number.parse().ok()) else {
                continue;
            };
            let (names, sum) = by_number.entry((cpu, number)).or_default();
            names.insert(name);
            // Every driver's handler is called each time.
            sum.count = sum.count.max(row.hits);
        }
        for (cpu, number, row) in self.numbered(&format!("synthetic/{}", plan::INTERRUPT), "n") {
            let (_, sum) = by_number.entry((cpu, number)).or_default();
            sum.add(0, row.sum);
        }
        let (mut devices, mut own) = (Sums::new(), Sums::new());
        for ((cpu, number), (names, sum)) in by_number {
            let names: Vec<&str> = names.into_iter().collect();
            if private.contains(&number) || names == [INTER_PROCESSOR] {
                let one = own.entry(cpu).or_default().entry(names.join(", ")).or_default();
                one.add(sum.count, sum.ns);
                continue;
            }
            let name = format!("{number} {}", names.join(", "));
            devices.entry(cpu).or_default().insert(name.trim_end().to_owned(), sum);
        }
        (devices, own)
    }

    fn softirqs(&self) -> Sums {
        let mut sums = Sums::new();
        let mut add = |cpu: u32, number: u32, count, ns| {
            let known = SOFTIRQS.get(number as usize).map(|name| (*name).to_owned());
            let name = known.unwrap_or_else(|| format!("softirq {number}"));
            sums.entry(cpu).or_default().entry(name).or_default().add(count, ns);
        };
        for (cpu, number, row) in self.numbered(plan::SOFTIRQ_ENTRY, "vec") {
            add(cpu, number, row.hits, None);
        }
        for (cpu, number, row) in self.numbered(&format!("synthetic/{}", plan::SOFTIRQ), "n") {
            add(cpu, number, 0, row.sum);
        }
        sums
    }

    /// The CPUs' own interrupts, by the name of the event that counts them. Times have only the vector's number.
    fn vectors(&self) -> Sums {
        let mut sums = Sums::new();
        let mut names: BTreeMap<u32, &str> = BTreeMap::new();
        for event in self.histograms.keys() {
            let name = event
                .strip_prefix(plan::VECTORS)
                .and_then(|name| name.strip_prefix('/'));
            let Some(name) = name.and_then(|name| name.strip_suffix("_entry")) else {
                continue;
            };
            for (cpu, vector, row) in self.numbered(event, "vector") {
                names.insert(vector, name);
                let names = sums.entry(cpu).or_default();
                names.entry(name.to_owned()).or_default().add(row.hits, None);
            }
        }
        for (cpu, vector, row) in self.numbered(&format!("synthetic/{}", plan::VECTOR), "n") {
            if let Some(name) = names.get(&vector) {
                let names = sums.entry(cpu).or_default();
                names.entry((*name).to_owned()).or_default().add(0, row.sum);
            }
        }
        // Every handler is called each time, and the event has its answer: one that had nothing to do took time as well.
        for (cpu, handled, row) in self.numbered(plan::NMI, "handled") {
            let count = if handled == 0 { 0 } else { row.hits };
            let names = sums.entry(cpu).or_default();
            names.entry("nmi".to_owned()).or_default().add(count, row.sum);
        }
        sums
    }
}
