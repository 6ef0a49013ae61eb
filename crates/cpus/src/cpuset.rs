//! Sets of CPU numbers and the texts the kernel, kubelet and systemd write them in.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use stelia_text::excerpt::excerpt;

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
        let groups = self
            .words
            .iter()
            .rev()
            .flat_map(|word| [word >> 32, word & 0xffff_ffff]);
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
            if high >= next {
                set.insert_run(low.max(next), high);
                next = high + 1;
            }
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
    use std::collections::BTreeSet;

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

    #[rstest]
    #[case("2-7", "fc")]
    #[case("", "0")]
    #[case("0,35", "8,00000001")]
    #[case("64", "1,00000000,00000000")]
    #[case("31-32,4095", &format!("80000000,{}00000001,80000000", "00000000,".repeat(125)))]
    fn a_mask_is_printed_without_leading_zeros_and_read_back(#[case] list: &str, #[case] mask: &str) {
        let cpus: CpuSet = list.parse().unwrap();
        assert_eq!(cpus.to_mask(), mask);
        assert_eq!(CpuSet::from_mask(mask), Some(cpus.clone()));
        assert_eq!(CpuSet::from_mask(&format!("00000000,0,{mask}")), Some(cpus));
    }

    #[rstest]
    #[case("")]
    #[case("0x1")]
    #[case("+1")]
    #[case("123456789")]
    #[case("1,,1")]
    #[case("1, 1")]
    fn what_is_no_mask_is_none(#[case] text: &str) {
        assert_eq!(CpuSet::from_mask(text), None);
        assert_eq!(CpuSet::from_mask(&"ffffffff,".repeat(257)), None);
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

    /// Numbers on both sides of the words' borders, few enough that sets often meet.
    fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
        let number = prop_oneof![0u32..8, 60u32..70, 120u32..134, 0u32..MAX_CPUS];
        proptest::collection::btree_set(number, 0..12)
    }

    fn set(numbers: &BTreeSet<u32>) -> CpuSet {
        numbers.iter().copied().collect()
    }

    fn hash(set: &CpuSet) -> u64 {
        std::hash::BuildHasher::hash_one(
            &std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default(),
            set,
        )
    }

    proptest! {
        #[test]
        fn printing_and_parsing_return_the_same_set(cpus in proptest::collection::btree_set(0u32..MAX_CPUS, 0..64)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn it_holds_what_a_tree_of_numbers_holds(one in numbers(), cpu in 0u32..MAX_CPUS) {
            let cpus = set(&one);
            prop_assert_eq!(cpus.len(), one.len());
            prop_assert_eq!(cpus.is_empty(), one.is_empty());
            prop_assert!(one.iter().all(|cpu| cpus.contains(*cpu)));
            prop_assert_eq!(cpus.contains(cpu), one.contains(&cpu));
            prop_assert!(cpus.iter().eq(one.iter().copied()));
            prop_assert!(cpus.iter().rev().eq(one.iter().rev().copied()));
            let mut mask = vec![0u8; one.last().map_or(0, |last| *last as usize / 8 + 1)];
            for cpu in &one {
                mask[*cpu as usize / 8] |= 1 << (cpu % 8);
            }
            prop_assert_eq!(cpus.to_systemd_mask(), mask);
        }

        #[test]
        fn both_ends_of_its_numbers_meet(one in numbers(), from_the_end in proptest::collection::vec(any::<bool>(), 16)) {
            let cpus = set(&one);
            let (mut found, mut expected) = (cpus.iter(), one.iter().copied());
            for back in from_the_end {
                if back {
                    prop_assert_eq!(found.next_back(), expected.next_back());
                } else {
                    prop_assert_eq!(found.next(), expected.next());
                }
            }
        }

        #[test]
        fn two_sets_come_to_what_two_trees_come_to(one in numbers(), two in numbers()) {
            let (a, b) = (set(&one), set(&two));
            prop_assert_eq!(a.union(&b), set(&(&one | &two)));
            prop_assert_eq!(a.intersection(&b), set(&(&one & &two)));
            prop_assert_eq!(a.difference(&b), set(&(&one - &two)));
            prop_assert_eq!(a.is_subset(&b), one.is_subset(&two));
            prop_assert_eq!(a.is_disjoint(&b), one.is_disjoint(&two));
            prop_assert_eq!(a.cmp(&b), one.cmp(&two));
            prop_assert_eq!(a == b, one == two);
            let mut all = a.clone();
            all.union_with(&b);
            prop_assert_eq!(&all, &a.union(&b));
            // However a set came to be, it is the same one.
            let back = all.difference(&b.difference(&a));
            prop_assert_eq!(hash(&back), hash(&a));
            prop_assert_eq!(back, a);
        }

        #[test]
        fn a_list_of_runs_is_read_as_their_numbers(
            runs in proptest::collection::vec((0u32..MAX_CPUS, 0u32..200), 0..6)
        ) {
            let runs: Vec<(u32, u32)> = runs.iter().map(|(low, more)| (*low, (low + more).min(MAX_CPUS - 1))).collect();
            let text = runs.iter().map(|(low, high)| format!("{low}-{high}")).collect::<Vec<_>>().join(",");
            let numbers: BTreeSet<u32> = runs.iter().flat_map(|(low, high)| *low..=*high).collect();
            prop_assert_eq!(text.parse::<CpuSet>().unwrap(), set(&numbers));
        }

        #[test]
        fn a_set_and_a_beginning_of_it_are_ordered_as_their_lists(one in numbers(), length in 0usize..12) {
            let two: BTreeSet<u32> = one.iter().copied().take(length).collect();
            prop_assert_eq!(set(&one).cmp(&set(&two)), one.cmp(&two));
            prop_assert_eq!(set(&two).cmp(&set(&one)), two.cmp(&one));
        }
    }
}
