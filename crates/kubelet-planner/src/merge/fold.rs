//! The masks that permutations reach, list by list: the module's documentation says why these are all of them.

use std::collections::HashSet;

use super::mask::NodeMask;

/// The largest table over all masks, in bits: 8 MiB of counts.
const TABLE_BITS: u32 = 20;

/// The distinct, non-empty ANDs of `nodes` and one mask of each list. The lists' masks have no other nodes.
pub(super) fn reachable(nodes: NodeMask, lists: impl Iterator<Item = Vec<NodeMask>>) -> Vec<NodeMask> {
    let mut lists: Vec<Vec<NodeMask>> = lists.map(distinct).collect();
    // With the shortest lists first, the set of reached masks stays small longest.
    lists.sort_by_key(Vec::len);
    let bits = u64::BITS - nodes.bits().leading_zeros();
    let mut lists = lists.into_iter();
    let mut reached = lists.next().unwrap_or_else(|| vec![nodes]);
    for list in lists {
        let by_table = bits <= TABLE_BITS && reached.len().saturating_mul(list.len()) > 1 << bits;
        reached = match by_table {
            true => ands_by_table(&reached, &list, bits),
            false => ands_by_pair(&reached, &list),
        };
    }
    reached
}

fn distinct(mut masks: Vec<NodeMask>) -> Vec<NodeMask> {
    masks.retain(|mask| !mask.is_empty());
    masks.sort_unstable();
    masks.dedup();
    masks
}

pub(super) fn ands_by_pair(some: &[NodeMask], others: &[NodeMask]) -> Vec<NodeMask> {
    let ands = some.iter().flat_map(|one| others.iter().map(|other| *one & *other));
    let distinct: HashSet<NodeMask> = ands.filter(|and| !and.is_empty()).collect();
    distinct.into_iter().collect()
}

/// The ANDs of two sets of distinct masks below 2^`bits`.
pub(super) fn ands_by_table(some: &[NodeMask], others: &[NodeMask], bits: u32) -> Vec<NodeMask> {
    let mut pairs = supersets(some, bits);
    for (pairs, others) in pairs.iter_mut().zip(supersets(others, bits)) {
        *pairs *= others;
    }
    // From the number of ANDs that include a mask to the number that equal it.
    for bit in 0..bits {
        for block in pairs.chunks_exact_mut(2 << bit) {
            let (without, with) = block.split_at_mut(1 << bit);
            for (without, with) in without.iter_mut().zip(with) {
                *without -= *with;
            }
        }
    }
    let reached = (0u64..).zip(pairs).filter(|(mask, pairs)| *mask != 0 && *pairs != 0);
    reached.map(|(mask, _)| NodeMask::from_bits(mask)).collect()
}

/// For every mask, how many of these include it.
fn supersets(masks: &[NodeMask], bits: u32) -> Vec<u64> {
    let mut counts = vec![0u64; 1 << bits];
    for mask in masks {
        counts[mask.bits() as usize] = 1;
    }
    for bit in 0..bits {
        for block in counts.chunks_exact_mut(2 << bit) {
            let (without, with) = block.split_at_mut(1 << bit);
            for (without, with) in without.iter_mut().zip(with) {
                *without += *with;
            }
        }
    }
    counts
}
