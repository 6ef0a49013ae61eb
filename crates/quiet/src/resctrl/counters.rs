//! The counters of a monitoring group.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;

use crate::files::Files;

/// The L3 cache of each CPU, by the number that resctrl calls its domain; `None` if it cannot be read.
#[derive(Debug, Default)]
pub(super) struct Caches(BTreeMap<u32, Option<u32>>);

impl Caches {
    /// The caches of these CPUs; `None` if that of a CPU cannot be read.
    fn of(&mut self, files: &dyn Files, cpus: &CpuSet) -> Option<BTreeSet<u32>> {
        let cache = |cpu| *self.0.entry(cpu).or_insert_with(|| l3(files, cpu));
        cpus.iter().map(cache).collect()
    }
}

/// The `id` of the cache whose `level` is 3.
fn l3(files: &dyn Files, cpu: u32) -> Option<u32> {
    let value = |index: u32, file: &str| -> Option<u32> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{file}");
        files.read(&path).ok()?.trim().parse().ok()
    };
    // The indexes are: level 1 data, level 1 instructions, level 2, level 3.
    (2..5)
        .find(|index| value(*index, "level") == Some(3))
        .and_then(|index| value(index, "id"))
}

/// Bytes in the cache and bytes transferred, each `None` if it is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CacheCounts {
    pub(super) llc_bytes: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
}

/// The sums over the caches of the CPUs. Other caches are left out: they count nothing for these CPUs, may have no counter
/// (`Unavailable`), and the kernel reads each value on a CPU of that cache, which interrupts it.
pub(super) fn count(files: &dyn Files, group: &str, cpus: &CpuSet, caches: &mut Caches) -> CacheCounts {
    let directory = format!("{group}/mon_data");
    let wanted = caches.of(files, cpus);
    let names = files.list(&directory).unwrap_or_default();
    let domains = names.into_iter().filter_map(|name| {
        let id: u32 = name.strip_prefix("mon_L3_")?.parse().ok()?;
        let counts = wanted.as_ref().is_none_or(|wanted| wanted.contains(&id));
        counts.then(|| format!("{directory}/{name}"))
    });
    let domains: Vec<String> = domains.collect();
    let sum = |file: &str| {
        let values = domains.iter().map(|domain| {
            // The kernel may print a word instead: Unavailable, Error, Unassigned.
            let text = files.read(&format!("{domain}/{file}")).ok()?;
            text.trim().parse::<u64>().ok()
        });
        let sum = values.sum::<Option<u64>>()?;
        (!domains.is_empty()).then_some(sum)
    };
    CacheCounts {
        llc_bytes: sum("llc_occupancy"),
        memory_bytes: sum("mbm_total_bytes"),
    }
}
