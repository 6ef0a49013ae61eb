//! Sets of CPU numbers and the texts the kernel, kubelet and systemd write them in.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;

/// CPU numbers at or above this are refused: the largest `NR_CPUS` a kernel can be built with on x86-64.
pub const MAX_CPUS: u32 = 8192;

/// A set of CPU numbers (or, where said so, of NUMA node numbers: the kernel writes both alike).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet(BTreeSet<u32>);

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
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every CPU below `count`.
    pub fn below(count: u32) -> Self {
        (0..count.min(MAX_CPUS)).collect()
    }

    /// True when no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Add one CPU.
    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// Everything in either set.
    pub fn union(&self, other: &Self) -> Self {
        self.0.union(&other.0).copied().collect()
    }

    /// Everything in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.0.intersection(&other.0).copied().collect()
    }

    /// Everything in this set and not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        self.0.difference(&other.0).copied().collect()
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Whether the sets share no CPU.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// The mask systemd's `AllowedCPUs` takes: bytes, little-endian, CPU 0 the lowest bit of the first.
    pub fn to_systemd_mask(&self) -> Vec<u8> {
        let mut mask = vec![0u8; self.0.last().map_or(0, |last| *last as usize / 8 + 1)];
        for cpu in self.iter() {
            mask[cpu as usize / 8] |= 1 << (cpu % 8);
        }
        mask
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
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
        let mut runs = Vec::new();
        for part in list.split(',') {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| {
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(ParseError::Part {
                        list: excerpt(list),
                        part: excerpt(part),
                    });
                }
                match digits.parse::<u32>() {
                    Ok(cpu) if cpu < MAX_CPUS => Ok(cpu),
                    _ => Err(ParseError::TooHigh {
                        list: excerpt(list),
                        part: excerpt(part),
                    }),
                }
            };
            let (low, high) = (number(low)?, number(high)?);
            if low > high {
                return Err(ParseError::Backwards {
                    list: excerpt(list),
                    part: excerpt(part),
                });
            }
            runs.push((low, high));
        }
        // A tenant's list may name all CPUs ten thousand times: each is added once.
        runs.sort_unstable();
        let mut next = 0;
        for (low, high) in runs {
            set.0.extend(low.max(next)..=high);
            next = next.max(high + 1);
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    /// Ascending maximal runs, as kubelet and the kernel print them: `0-1,5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut first = true;
        while let Some(low) = cpus.next() {
            let mut high = low;
            while cpus.peek() == Some(&(high + 1)) {
                high += 1;
                cpus.next();
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if low == high {
                write!(f, "{low}")?
            } else {
                write!(f, "{low}-{high}")?
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl serde::Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("", "")]
    #[case("0-3\n", "0-3")]
    #[case("3,1,2,7", "1-3,7")]
    #[case("0-4,2-6", "0-6")]
    fn a_list_is_read_and_printed_as_maximal_runs(#[case] text: &str, #[case] printed: &str) {
        assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), printed);
    }

    #[rstest]
    #[case("1,")]
    #[case(" 1")]
    #[case("3-1")]
    #[case("0-2147483647")]
    #[case("1-2-3")]
    #[case("+1")]
    #[case("0-31:2/4")]
    #[case("99999999999999999999")]
    fn a_bad_list_is_an_error_that_names_it(#[case] text: &str) {
        let error = text.parse::<CpuSet>().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn a_list_that_names_every_cpu_ten_thousand_times_is_read_at_once() {
        let started = std::time::Instant::now();
        let text = vec!["0-8191"; 37_000].join(",");
        assert_eq!(text.parse::<CpuSet>().unwrap(), CpuSet::below(MAX_CPUS));
        // One by one it took half a minute, and a pod's call of RegisterInstance can carry such a list.
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }

    #[rstest]
    #[case("\u{10ffff}")]
    #[case("\"")]
    #[case("9")]
    fn an_error_tells_a_bounded_part_of_the_list(#[case] character: &str) {
        let error = character.repeat(10_000).parse::<CpuSet>().unwrap_err().to_string();
        assert!(error.len() < 250, "{error}");
    }

    #[test]
    fn cpu_65_is_bit_1_of_byte_8_in_systemds_mask() {
        let mask = "65".parse::<CpuSet>().unwrap().to_systemd_mask();
        assert_eq!(mask, [0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    proptest! {
        #[test]
        fn printing_and_parsing_return_the_same_set(cpus in proptest::collection::btree_set(0u32..MAX_CPUS, 0..64)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
