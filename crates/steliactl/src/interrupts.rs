//! `/proc/interrupts`: how often devices interrupted each CPU.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use stelia_cpus::CpuSet;

/// The timer and the cascade of the old interrupt controller: no devices, and never moved.
const NO_DEVICES: [&str; 2] = ["0", "2"];

/// Device interrupts since boot, by CPU: the numbered lines, without IRQ 0 and 2. Lines with names (LOC, RES, CAL, …) are the
/// kernel's own. The header names the online CPUs, a column each; of `cpus` those that are offline are not in the answer.
pub(crate) fn device_interrupts(text: &str, cpus: &CpuSet) -> BTreeMap<u32, u64> {
    counted(text, cpus, |name| {
        name.bytes().all(|byte| byte.is_ascii_digit()) && !NO_DEVICES.contains(&name)
    })
}

/// The line of that name, such as `LOC` of `/proc/interrupts` or `NET_RX` of `/proc/softirqs`, by CPU.
pub(crate) fn line(text: &str, wanted: &str, cpus: &CpuSet) -> BTreeMap<u32, u64> {
    counted(text, cpus, |name| name == wanted)
}

fn counted(text: &str, cpus: &CpuSet, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default().split_whitespace();
    let columns: Option<Vec<u32>> = header
        .map(|name| name.strip_prefix("CPU").and_then(|number| number.parse().ok()))
        .collect();
    // A header that is not understood: the columns are nobody's.
    let columns = columns.unwrap_or_default();
    let mut counts: BTreeMap<u32, u64> = columns
        .iter()
        .filter(|cpu| cpus.contains(**cpu))
        .map(|cpu| (*cpu, 0))
        .collect();
    for line in lines {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        if !is_wanted(name.trim()) {
            continue;
        }
        // The counts end where the names begin; ERR and MIS have one count for all CPUs.
        let values = rest.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        for (cpu, value) in columns.iter().zip(values) {
            if let Some(count) = counts.get_mut(cpu) {
                *count = count.saturating_add(value);
            }
        }
    }
    counts
}

/// `/proc/interrupts`, or another of that form; empty where it cannot be read.
pub(crate) fn read(proc: &Path, file: &str) -> String {
    fs::read_to_string(proc.join(file)).unwrap_or_default()
}

/// Of all CPUs together; `None` where none of them is online, or the file could not be read.
pub(crate) fn total(counts: &BTreeMap<u32, u64>) -> Option<u64> {
    (!counts.is_empty()).then(|| counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU 2 is offline.
    const TEXT: &str = "\
            CPU0       CPU1       CPU3       CPU10
   0:         40          0          0          0  IO-APIC   2-edge      timer
   2:          7          7          7          7    XT-PIC   cascade
  24:          5          0          2          1  PCI-MSIX-0000:00:03.0   0-edge      virtio0 4 queue
 130:          0          3          4          0  IR-PCI-MSI 524288-edge      nvme0q1
 NMI:          9          9          9          9   Non-maskable interrupts
 LOC:        100        200        300        400   Local timer interrupts
 ERR:          0
";

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn devices_are_the_numbered_lines_and_columns_are_the_cpus_of_the_header() {
        assert_eq!(
            device_interrupts(TEXT, &cpus("0-3,10")),
            [(0, 5), (1, 3), (3, 6), (10, 1)].into()
        );
        assert_eq!(device_interrupts(TEXT, &cpus("2")), BTreeMap::new());
        assert_eq!(total(&device_interrupts(TEXT, &cpus("2-3,10"))), Some(7));
        assert_eq!(total(&device_interrupts(TEXT, &cpus("2"))), None);
    }

    #[test]
    fn a_line_by_its_name() {
        assert_eq!(line(TEXT, "LOC", &cpus("1-3")), [(1, 200), (3, 300)].into());
        assert_eq!(line(TEXT, "ERR", &cpus("1")), [(1, 0)].into());
        let softirqs = "                    CPU0       CPU1\n          HI:          1          2\n      NET_RX:          3          4\n";
        assert_eq!(line(softirqs, "NET_RX", &cpus("0-1")), [(0, 3), (1, 4)].into());
    }

    #[test]
    fn what_is_not_understood_counts_nothing() {
        for text in ["", "nonsense\n 24: 1 2 3 x\n", "CPU0 CPUx\n 24: 1 2 x\n"] {
            assert_eq!(device_interrupts(text, &cpus("0-9")), BTreeMap::new(), "{text:?}");
        }
        // A short line, and one without a name.
        let short = "CPU0 CPU1\n 24: 1\nnothing\n";
        assert_eq!(device_interrupts(short, &cpus("0-1")), [(0, 1), (1, 0)].into());
    }
}
