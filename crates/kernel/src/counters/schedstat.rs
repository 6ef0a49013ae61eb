//! `/proc/schedstat`: of each online CPU how often tasks began to run there (`show_schedstat` in the kernel's `kernel/sched/stats.c`;
//! Documentation/scheduler/sched-stats.rst).
//!
//! Versions 15, 16 and 17 differ in the lines of domains, which are not read. The idle task counts for nothing.

use std::collections::BTreeMap;

use stelia_cpus::{CpuSet, MAX_CPUS};

use super::{ParseError, words};

/// Counters of one CPU since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// How long tasks ran, nanoseconds, as far as they have stopped: the 7th value.
    pub run_ns: u64,
    /// How often a task began to run (`pcount`): the 9th value.
    pub switches: u64,
}

/// The text of `/proc/schedstat`, by wanted CPU. Offline CPUs have no line.
///
/// # Errors
/// Another version, or a wanted CPU's line without nine numbers.
#[inline]
pub fn parse(text: &[u8], wanted: &CpuSet) -> Result<BTreeMap<u32, Cpu>, ParseError> {
    let mut lines = words::lines(text)?;
    let first = lines.next().unwrap_or_default();
    if ![&b"version 15"[..], b"version 16", b"version 17"].contains(&first) {
        return Err(ParseError::Version(super::beginning(first)));
    }
    let mut cpus = BTreeMap::new();
    for line in lines {
        let Some(rest) = line.strip_prefix(b"cpu") else {
            continue;
        };
        let wrong = || ParseError::line(line);
        let mut words = words::Words(rest);
        let number = words.number().and_then(|number| u32::try_from(number).ok());
        let number = number
            .filter(|cpu| *cpu < MAX_CPUS && !rest.starts_with(b" "))
            .ok_or_else(wrong)?;
        if !wanted.contains(number) {
            continue;
        }
        let run_ns = words.number_after(6).ok_or_else(wrong)?;
        let switches = words.number_after(1).ok_or_else(wrong)?;
        // A tenth value would be a version's that moved the others.
        if !words.rest().is_empty() || cpus.insert(number, Cpu { run_ns, switches }).is_some() {
            return Err(wrong());
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version 15
timestamp 4294950528
cpu0 0 0 11 12 13 14 1500 1600 17
domain0 3 1 2 3 4 5 6 7 8 9 10 11
cpu2 0 0 21 22 23 24 2500 2600 27
domain0 3 1 2 3
cpu10 0 0 31 32 33 34 18446744073709551615 3600 18446744073709551615
";

    #[test]
    fn the_seventh_and_the_ninth_value_of_wanted_cpus() {
        for version in ["15", "16", "17"] {
            let text = TEXT
                .replacen("15\n", &format!("{version}\n"), 1)
                .replace("domain0 ", "domain0 SMT ");
            let found = parse(text.as_bytes(), &"1-2,10".parse().expect("a list")).expect("CPUs");
            let cpu = |run_ns, switches| Cpu { run_ns, switches };
            assert_eq!(
                found,
                BTreeMap::from([(2, cpu(2500, 27)), (10, cpu(u64::MAX, u64::MAX))])
            );
        }
    }

    #[test]
    fn another_version_or_form_is_an_error() {
        let parse = |text: &str| parse(text.as_bytes(), &CpuSet::below(4));
        for version in [
            "",
            "version 14\n",
            "version 18\n",
            "version 150\n",
            "cpu0 1 2 3 4 5 6 7 8 9\n",
        ] {
            assert!(matches!(parse(version), Err(ParseError::Version(_))), "{version:?}");
        }
        for line in [
            "cpu0 1 2 3 4 5 6 7 8",
            "cpu0 1 2 3 4 5 6 7 8 9 10",
            "cpu0 1 2 3 4 5 6 7 8 x",
            "cpu 1 2",
            "cpux",
            "cpu0 x 2 3 4 5 6 7 8 9",
        ] {
            assert!(
                matches!(parse(&format!("version 17\n{line}\n")), Err(ParseError::Line(_))),
                "{line}"
            );
        }
        let twice = "version 17\ncpu0 1 2 3 4 5 6 7 8 9\ncpu0 1 2 3 4 5 6 7 8 9\n";
        assert!(matches!(parse(twice), Err(ParseError::Line(_))));
        assert_eq!(parse("version 17\ncpu0 1 2 3 4 5 6 7 8 9"), Err(ParseError::Cut));
    }
}
