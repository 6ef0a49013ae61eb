mod table;

use super::*;

const TEXT: &str = "\
            CPU0       CPU1       CPU3       CPU10
   0:         40          7          7          7  IO-APIC   2-edge      timer
   2:          7          7          7          7    XT-PIC   cascade
  24:          5          0          2          1  PCI-MSIX-0000:00:03.0   0-edge      virtio0 4 queue
  48:          7          7          7          7  xen-percpu    -virq      timer0
 130:          0          3 4294967295          0  IR-PCI-MSI 524288-edge      nvme0q1
 131:          9          0          0          0  IR-PCI-MSI 524289-edge      nvme0q2
 NMI:          0          0          0          0   Non-maskable interrupts
 LOC:        100        200        300        400   Local timer interrupts
 ERR:          3
 MIS:          4
 PIN:          0          0          1          0   Posted-interrupt notification event
";

fn set(list: &str) -> CpuSet {
    list.parse().expect("a list")
}

fn facts(text: &str, wanted: &str) -> Vec<(String, Vec<(u32, u32)>)> {
    let parsed = parse(text.as_bytes(), &set(wanted)).expect("a table");
    let fact = |line: Line<'_>| match line.kind {
        Kind::Device { irq, name } => (format!("{irq} {name}"), line.counts),
        Kind::PerCpu(name) => (name.into_owned(), line.counts),
    };
    parsed.lines.into_iter().map(fact).collect()
}

fn row(name: &str, counts: &[(u32, u32)]) -> (String, Vec<(u32, u32)>) {
    (name.to_owned(), counts.to_vec())
}

#[test]
fn wanted_columns_of_devices_and_of_the_cpus_own_lines() {
    // CPU 2 is offline; the timer, the cascade and what each CPU has of its own are no devices.
    let expected = [
        row("24 virtio0 4 queue", &[(3, 2)]),
        row("130 nvme0q1", &[(1, 3), (3, u32::MAX)]),
        row("LOC", &[(1, 200), (3, 300)]),
        row("PIN", &[(3, 1)]),
    ];
    assert_eq!(facts(TEXT, "1-3"), expected);
    let parsed = parse(TEXT.as_bytes(), &set("1")).expect("a table");
    assert_eq!(parsed.online, set("0-1,3,10"));
}

#[test]
fn the_hosts_own_errors_are_no_cpus_even_where_there_is_one_cpu() {
    let text = "  CPU0\nLOC:  5  Local timer interrupts\nERR:  3\nMIS:  0\n";
    assert_eq!(facts(text, "0"), [row("LOC", &[(0, 5)])]);
    assert_eq!(
        facts("  CPU0 CPU1\nBAD: 7\nIPI0: 1 2  Rescheduling\nErr: 1\n", "1"),
        [row("IPI0", &[(1, 2)])]
    );
}

/// Lines of arm64 machines: `tests/data/interrupts`, whose README has their origins.
macro_rules! arm64 {
    ($name:literal) => {
        include_str!(concat!("../../../../../../tests/data/interrupts/", $name))
    };
}

#[test]
fn on_arm64_the_timer_and_others_with_a_number_are_each_cpus_own() {
    let expected = [
        row("arch_timer", &[(5, 66_971_399)]),
        row("IPI0", &[(5, 49_081_324)]),
        row("IPI1", &[(5, 1_417_165)]),
        row("IPI5", &[(5, 2_751_161)]),
    ];
    assert_eq!(facts(arm64!("jetson-orin"), "5"), expected);
    let devices = ["18 mc_status", "67 mmc1", "224 2190000.watchdog", "249 ", "301 eth0"];
    let of_first = facts(arm64!("jetson-orin"), "0");
    let found: Vec<&str> = of_first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        found,
        [&["arch_timer"], &devices[..], &["IPI0", "IPI1", "IPI5"]].concat()
    );
    // A guest, with one CPU and its virtual timer.
    let guest = [row("arch_timer", &[(0, 8053)]), row("7 ttyS0", &[(0, 1910)])];
    assert_eq!(facts(arm64!("graviton"), "0"), guest);
    // GICv2, whose memory-mapped timer is a device; and no GIC at all.
    let timers = facts(arm64!("ipq807x"), "3");
    assert_eq!(timers, [row("arch_timer", &[(3, 1_127_555)])]);
    let apple = [
        row("arch_timer", &[(7, 22_478_076)]),
        row("41 23e408000.mbox-recv", &[(7, 2035)]),
    ];
    assert_eq!(facts(arm64!("apple-aic2"), "7"), apple);
}

