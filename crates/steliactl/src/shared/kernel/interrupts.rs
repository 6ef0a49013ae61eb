//! How often devices interrupted CPUs, and which did. What cannot be read is `None`.

use std::cmp::Reverse;
use std::path::Path;
use std::time::Duration;

use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{IrqLine, Table, risen, vfio_device};
use stelia_kernel::counters::read;
use stelia_kernel::locality::Locality;
use tokio::time::{Instant, sleep};

use crate::shared::output::counted;

/// The interrupts of the host whose `/proc` this is.
pub(crate) fn read_table(proc: &Path) -> Option<Table> {
    read(&proc.join("interrupts"), Table::parse)
}

/// Device interrupts on these CPUs together; `None` where none of them is online.
pub(crate) fn device_interrupts(table: &Table, cpus: &CpuSet) -> Option<u64> {
    let counts = table.by_cpu(cpus);
    (!counts.is_empty()).then(|| counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count)))
}

/// A device interrupt that fired between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fired {
    pub irq: u32,
    /// The drivers' names, which may be anything.
    pub name: String,
    /// CPU and times a second, rounded up: one interrupt must not vanish.
    pub per_second: Vec<(u32, u64)>,
}

/// The device interrupts that fire within this time.
pub(crate) async fn measured(proc: &Path, time: Duration) -> Option<Vec<Fired>> {
    let (began, before) = (Instant::now(), read_table(proc)?);
    sleep(time).await;
    Some(fired_between(&before, &read_table(proc)?, began.elapsed()))
}

/// What fired between two readings, the most first.
pub(crate) fn fired_between(before: &Table, now: &Table, time: Duration) -> Vec<Fired> {
    let rate = |(cpu, count): (u32, u32)| (cpu, (f64::from(count) / time.as_secs_f64().max(0.001)).ceil() as u64);
    // What a CPU that came online meanwhile has counted is older than this time.
    let cpus = now.cpus.intersection(&before.cpus);
    let each = now.devices().map(|line| {
        // A shared line that gets another driver has another name and goes on counting.
        let earlier = before.lines.get(&line.irq);
        let risen = risen(earlier.map_or(&[], IrqLine::counts), line.counts(), &cpus);
        Fired {
            irq: line.irq,
            name: line.name.clone(),
            per_second: risen.into_iter().map(rate).collect(),
        }
    });
    let mut all: Vec<Fired> = each.filter(|one| !one.per_second.is_empty()).collect();
    all.sort_by_cached_key(|one| Reverse(one.per_second.iter().map(|(_, rate)| *rate).max()));
    all
}

impl Fired {
    /// Those of these CPUs of a VM on which it fired, and how often a second; `None` if it did not, or is of the VM's own VFIO devices.
    pub(crate) fn on(&self, cpus: &CpuSet, vm: Option<&Locality>) -> Option<(CpuSet, u64)> {
        let mut own = vm.into_iter().flat_map(|vm| &vm.pci);
        if vfio_device(&self.name).is_some_and(|device| own.any(|one| one.address == device)) {
            return None;
        }
        let there = self.per_second.iter().filter(|(cpu, _)| cpus.contains(*cpu));
        let rate = there.clone().fold(0, |sum: u64, (_, rate)| sum.saturating_add(*rate));
        (rate > 0).then(|| (there.map(|(cpu, _)| *cpu).collect(), rate))
    }
}

/// What fired on these CPUs of a VM: "12 interrupts/s on CPU 5 by nvme0q3 (irq 130)".
pub(crate) fn named(fired: &[Fired], cpus: &CpuSet, vm: Option<&Locality>) -> Vec<String> {
    let each = fired.iter().filter_map(|one| {
        let (there, rate) = one.on(cpus, vm)?;
        Some(interrupts(rate, "/s", &there) + &format!(" by {} (irq {})", one.name, one.irq))
    });
    each.collect()
}

/// "1 interrupt/s on CPU 5", "17 interrupts on CPUs 4-5".
pub(crate) fn interrupts(count: u64, unit: &str, cpus: &CpuSet) -> String {
    let what = counted(count, "interrupt");
    let plural = if cpus.len() == 1 { "" } else { "s" };
    format!("{what}{unit} on CPU{plural} {cpus}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use stelia_kernel::locality::PciDevice;

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
    fn what_fired_is_named_and_a_vms_own_devices_are_left_out() {
        let table = |counts: [u32; 4]| {
            let names = [
                "nvme0q1",
                "vfio-msix[0](0000:03:00.0)",
                "vfio-msix[0](0000:04:00.0)",
                "eth0",
            ];
            let lines = names
                .iter()
                .zip(counts)
                .zip(30..)
                .map(|((name, count), irq)| format!(" {irq}: 0 {count} IR-PCI-MSI 1-edge {name}\n"));
            Table::parse(("CPU0 CPU1\n".to_owned() + &lines.collect::<String>()).as_bytes()).unwrap()
        };
        let mut before = table([5, 5, 5, 9]);
        // The line got another driver.
        before.lines.get_mut(&33).unwrap().name = "ahci".to_owned();
        let fired = fired_between(&before, &table([8, 6, 6, 19]), Duration::from_secs(2));
        let mut vm = Locality::default();
        vm.pci.push(PciDevice {
            address: "0000:03:00.0".to_owned(),
            ..PciDevice::default()
        });
        let on = |list| named(&fired, &cpus(list), Some(&vm));
        assert_eq!(
            on("0-1"),
            [
                "5 interrupts/s on CPU 1 by eth0 (irq 33)",
                "2 interrupts/s on CPU 1 by nvme0q1 (irq 30)",
                "1 interrupt/s on CPU 1 by vfio-msix[0](0000:04:00.0) (irq 32)",
            ]
        );
        assert_eq!(on("0"), [""; 0]);
        // A CPU that comes online brings the counts of its former time.
        let alone = Table::parse(b"CPU0\n 30: 0 IR-PCI-MSI 1-edge nvme0q1\n").unwrap();
        assert_eq!(fired_between(&alone, &table([8, 6, 6, 9]), Duration::from_secs(2)), []);
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
