//! How often devices interrupted CPUs since boot. What cannot be read is `None`.

use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::Table;
use stelia_kernel::counters::read;

/// The interrupts of the host whose `/proc` this is.
pub(crate) fn read_table(proc: &Path) -> Option<Table> {
    read(&proc.join("interrupts"), Table::parse)
}

/// Device interrupts on these CPUs together; `None` where none of them is online.
pub(crate) fn device_interrupts(table: &Table, cpus: &CpuSet) -> Option<u64> {
    let counts = table.by_cpu(cpus);
    (!counts.is_empty()).then(|| counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
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