#[test]
fn message_signalled_interrupts_of_arm64_are_the_devices() {
    let text = arm64!("imx95");
    assert_eq!(facts(text, "0-5"), [row("123 eth0-rxtx0", &[(0, 4365)])]);
    let line = &Table::parse(text.as_bytes()).expect("a table").lines[&123];
    assert_eq!(
        (line.chip.as_str(), line.hwirq.as_str()),
        ("ITS-PCI-MSIX-0002:00:00.0", "1")
    );
}

/// A Raspberry Pi 5, whose performance counters have a shared interrupt for each CPU; one of 2018, without a GIC; an RK3399, whose private
/// interrupts are partitioned; MSI-X of a GICv2m, numbered from 0 by device; and Xen.
#[test]
fn small_boards_and_guests_of_arm64() {
    let of_first = |text: &'static str| facts(text, "0");
    let rpi5 = [
        row("arch_timer", &[(0, 130_282)]),
        row("14 107c013880.mailbox", &[(0, 34_307)]),
        row("137 xhci-hcd:usb1", &[(0, 1315)]),
        row("167 mmc1", &[(0, 330_042)]),
        row("IPI0", &[(0, 2854)]),
    ];
    assert_eq!(of_first(arm64!("raspberry-pi-5")), rpi5);
    let rpi3 = [
        row("41 3f980000.usb, dwc2_hsotg:usb1", &[(0, 127_709)]),
        row("arch_timer", &[(0, 2823)]),
        row("IPI0", &[(0, 11_102)]),
    ];
    assert_eq!(of_first(arm64!("raspberry-pi-3")), rpi3);
    let rk3399 = [
        row("arch_timer", &[(0, 4_221_703)]),
        row("25 rk_timer", &[(0, 8_034_134)]),
        row("arm-pmu", &[(0, 11_137)]),
        row("79 adis16505", &[(0, 50_468_710)]),
        row("IPI4", &[(0, 5_391_338)]),
    ];
    assert_eq!(of_first(arm64!("rk3399")), rk3399);
    let gicv2m = Table::parse(arm64!("gicv2m").as_bytes()).expect("a table");
    let devices: Vec<&str> = gicv2m.devices().map(|line| line.name.as_str()).collect();
    let virtio = ["virtio0-config", "virtio0-input.0", "virtio0-output.0"];
    assert_eq!(devices, [&virtio[..], &["GPIO Key Poweroff"]].concat());
    let xen = [
        row("arch_timer", &[(0, 10_380)]),
        row("events", &[(0, 88)]),
        row("25 ", &[(0, 1)]),
        row("83 hwqueue-528", &[(0, 1)]),
    ];
    assert_eq!(of_first(arm64!("keystone-xen")), xen);
    let xen = Table::parse(arm64!("keystone-xen").as_bytes()).expect("a table");
    assert_eq!(xen.lines[&21].name, "xenbus");
}

