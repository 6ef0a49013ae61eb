//! The upper bound of how long kubelet takes for a merge: it looks at the whole product of all lists of hints, and
//! admits no other pod meanwhile.

use super::{Hint, Policy};

/// A merge that takes at least so long is worth a warning: kubelet admits no other pod meanwhile. Seconds.
pub const SLOW_SECONDS: f64 = 10.0;

/// The time of one permutation in kubelet, in seconds: four lists of 255 hints took nearly 21 minutes on an AMD machine
/// (kubernetes/kubernetes issue 131738; 258 s on a far quicker processor in issue 137700).
const SECONDS_PER_PERMUTATION: f64 = 0.3e-6;

/// The most permutations a merge can have. `lists` has for each resource the number of NUMA nodes that its hints may
/// range over.
///
/// ```
/// use kubelet_planner::merge::{Policy, duration};
///
/// let eight = [8; 4];
/// assert_eq!(duration::permutations(Policy::Restricted, &eight), 255f64.powi(4));
/// assert_eq!(duration::permutations(Policy::SingleNumaNode, &eight), 8f64.powi(4));
/// assert!(duration::seconds(255f64.powi(4)) > 20.0 * 60.0);
/// ```
pub fn permutations(policy: Policy, lists: &[usize]) -> f64 {
    let hints = |nodes: &usize| match policy {
        Policy::None => 1.0,
        // Hints of one node that are preferred: all others are dropped first.
        Policy::SingleNumaNode => *nodes as f64,
        // Every set but the empty one.
        Policy::BestEffort | Policy::Restricted => 2f64.powf(*nodes as f64) - 1.0,
    };
    lists.iter().map(hints).product()
}

/// The permutations of a merge of these lists of hints.
pub fn permutations_of<'a>(policy: Policy, lists: impl Iterator<Item = &'a [Hint]>) -> f64 {
    let is_single = |hint: &&Hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.len() == 1);
    let hints = |list: &[Hint]| match policy {
        Policy::SingleNumaNode => list.iter().filter(is_single).count(),
        _ => list.len(),
    };
    lists.map(|list| hints(list).max(1) as f64).product()
}

/// A count for reading: rounded from a million on.
pub fn count_words(number: f64) -> String {
    if number < 1e6 {
        format!("{number:.0}")
    } else {
        format!("{number:.1e}")
    }
}

/// A time for reading.
pub fn in_words(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "less than a second".to_owned(),
        s if s < 120.0 => format!("about {s:.0} s"),
        s if s < 7200.0 => format!("about {:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("about {:.0} h", s / 3600.0),
        s if s < 1000.0 * 86400.0 => format!("about {:.0} days", s / 86400.0),
        _ => "years".to_owned(),
    }
}

/// The sets that the memory manager looks at before any merge: those of all NUMA nodes, with and without memory.
pub fn sets(nodes: usize) -> f64 {
    2f64.powf(nodes as f64) - 1.0
}

/// The time of this many permutations in kubelet, in seconds.
pub fn seconds(permutations: f64) -> f64 {
    permutations * SECONDS_PER_PERMUTATION
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::NodeMask;

    #[test]
    fn the_permutations_of_a_merge_are_those_of_its_lists() {
        let all: Vec<Hint> = (1..256)
            .map(|bits| {
                let nodes = NodeMask::from_bits(bits);
                Hint::on(nodes, nodes.len() == 1)
            })
            .collect();
        let lists = [all.as_slice(), &all, &[]];
        let count = |policy| permutations_of(policy, lists.into_iter());
        assert_eq!(count(Policy::Restricted), permutations(Policy::Restricted, &[8; 2]));
        assert_eq!(
            count(Policy::SingleNumaNode),
            permutations(Policy::SingleNumaNode, &[8; 2])
        );
        assert_eq!(in_words(21.0 * 60.0), "about 21 min");
    }
}
