//! `/proc/softirqs`: how often each kind of softirq ran on each possible CPU (`show_softirqs` in the kernel's `fs/proc/softirqs.c`).

use stelia_cpus::CpuSet;

use super::columns::{Columns, label};
use super::{ParseError, words};

/// One kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    /// `TIMER`, `NET_RX`, `RCU`, …
    pub name: &'a str,
    /// CPU and count since boot, ascending, without those that are 0.
    pub counts: Vec<(u32, u32)>,
}

/// The text of `/proc/softirqs`: kinds that ran on a wanted CPU.
///
/// # Errors
/// A header that does not name CPUs, or a line that has not as many counts as that names.
#[inline]
pub fn parse<'a>(text: &'a [u8], wanted: &CpuSet) -> Result<Vec<Line<'a>>, ParseError> {
    let mut all = words::lines(text)?;
    let columns = Columns::parse(all.next().unwrap_or_default(), wanted)?;
    let mut lines = Vec::new();
    for line in all {
        let (name, rest) = label(line).ok_or_else(|| ParseError::line(line))?;
        let (counts, _) = columns.counts(line, rest)?;
        if !counts.is_empty() {
            lines.push(Line { name, counts });
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_columns_by_name() {
        let text = b"                    CPU0       CPU1       CPU2\n          HI:          1          0          0\n      NET_RX:          3          4          5\n";
        let wanted = "1-2,7".parse().expect("a list");
        let counts = vec![(1, 4), (2, 5)];
        assert_eq!(parse(text, &wanted), Ok(vec![Line { name: "NET_RX", counts }]));
    }

    #[test]
    fn another_form_is_an_error() {
        let wanted = CpuSet::below(2);
        for text in [
            "",
            "CPU0\nHI 1\n",
            "CPU0\nHI: x\n",
            "CPU0 CPU1\nHI: 1\n",
            "CPU0\nHI: 1 2\n",
            "CPU0\nHI: 1",
        ] {
            assert!(parse(text.as_bytes(), &wanted).is_err(), "{text:?}");
        }
    }
}