/// As the drivers of Linux 7 name them (drivers/irqchip/irq-gic-v3.c, irq-gic-v3-its.c, irq-gic-v5.c, irq-partition-percpu.c).
#[test]
fn which_interrupts_each_cpu_has_of_its_own() {
    for (line, is_private) in [
        ("GICv3  31 Level     uart", true),
        ("GICv3  32 Level     uart", false),
        // The extended ranges of private and of shared ones.
        ("GICv3 1055 Level     uart", false),
        ("GICv3 1056 Level     uart", true),
        ("GICv3 1119 Level     uart", true),
        ("GICv3 1120 Level     uart", false),
        ("GICv3 4096 Level     uart", false),
        // Private to some CPUs.
        ("GICv3-23   1 Level     arm-pmu", true),
        ("GICv5-PPI 100 Level     arch_timer", true),
        ("GICv5-SPI   4 Level     uart", false),
        // What is behind a GIC has numbers of its own.
        ("GICv2m-PCI-MSIX-0000:00:01.0   0 Edge      virtio0-config", false),
        ("GICP   3 Edge      eth0", false),
        ("GICv2  48 Level     arm-pmu", true),
        ("GICv2  48 Level     arm-pmu, arm-pmu", true),
        ("GICv2  48 Level     arm-pmu, eth0", false),
        ("GICv2  48 Level", false),
        ("GIC  29 Level     twd", true),
        ("GICv4-vpe 100 Edge      vcpu", true),
        ("GICv4.1-vpe   7 Edge      vcpu", true),
        ("ITS-MSI   8 Edge      nvme0q1", false),
        ("IO-APIC  14-edge      ata_piix", false),
    ] {
        let source = Source::parse(line);
        assert_eq!(
            (source.is_private(), source.is_device(40)),
            (is_private, !is_private),
            "{line}"
        );
    }
}

#[test]
fn a_controllers_name_may_have_blanks_and_ends_before_the_number_with_a_trigger() {
    for (line, chip, hwirq, name) in [
        (
            "Hyper-V PCIe MSI 1342177280-edge      vfio-msix[0](0001:00:02.0)",
            "Hyper-V PCIe MSI",
            "1342177280",
            "vfio-msix[0](0001:00:02.0)",
        ),
        (
            "BRCM STB PCIe MSI 524288 Edge      xhci_hcd",
            "BRCM STB PCIe MSI",
            "524288",
            "xhci_hcd",
        ),
        ("Xilinx PCIe MSI   3 Level", "Xilinx PCIe MSI", "3", ""),
        ("A B  9-fasteoi   acpi, 5-edge", "A B", "9", "acpi, 5-edge"),
        (
            "PCI-MSIX-0000:00:03.0   0-edge      virtio0 4 queue",
            "PCI-MSIX-0000:00:03.0",
            "0",
            "virtio0 4 queue",
        ),
        (
            "davinci_gpio  5 Edge -davinci_gpio  card detect",
            "davinci_gpio",
            "5",
            "card detect",
        ),
        // Without a trigger a name is one word.
        (
            "amd_gpio    2  ASUF1204:00 3-0015",
            "amd_gpio",
            "2",
            "ASUF1204:00 3-0015",
        ),
        ("xen-percpu    -virq      timer0", "xen-percpu", "", "timer0"),
        ("XT-PIC   cascade", "XT-PIC", "", "cascade"),
        ("GIC  29", "GIC", "29", ""),
        ("-", "-", "", ""),
        ("", "", "", ""),
    ] {
        let source = Source::parse(line);
        assert_eq!(
            (source.chip, source.hwirq, source.name().as_str()),
            (chip, hwirq, name),
            "{line}"
        );
    }
}

#[test]
fn a_cpu_that_came_or_went_meanwhile_is_an_error() {
    let wrong = |line: &str| {
        let text = format!("  CPU0 CPU1\n{line}\n");
        let error = parse(text.as_bytes(), &set("0-1")).map(|_| ()).expect_err(line);
        if !line.starts_with("LOC") {
            assert_eq!(Table::parse(text.as_bytes()).map(|_| ()), Err(error.clone()));
        }
        error
    };
    for line in [
        " 24: 1 PCI-MSI 0-edge a",
        " 24: 1 2 3 PCI-MSI 0-edge a",
        " 24: 1",
        "LOC: 1 Local",
        "LOC: 1 2 3 Local",
        "24: 1 4294967296 x",
    ] {
        assert!(matches!(wrong(line), ParseError::Columns { expected: 2, .. }), "{line}");
    }
    assert!(matches!(wrong("4294967296: 1 2 PCI-MSI"), ParseError::Line(_)));
    assert_eq!(parse(b"  CPU0\n 24: 1", &set("0")), Err(ParseError::Cut));
    for text in [&b"LOC: 1 2\n"[..], b""] {
        assert!(matches!(parse(text, &set("0")), Err(ParseError::Header(_))));
        assert!(matches!(Table::parse(text), Err(ParseError::Header(_))));
    }
}
