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
        Kind::PerCpu(name) => (name.to_owned(), line.counts),
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

#[test]
fn a_cpu_that_came_or_went_meanwhile_is_an_error() {
    let wrong = |line: &str| {
        let text = format!("  CPU0 CPU1\n{line}\n");
        parse(text.as_bytes(), &set("0-1")).map(|_| ()).expect_err(line)
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
    assert!(matches!(parse(b"LOC: 1 2\n", &set("0")), Err(ParseError::Header(_))));
    assert!(matches!(parse(b"", &set("0")), Err(ParseError::Header(_))));
}
