use std::collections::BTreeMap;

use super::super::*;

const TEXT: &str = "\
           CPU0       CPU2       CPU3
  0:         43          0          0   IO-APIC   2-edge      timer
  2:          0          0          0    XT-PIC      -edge      cascade
  9:          1          2          0   IO-APIC   9-fasteoi   acpi, uhci_hcd:usb1
 24:          0         17          5 PCI-MSIX-0000:3b:00.0   0-edge      vfio-msix[0](0000:3b:00.0)
 25:          0          0          0  PCI-MSI 524288-edge      nvme0q1
 48:          7          7          7  xen-percpu    -virq      timer0
LOC:     142891     145944        100   Local timer interrupts
ERR:          0
";

fn set(text: &str) -> CpuSet {
    text.parse().expect("a list")
}

#[test]
fn only_devices_are_counted_by_cpu() {
    // given: the timer, the cascade, a CPU's own and LOC count as well
    let table = Table::parse(TEXT.as_bytes()).expect("a table");
    assert_eq!(table.by_cpu(&set("0-3")), BTreeMap::from([(0, 1), (2, 19), (3, 5)]));
}

#[test]
fn a_rise_survives_wrapping_and_beginning_again() {
    assert_eq!(rise(5, 9), 4);
    assert_eq!(rise(u32::MAX, 2), 3);
    assert_eq!(rise(1000, 4), 4, "freed and requested again");
}

#[test]
fn between_two_readings_only_cpus_online_in_both_are_compared() {
    let before = Table::parse(b"  CPU0 CPU1\n 24: 5 5 PCI-MSI 0-edge a\n").expect("a table");
    let after = Table::parse(b"  CPU0 CPU2\n 24: 8 9 PCI-MSI 0-edge a\n 25: 2 2 PCI-MSI 1-edge b\n").expect("a table");
    assert_eq!(after.since(&before, &set("0-2")), BTreeMap::from([(0, 5)]));
}
