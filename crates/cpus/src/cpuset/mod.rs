//! Sets of CPU numbers. `format.rs` has the texts that the kernel, kubelet and systemd write them in.

mod format;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

pub use format::ParseError;

/// CPU numbers at or above this are refused: the largest `NR_CPUS` a kernel can be built with on x86-64.
pub const MAX_CPUS: u32 = 8192;

/// A set of CPU numbers (or, where said so, of NUMA node numbers: the kernel writes both alike).
///
/// Sets are ordered as the ascending lists of their numbers are.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Number `n` is bit `n % 64` of word `n / 64`. The last word is never 0, so that equal sets have equal words.
    words: Vec<u64>,
}

/// The numbers of one word.
struct Bits {
    word: u64,
    base: u32,
}

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = (self.word != 0).then(|| self.word.trailing_zeros())?;
        self.word &= self.word - 1;
        Some(self.base + bit)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.word.count_ones() as usize;
        (left, Some(left))
    }
}

impl DoubleEndedIterator for Bits {
    fn next_back(&mut self) -> Option<u32> {
        let bit = (self.word != 0).then(|| 63 - self.word.leading_zeros())?;
        self.word &= !(1 << bit);
        Some(self.base + bit)
    }
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every CPU below `count`.
    pub fn below(count: u32) -> Self {
        let mut set = Self::new();
        if let Some(last) = count.min(MAX_CPUS).checked_sub(1) {
            set.insert_run(0, last);
        }
        set
    }

    /// A set with these words, of which the last ones may be 0.
    fn of_words(mut words: Vec<u64>) -> Self {
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        Self { words }
    }

    /// The set as the kernel's mask: number `n` is bit `n % 64` of word `n / 64`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or_default()
    }

    fn grow_to(&mut self, cpu: u32) {
        let length = cpu as usize / 64 + 1;
        if self.words.len() < length {
            self.words.resize(length, 0);
        }
    }

    /// True when no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.word(cpu as usize / 64) >> (cpu % 64) & 1 == 1
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(index, word)| Bits {
            word: *word,
            base: index as u32 * 64,
        })
    }

    /// Add one CPU.
    pub fn insert(&mut self, cpu: u32) {
        self.grow_to(cpu);
        self.words[cpu as usize / 64] |= 1 << (cpu % 64);
    }

    /// Add the CPUs from `low` to `high`, which is not below it.
    fn insert_run(&mut self, low: u32, high: u32) {
        self.grow_to(high);
        let (first, last) = (low as usize / 64, high as usize / 64);
        for (index, word) in self.words.iter_mut().enumerate().take(last + 1).skip(first) {
            let from = if index == first {
                u64::MAX << (low % 64)
            } else {
                u64::MAX
            };
            let to = if index == last {
                u64::MAX >> (63 - high % 64)
            } else {
                u64::MAX
            };
            *word |= from & to;
        }
    }

    /// Add everything in `other`.
    pub fn union_with(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Everything in either set.
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) = if self.words.len() < other.words.len() {
            (other, self)
        } else {
            (self, other)
        };
        let mut all = long.clone();
        all.union_with(short);
        all
    }

    /// Everything in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self::of_words(
            self.words
                .iter()
                .zip(&other.words)
                .map(|(one, two)| one & two)
                .collect(),
        )
    }

    /// Everything in this set and not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        let words = self.words.iter().enumerate();
        Self::of_words(words.map(|(index, word)| word & !other.word(index)).collect())
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        let mut words = self.words.iter().enumerate();
        words.all(|(index, word)| word & !other.word(index) == 0)
    }

    /// Whether the sets share no CPU.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(one, two)| one & two == 0)
    }
}

impl Ord for CpuSet {
    fn cmp(&self, other: &Self) -> Ordering {
        let length = self.words.len().max(other.words.len());
        let Some(index) = (0..length).find(|index| self.word(*index) != other.word(*index)) else {
            return Ordering::Equal;
        };
        // Up to the lowest number that only one of them has the lists are the same. The one that has it comes first, unless
        // the other one's list ends there.
        let only_one = self.word(index) ^ other.word(index);
        let lowest = only_one & only_one.wrapping_neg();
        let goes_on = |set: &Self| set.word(index) >= lowest || set.words.len() > index + 1;
        if self.word(index) & lowest != 0 {
            if goes_on(other) {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        } else if goes_on(self) {
            Ordering::Greater
        } else {
            Ordering::Less
        }
    }
}

impl PartialOrd for CpuSet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        let mut set = Self::new();
        for cpu in iter {
            set.insert(cpu);
        }
        set
    }
}
