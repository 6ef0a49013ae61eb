//! `/proc/<pid>/stat`, `status` and `cgroup`. A process chooses its own name, and must not choose anything else by it. And the
//! counters of CPUs and threads: `/proc/interrupts`, `softirqs`, `schedstat`, `stat`, `/proc/<pid>/schedstat`.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts::{self, Kind, Table};
use stelia_kernel::counters::{ParseError, cpu_time, schedstat, softirqs, task};
use stelia_kernel::proc::{allowed, ns_numbers, stat, thread_group, unified_cgroup};
use steliad_fuzz::{fits, same};

fuzz_target!(|bytes: &[u8]| {
    // Files that are anything at all.
    let text = String::from_utf8_lossy(bytes);
    let _ = (stat::parse(&text), stat::cpu_ticks(&text), stat::cpu(&text));
    let _ = (ns_numbers(&text), thread_group(&text), allowed(&text));
    if let Some(path) = unified_cgroup(&text) {
        assert!(text.contains(path.as_str()));
    }
    // Files as the kernel writes them of a process with this name: 15 bytes without a NUL, raw in stat; in status line
    // feeds and backslashes are escaped.
    let name: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).take(15).collect();
    let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
    let stat = [b"7 (", name.as_slice(), b") S ", fields.join(" ").as_bytes()].concat();
    let stat = String::from_utf8_lossy(&stat);
    let parsed = stat::parse(&stat).expect("a stat");
    assert_eq!(
        (parsed.name.as_str(), parsed.start),
        (&*String::from_utf8_lossy(&name), 22)
    );
    assert_eq!((stat::cpu_ticks(&stat), stat::cpu(&stat)), (Some(14 + 15), Some(39)));
    let mut escaped = Vec::new();
    for byte in name {
        match byte {
            b'\n' => escaped.extend(b"\\n"),
            b'\\' => escaped.extend(b"\\\\"),
            other => escaped.push(other),
        }
    }
    let status = [
        b"Name:\t",
        escaped.as_slice(),
        b"\nState:\tS\nTgid:\t7\nNgid:\t0\nNStgid:\t7\t1\nNSpid:\t8\t2\n",
    ]
    .concat();
    let status = String::from_utf8_lossy(&status);
    assert_eq!(thread_group(&status), Some(7));
    assert_eq!(ns_numbers(&status), Some(vec![8, 2]));
    counters(bytes);
    interrupts_named(bytes);
});

/// By a line's name, the counts of CPUs.
type Counts = Vec<(String, Vec<(u32, u32)>)>;

/// Readers of files with counters: that fewer CPUs are wanted changes nothing of the others, and a file that was cut is none.
fn counters(bytes: &[u8]) {
    let all = CpuSet::below(stelia_cpus::MAX_CPUS);
    let some: CpuSet = (1..stelia_cpus::MAX_CPUS).step_by(2).collect();
    let table = |read: &dyn Fn(&[u8], &CpuSet) -> Result<Counts, ParseError>| {
        let whole = checked(bytes, |bytes| read(bytes, &all));
        if let Ok(mut lines) = whole {
            lines
                .iter_mut()
                .for_each(|(_, counts)| counts.retain(|(cpu, _)| some.contains(*cpu)));
            lines.retain(|(_, counts)| !counts.is_empty());
            same(&read(bytes, &some), &Ok(lines), "fewer CPUs");
        }
    };
    table(&|bytes, wanted| {
        let parsed = interrupts::parse(bytes, wanted)?;
        let counts = parsed.lines.iter().flat_map(|line| &line.counts);
        assert!(
            counts
                .into_iter()
                .all(|(cpu, count)| parsed.online.contains(*cpu) && *count > 0)
        );
        let named = |line: interrupts::Line<'_>| (format!("{:?}", line.kind), line.counts);
        Ok(parsed.lines.into_iter().map(named).collect())
    });
    table(&|bytes, wanted| {
        let lines = softirqs::parse(bytes, wanted)?;
        Ok(lines
            .into_iter()
            .map(|line| (line.name.to_owned(), line.counts))
            .collect())
    });
    by_cpu(bytes, &all, &some, schedstat::parse);
    by_cpu(bytes, &all, &some, cpu_time::parse);
    if let Ok(task) = checked(bytes, task::parse) {
        let text = format!("{} {} {}\n", task.run_ns, task.delay_ns, task.switches);
        assert_eq!(task::parse(text.as_bytes()), Ok(task));
    }
}

fn by_cpu<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    all: &CpuSet,
    some: &CpuSet,
    parse: fn(&[u8], &CpuSet) -> Result<BTreeMap<u32, T>, ParseError>,
) {
    if let Ok(mut cpus) = checked(bytes, |bytes| parse(bytes, all)) {
        cpus.retain(|cpu, _| some.contains(*cpu));
        same(&parse(bytes, some), &Ok(cpus), "fewer CPUs");
    }
}

fn checked<T>(bytes: &[u8], parse: impl Fn(&[u8]) -> Result<T, ParseError>) -> Result<T, ParseError> {
    let parsed = parse(bytes).inspect_err(fits);
    if parsed.is_ok()
        && let [line @ .., b'\n'] = bytes
        && !line.is_empty()
        && !line.ends_with(b"\n")
    {
        assert!(matches!(parse(line), Err(ParseError::Cut)));
    }
    parsed
}

/// Whatever name a driver gives its interrupt, counts are what the kernel wrote, and the table that outlasts the text has the same.
fn interrupts_named(bytes: &[u8]) {
    let bytes: Vec<u8> = bytes
        .iter()
        .copied()
        .filter(|byte| !matches!(byte, b'\n' | 0))
        .take(64)
        .collect();
    let name = String::from_utf8_lossy(&bytes);
    let text = format!(
        "  CPU0 CPU2\n 24: 5 6 PCI-MSI 0-edge {name}\nLOC: 1 2 {}\n",
        "Local timer interrupts"
    );
    let parsed = interrupts::parse(text.as_bytes(), &CpuSet::below(3)).expect("a table");
    let ours: Vec<_> = parsed.lines.iter().map(|line| line.counts.clone()).collect();
    assert_eq!(ours, [vec![(0, 5), (2, 6)], vec![(0, 1), (2, 2)]]);
    let table = Table::parse(text.as_bytes()).expect("a table");
    let line = &table.lines[&24];
    assert_eq!(
        parsed.lines[0].kind,
        Kind::Device {
            irq: 24,
            name: line.name.clone()
        }
    );
    assert_eq!(parsed.lines[0].counts, line.counts());
}
