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
        let mut mask = vec![0u8; one.last().map_or(0, |last| *last as usize / 8 + 1)];
        for cpu in &one {
            mask[*cpu as usize / 8] |= 1 << (cpu % 8);
        }
        prop_assert_eq!(cpus.to_systemd_mask(), mask);
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
