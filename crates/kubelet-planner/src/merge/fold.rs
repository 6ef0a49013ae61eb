//! The masks that permutations reach, list by list: the module's documentation says why these are all of them.
//!
//! A node that some list's masks do not have is in no AND. The others are counted from 0 on while masks are folded, so that the
//! table is as small as their number allows, whatever their ids are.

use std::collections::HashSet;

use super::mask::NodeMask;

/// The largest table over all masks, in bits: 8 MiB of counts.
const MAX_TABLE_BITS: u32 = 20;

/// The distinct, non-empty ANDs of `nodes` and one mask of each list. The lists' masks have no other nodes.
pub(super) fn reachable(nodes: NodeMask, lists: impl Iterator<Item = Vec<NodeMask>>) -> Vec<NodeMask> {
    let lists: Vec<Vec<NodeMask>> = lists.collect();
    let all = |list: &Vec<NodeMask>| list.iter().fold(0, |all, mask| all | mask.bits());
    let nodes = NodeMask::from_bits(lists.iter().fold(nodes.bits(), |nodes, list| nodes & all(list)));
    let dense = |mask: NodeMask| NodeMask::from_bits(compress(mask, nodes));
    let lists = lists.into_iter();
    let lists = lists.map(|list| distinct(list.into_iter().map(dense).collect()));
    let bits = nodes.len();
    fold(all_of(bits), bits, lists.collect())
        .into_iter()
        .map(|mask| NodeMask::from_bits(expand(mask, nodes)))
        .collect()
}

/// The distinct, non-empty ANDs of one mask of each list; the masks are below 2^`bits`.
fn fold(all: NodeMask, bits: u32, mut lists: Vec<Vec<NodeMask>>) -> Vec<NodeMask> {
    // With the shortest lists first, the set of reached masks stays small longest.
    lists.sort_by_key(Vec::len);
    let mut lists = lists.into_iter();
    let mut reached = lists.next().unwrap_or_else(|| vec![all]);
    for list in lists {
        let by_table = bits <= MAX_TABLE_BITS && reached.len().saturating_mul(list.len()) > 1 << bits;
        reached = if by_table {
            ands_by_table(&reached, &list, bits)
        } else {
            ands_by_pair(&reached, &list)
        };
    }
    reached
}

/// The mask of the lowest `bits` nodes.
fn all_of(bits: u32) -> NodeMask {
    NodeMask::from_bits(u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0))
}

/// The bits of `mask` at the places of `nodes`, one beside the other.
fn compress(mask: NodeMask, nodes: NodeMask) -> u64 {
    if nodes == all_of(nodes.len()) {
        return mask.bits() & nodes.bits();
    }
    let places = (0u32..).zip(nodes.nodes());
    places.fold(0, |dense, (place, node)| dense | ((mask.bits() >> node & 1) << place))
}

/// The reverse of [`compress`].
fn expand(dense: NodeMask, nodes: NodeMask) -> u64 {
    if nodes == all_of(nodes.len()) {
        return dense.bits();
    }
    let places = (0u32..).zip(nodes.nodes());
    places.fold(0, |mask, (place, node)| mask | ((dense.bits() >> place & 1) << node))
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
