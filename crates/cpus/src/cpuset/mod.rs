//! Sets of CPU numbers. `format.rs` has the texts that the kernel, kubelet and systemd write them in.

mod format;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::iter;

pub use format::ParseError;
pub(crate) use format::write_runs;

/// CPU numbers at or above this are refused: the largest `NR_CPUS` a kernel can be built with on x86-64.
pub const MAX_CPUS: u32 = 8192;

/// A set of CPU numbers.
///
/// Sets are ordered as the ascending lists of their numbers are.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// Number `n` is bit `n % 64` of word `n / 64`. The last word is never 0, so that equal sets have equal words.
    words: Vec<u64>,
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

    /// As [`words`](Self::words) has them; the last ones may be 0.
    pub fn of_words(mut words: Vec<u64>) -> Self {
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
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = (0..).step_by(64).zip(self.words.iter().copied());
        words.flat_map(|(base, mut word)| {
            iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(base + bit)
            })
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
            let base = index as u32 * 64;
            let (from, to) = (low.saturating_sub(base), (high - base).min(63));
            *word |= (u64::MAX << from) & (u64::MAX >> (63 - to));
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
        let mut all = self.clone();
        all.union_with(other);
        all
    }

    /// Everything in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let words = self.words.iter().zip(&other.words);
        Self::of_words(words.map(|(one, two)| one & two).collect())
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
        self.iter().cmp(other.iter())
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
