//! The whole product, as kubelet computes it: tests and the benchmark compare [`Merger::merge`] with it. With many
//! hints it takes longer than a lifetime.

use super::{Hint, HintList, Merged, Merger, NodeMask, Policy, target};

/// The number of permutations of these lists.
pub fn permutations(lists: &[HintList]) -> u128 {
    let lengths = lists
        .iter()
        .map(|list| list.as_ref().map_or(1, |hints| hints.len().max(1)));
    lengths.fold(1, |product, length| product.saturating_mul(length as u128))
}

/// [`Merger::merge`] by comparing every permutation with the best one so far.
pub fn merge(merger: &Merger, lists: &[HintList]) -> Merged {
    if merger.policy == Policy::None {
        return merger.conclude(None);
    }
    let lists = merger.considered(lists);
    if lists.iter().any(|list| list.is_empty()) {
        return merger.conclude(None);
    }
    let target = target(&lists);
    let mut best = None;
    let mut places = vec![0; lists.len()];
    loop {
        let hints = lists.iter().zip(&places).map(|(list, place)| list[*place]);
        best = better(merger, target, best, permutation(merger, hints));
        // The last list's hint changes first.
        let next = (0..lists.len())
            .rev()
            .find(|list| places[*list] + 1 < lists[*list].len());
        let Some(next) = next else {
            return merger.conclude(best);
        };
        places[next] += 1;
        places[next + 1..].fill(0);
    }
}

fn permutation(merger: &Merger, hints: impl Iterator<Item = Hint>) -> (NodeMask, bool) {
    let (mut nodes, mut preferred, mut first) = (merger.nodes, true, None);
    for hint in hints {
        preferred &= hint.preferred;
        if let Some(mask) = hint.nodes {
            preferred &= *first.get_or_insert(mask) == mask;
            nodes = nodes & mask;
        }
    }
    (nodes, preferred)
}

type MergedHint = (NodeMask, bool);

/// `compareHints`
fn better(merger: &Merger, target: u32, current: Option<MergedHint>, candidate: MergedHint) -> Option<MergedHint> {
    let Some(current) = current.filter(|_| !candidate.0.is_empty()) else {
        return current.or_else(|| (!candidate.0.is_empty()).then_some(candidate));
    };
    let (size, new) = (current.0.len(), candidate.0.len());
    let replaced = match (current.1, candidate.1) {
        (false, true) => true,
        (true, false) => false,
        (true, true) => fits_better(merger, candidate.0, current.0),
        (false, false) if size > target => fits_better(merger, candidate.0, current.0),
        (false, false) if new > target => false,
        (false, false) if new == size => fits_better(merger, candidate.0, current.0),
        (false, false) => new > size,
    };
    Some(if replaced { candidate } else { current })
}

/// Whether a mask has fewer nodes, or as many and closer together, or as close and a lower value.
fn fits_better(merger: &Merger, new: NodeMask, old: NodeMask) -> bool {
    if new.len() != old.len() {
        return new.len() < old.len();
    }
    let (near, far) = (merger.average_distance(new), merger.average_distance(old));
    near < far || (near == far && new < old)
}
