//! The upper bound of how long kubelet takes for a merge: it looks at the whole product of all lists of hints, and
//! admits no other pod meanwhile.

use super::Policy;

/// The time of one permutation in kubelet, in seconds: four lists of 255 hints took nearly 21 minutes on an AMD machine
/// (kubernetes/kubernetes issue 131738; 258 s on a far quicker processor in issue 137700).
const SECONDS_PER_PERMUTATION: f64 = 0.3e-6;

/// The most permutations a merge can have. `lists` has for each resource the number of NUMA nodes that its hints may
/// range over.
///
/// ```
/// use kubelet_planner::merge::{Policy, effort};
///
/// let eight = [8; 4];
/// assert_eq!(effort::permutations(Policy::Restricted, &eight), 255f64.powi(4));
/// assert_eq!(effort::permutations(Policy::SingleNumaNode, &eight), 8f64.powi(4));
/// assert!(effort::seconds(255f64.powi(4)) > 20.0 * 60.0);
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

/// The sets that the memory manager looks at before any merge: those of all NUMA nodes, with and without memory.
pub fn sets(nodes: usize) -> f64 {
    2f64.powf(nodes as f64) - 1.0
}

/// The time of this many permutations in kubelet, in seconds.
pub fn seconds(permutations: f64) -> f64 {
    permutations * SECONDS_PER_PERMUTATION
}
