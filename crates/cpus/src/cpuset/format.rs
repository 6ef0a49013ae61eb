//! Lists (`0-1,5`), the kernel's masks and systemd's.

use std::fmt;
use std::str::FromStr;

use crate::text::excerpt::excerpt;
use crate::text::json_string;

use super::{CpuSet, MAX_CPUS};

/// Why a CPU list does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A part is neither `a` nor `a-b`.
    #[error("CPU list {list:?}: {part:?} is neither a number nor a range")]
    Part {
        /// The list's beginning.
        list: String,
        /// The part at fault, or its beginning.
        part: String,
    },
    /// A range runs backwards.
    #[error("CPU list {list:?}: the range {part:?} runs backwards")]
    Backwards {
        /// The list's beginning.
        list: String,
        /// The part at fault, or its beginning.
        part: String,
    },
    /// A number is beyond [`MAX_CPUS`].
    #[error("CPU list {list:?}: {part:?} is beyond the highest CPU number {}", MAX_CPUS - 1)]
    TooHigh {
        /// The list's beginning.
        list: String,
        /// The part at fault, or its beginning.
        part: String,
    },
}

impl CpuSet {
    /// A mask as the kernel prints it: hexadecimal, in groups of at most 32 bits with commas between them, the lowest CPUs last.
    /// `None` for anything else, and for a CPU beyond [`MAX_CPUS`].
    pub fn from_mask(text: &str) -> Option<Self> {
        let mut words = Vec::new();
        for (index, group) in text.split(',').rev().enumerate() {
            let digits = (1..=8).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_hexdigit());
            let bits = u64::from(u32::from_str_radix(group, 16).ok().filter(|_| digits)?);
            match words.last_mut() {
                Some(word) if index % 2 == 1 => *word |= bits << 32,
                _ => words.push(bits),
            }
        }
        let set = Self::of_words(words);
        set.words.len().le(&(MAX_CPUS as usize / 64)).then_some(set)
    }

    /// The same mask, as the kernel takes it: it refuses digits beyond its own CPUs, be they zeros.
    pub fn to_mask(&self) -> String {
        let words = self.words.iter().rev();
        let groups = words.flat_map(|word| [word >> 32, word & 0xffff_ffff]);
        let groups: Vec<String> = groups.map(|group| format!("{group:08x}")).collect();
        let text = groups.join(",");
        let text = text.trim_start_matches(['0', ',']);
        if text.is_empty() { "0".into() } else { text.into() }
    }

    /// The mask systemd's `AllowedCPUs` takes: bytes, little-endian, CPU 0 the lowest bit of the first.
    pub fn to_systemd_mask(&self) -> Vec<u8> {
        let mut mask: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let used = mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        mask.truncate(used);
        mask
    }
}

impl FromStr for CpuSet {
    type Err = ParseError;

    /// Parse the form kubelet and the kernel share: `a` or `a-b` joined by commas, in any order, overlaps allowed; the
    /// kernel's trailing newline is allowed, other spaces are not.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let list = text.strip_suffix('\n').unwrap_or(text);
        let mut set = Self::new();
        if list.is_empty() {
            return Ok(set);
        }
        let shown = |part: &str| (excerpt(list), excerpt(part));
        let mut runs = Vec::new();
        for part in list.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| {
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    let (list, part) = shown(part);
                    return Err(ParseError::Part { list, part });
                }
                let number = digits.parse::<u32>().ok().filter(|cpu| *cpu < MAX_CPUS);
                number.ok_or_else(|| {
                    let (list, part) = shown(part);
                    ParseError::TooHigh { list, part }
                })
            };
            let (low, high) = (number(low)?, number(high)?);
            if low > high {
                let (list, part) = shown(part);
                return Err(ParseError::Backwards { list, part });
            }
            runs.push((low, high));
        }
        // A tenant's list may name all CPUs ten thousand times: each is added once.
        runs.sort_unstable();
        let mut next = 0;
        for (low, high) in runs {
            if high >= next {
                set.insert_run(low.max(next), high);
                next = high + 1;
            }
        }
        Ok(set)
    }
}

/// Ascending numbers in maximal runs, as kubelet and the kernel print them: `0-1,5`.
pub(crate) fn write_runs(f: &mut fmt::Formatter<'_>, numbers: impl Iterator<Item = u32>) -> fmt::Result {
    let mut numbers = numbers.peekable();
    let mut separator = "";
    while let Some(low) = numbers.next() {
        let mut high = low;
        while let Some(next) = numbers.next_if(|next| high.checked_add(1) == Some(*next)) {
            high = next;
        }
        write!(f, "{separator}{low}")?;
        if low < high {
            write!(f, "-{high}")?;
        }
        separator = ",";
    }
    Ok(())
}

impl fmt::Display for CpuSet {
    /// Ascending maximal runs, as kubelet and the kernel print them: `0-1,5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_runs(f, self.iter())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

json_string!(CpuSet, str::parse::<CpuSet>);
