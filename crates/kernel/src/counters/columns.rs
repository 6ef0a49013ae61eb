//! A table whose first line names CPUs and whose others have a label and a count for each of them: `/proc/interrupts`,
//! `/proc/softirqs`.

use stelia_cpus::{CpuSet, MAX_CPUS};

use super::words::Words;
use super::{ParseError, beginning};

/// CPU and count, ascending.
pub(super) type Counts = Vec<(u32, u32)>;

/// The header. A column's place is not its CPU's number.
pub(super) struct Columns {
    /// In the order of the columns; whether it is wanted.
    cpus: Vec<(u32, bool)>,
}

impl Columns {
    #[inline]
    pub(super) fn parse(header: &[u8], wanted: &CpuSet) -> Result<Self, ParseError> {
        let wrong = || ParseError::Header(beginning(header));
        let mut cpus = Vec::new();
        let mut words = Words(header);
        while let Some(word) = words.word() {
            let number = word.strip_prefix(b"CPU").and_then(|digits| Words(digits).number());
            let cpu = number.and_then(|number| u32::try_from(number).ok());
            let cpu = cpu.filter(|cpu| *cpu < MAX_CPUS).ok_or_else(wrong)?;
            cpus.push((cpu, wanted.contains(cpu)));
        }
        if cpus.is_empty() || cpus.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err(wrong());
        }
        Ok(Self { cpus })
    }

    /// How many.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.cpus.len()
    }

    /// All CPUs that have a column.
    #[inline]
    pub(super) fn cpus(&self) -> CpuSet {
        self.cpus.iter().map(|(cpu, _)| *cpu).collect()
    }

    /// The counts of wanted CPUs that are not 0, ascending; and what is behind the last count.
    #[inline]
    pub(super) fn counts<'a>(&self, line: &'a [u8], counts: &'a [u8]) -> Result<(Counts, &'a [u8]), ParseError> {
        let wrong = || ParseError::Columns {
            line: beginning(line),
            expected: self.len(),
        };
        let mut words = Words(counts);
        let mut found = Vec::new();
        for (cpu, is_wanted) in &self.cpus {
            if words.zero() {
                continue;
            }
            let count = words.number().and_then(|count| u32::try_from(count).ok());
            let count = count.ok_or_else(wrong)?;
            if *is_wanted && count > 0 {
                found.push((*cpu, count));
            }
        }
        let rest = words.rest();
        // No name of a controller or of an interrupt is a number: this is a column that the header does not have.
        match words.word() {
            Some(word) if word.iter().all(u8::is_ascii_digit) => Err(wrong()),
            _ => Ok((found, rest)),
        }
    }
}

/// What is before the colon, without blanks, and what is behind it.
#[inline]
pub(super) fn label(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let label = line[..colon].trim_ascii();
    let label = str::from_utf8(label).ok().filter(|label| !label.is_empty())?;
    Some((label, &line[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_cpus_in_ascending_order() {
        let parse = |header: &str| Columns::parse(header.as_bytes(), &CpuSet::below(4)).map(|columns| columns.cpus());
        assert_eq!(
            parse("     CPU0  CPU2       CPU8191   "),
            Ok([0, 2, 8191].into_iter().collect())
        );
        for wrong in [
            "",
            "   ",
            "CPU",
            "CPUx",
            "CPU0 7",
            "CPU0 CPU0",
            "CPU1 CPU0",
            "CPU8192",
            "CPU4294967296",
        ] {
            assert!(matches!(parse(wrong), Err(ParseError::Header(_))), "{wrong:?}");
        }
    }
}
