//! How often devices interrupted CPUs since boot, and how often a CPU's own interrupts and softirqs ran there. What cannot be read is
//! `None`.

use std::collections::BTreeMap;
use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{self, Kind, Table};
use stelia_kernel::counters::{read, softirqs};

/// The interrupts of the host whose `/proc` this is.
pub(crate) fn read_table(proc: &Path) -> Option<Table> {
    read(&proc.join("interrupts"), Table::parse)
}

/// Device interrupts on these CPUs together; `None` where none of them is online.
pub(crate) fn device_interrupts(table: &Table, cpus: &CpuSet) -> Option<u64> {
    let counts = table.by_cpu(cpus);
    (!counts.is_empty()).then(|| counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
}

/// Interrupts that these CPUs have for themselves, all CPUs together, by the kernel's mnemonic, on arm64 also by the driver's name.
pub(crate) fn per_cpu(proc: &Path, cpus: &CpuSet) -> Option<BTreeMap<String, u64>> {
    read(&proc.join("interrupts"), |text| {
        let mut own = BTreeMap::new();
        for line in interrupts::parse(text, cpus)?.lines {
            if let Kind::PerCpu(name) = line.kind {
                *own.entry(name.into_owned()).or_default() += sum(&line.counts);
            }
        }
        Ok(own)
    })
}

/// Softirqs of these CPUs, all CPUs together, by name.
pub(crate) fn softirqs(proc: &Path, cpus: &CpuSet) -> Option<BTreeMap<String, u64>> {
    read(&proc.join("softirqs"), |text| {
        let lines = softirqs::parse(text, cpus)?.into_iter();
        Ok(lines.map(|line| (line.name.to_owned(), sum(&line.counts))).collect())
    })
}

fn sum(counts: &[(u32, u32)]) -> u64 {
    counts.iter().map(|(_, count)| u64::from(*count)).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// CPU 2 is offline. The timers of ARM and of Xen are each CPU's own, though they have numbers.
    const TEXT: &str = "\
            CPU0       CPU1       CPU3       CPU10
   2:          7          7          7          7    XT-PIC   cascade
  11:          9          9          9          9     GICv3  27 Level     arch_timer
  24:          5          0          2          1  PCI-MSIX-0000:00:03.0   0-edge      virtio0 4 queue
  48:          7          7          7          7  xen-percpu    -virq      timer0
 130:          0          3          4          0  IR-PCI-MSI 524288-edge      nvme0q1
 NMI:          9          9          9          9   Non-maskable interrupts
 LOC:        100        200        300        400   Local timer interrupts
 ERR:          0
";

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn proc(file: &str, text: &str) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::write(proc.path().join(file), text).unwrap();
        proc
    }

    #[test]
    fn devices_are_counted_on_online_cpus() {
        let proc = proc("interrupts", TEXT);
        let table = read_table(proc.path()).unwrap();
        let on = |list| device_interrupts(&table, &cpus(list));
        assert_eq!(on("0-3,10"), Some(15));
        assert_eq!(on("2-3,10"), Some(7));
        assert_eq!(on("2"), None);
    }

    #[test]
    fn a_cpus_own_interrupts_and_softirqs_by_name() {
        let interrupts = proc("interrupts", TEXT);
        let own = per_cpu(interrupts.path(), &cpus("1-3")).unwrap();
        let expected = [("arch_timer", 18), ("NMI", 18), ("LOC", 500)];
        assert_eq!(own, expected.map(|(name, count)| (name.to_owned(), count)).into());
        let text = "                    CPU0       CPU1\n          HI:          0          0\n      NET_RX:          3          4\n";
        let softirqs = softirqs(proc("softirqs", text).path(), &cpus("0-1")).unwrap();
        assert_eq!(softirqs, [("NET_RX".to_owned(), 7)].into());
    }

    #[test]
    fn what_is_not_understood_is_not_counted() {
        for text in [
            "",
            "nonsense\n 24: 1 2 3 x\n",
            "CPU0 CPUx\n 24: 1 2 x\n",
            "CPU0 CPU1\n 24: 1\n",
        ] {
            assert_eq!(read_table(proc("interrupts", text).path()), None, "{text:?}");
        }
        assert_eq!(read_table(Path::new("/no/such/folder")), None);
    }
}
