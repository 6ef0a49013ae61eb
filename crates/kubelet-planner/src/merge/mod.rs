//! Topology Manager's merge: the hints of all resources become one, and the policy admits the pod or does not.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use kubelet_planner::merge::{Hint, Merger, NodeMask, MergeOptions, Policy};
//!
//! // Two NUMA nodes. The CPUs fit on either, the device is at node 1.
//! let merger = Merger::new(Policy::SingleNumaNode, MergeOptions::default(), &"0-1".parse()?, &BTreeMap::new())?;
//! let hint = |bits, preferred| Hint { nodes: Some(NodeMask::from_bits(bits)), preferred };
//! let cpus = Some(vec![hint(0b01, true), hint(0b10, true), hint(0b11, false)]);
//! let device = Some(vec![hint(0b10, true), hint(0b11, false)]);
//! let memory = None;
//!
//! let merged = merger.merge(&[cpus, device, memory]);
//! assert_eq!(merged.nodes, Some(NodeMask::from_bits(0b10)));
//! assert!(merged.preferred && merged.admitted);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What kubelet does
//!
//! It takes one hint from each list, in every way there is: a *permutation*. The permutation's mask is the AND of its hints'
//! masks and of the machine's nodes; it is preferred if every hint in it is and their masks, before that AND, are all equal
//! (a hint without a mask is equal to any). Permutations whose mask is empty are dropped. The others are compared one after the other,
//! and the best is kept:
//!
//! 1. a preferred one before one that is not;
//! 2. among preferred ones, fewer nodes first;
//! 3. among the others, nearest to a target size T: exactly T nodes, else the most below T, else the fewest above T. T is the
//!    size of the widest of the lists' narrowest masks, masks that fit no permutation included;
//! 4. at the same size, with `prefer-closest-numa-nodes`, the smaller average distance; then the mask of lower value.
//!
//! Where none is left, the answer is all nodes, not preferred. (`single-numa-node` first drops the hints that are not preferred
//! or name several nodes, so a list may become empty and leave no permutation at all.) With 8 NUMA nodes a list has up to 255 hints, and four lists
//! have 4,228,250,625 permutations.
//!
//! # Why the fold gives the same answer
//!
//! *The order of permutations decides nothing.* The rules above compare two permutations by (preferred, mask) only: rule 3 by
//! the mask's size, rule 4 by a distance that is a function of the mask, and at last by the mask's value. So they are a total
//! order on (preferred, mask), and a tie is a tie of equals: whichever was found first, the answer reads the same. kubelet's
//! one-by-one comparison computes this order's minimum. (It also follows that the order of lists and of hints decides nothing,
//! which it must not: kubelet reads a provider's lists from a Go map.) Hence only the *set* of the pairs (preferred, mask)
//! that permutations reach matters, and there are at most 2 · 2ⁿ of them for n nodes.
//!
//! *The preferred ones are looked up.* All masks of a preferred permutation are one raw mask m, or there are none. So m is
//! reached exactly if each list has (m, preferred) or (no mask, preferred), and at least one of them the former; without any
//! mask it is all nodes, reached if each list has (no mask, preferred). This is an intersection of the lists. If one of the
//! masks found has a node of the machine, rule 1 ends the search: T and the product are not needed.
//!
//! *The others are folded.* Otherwise every preferred permutation is dropped as empty, so all that survive are not preferred,
//! and their masks are the non-empty ones among
//! { nodes ∧ m₁ ∧ … ∧ mₖ : mᵢ in list i }, where no mask is all nodes. AND is associative, so this set is
//! built one list at a time, from the set R of what is reached so far: R ← { r ∧ m : r in R, m in the list }. It is
//! idempotent, so each mᵢ may be cut to the machine's nodes beforehand and equal ones be taken once; and an empty mask stays
//! empty whatever follows, so it is left out at once. None of this loses or adds a mask.
//!
//! *One step of the fold* is done pair by pair while that is the least work. Otherwise, for a mask s, let a(s) of R's masks
//! and b(s) of the list's include s. Then a(s) · b(s) pairs have an AND that includes s, and by inclusion and exclusion over
//! the supersets of s this tells how many pairs have exactly s. It takes n · 2ⁿ additions whatever the lists' lengths; the
//! counts are whole numbers of at most 2²ⁿ, exact in 64 bits.
//!
//! # Scopes
//!
//! [`Scope`] says for which containers one merge is made. What a provider's hints are made for differs with it; the merge does
//! not.

mod distances;
pub mod duration;
mod fold;
mod mask;
mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

pub use mask::{NodeMask, NodeTooHigh};
pub use settings::{MergeOptions, Policy, Scope, TopologyOptionError};

use stelia_cpus::NodeSet;

use distances::Distances;

/// One way to allocate a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The nodes it would come from; `None`: any.
    pub nodes: Option<NodeMask>,
    /// Whether fewer nodes could never be enough, whatever is free now.
    pub preferred: bool,
}

impl Hint {
    pub(crate) fn on(nodes: NodeMask, preferred: bool) -> Self {
        let nodes = Some(nodes);
        Self { nodes, preferred }
    }
}

/// The hints for one resource. `None`: it has no preference; an empty list: it cannot be satisfied, which is not a
/// veto: with `best-effort` the pod is admitted all the same.
pub type HintList = Option<Vec<Hint>>;

const NO_PREFERENCE: &[Hint] = &[Hint {
    nodes: None,
    preferred: true,
}];
const UNSATISFIABLE: &[Hint] = &[Hint {
    nodes: None,
    preferred: false,
}];

/// The outcome of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Merged {
    /// The nodes that providers are to allocate from. `None`: any, which is the answer of `none` always, and of
    /// `single-numa-node` wherever it would be all nodes: no agreement, no preference, or a machine of one node.
    pub nodes: Option<NodeMask>,
    /// Whether every resource prefers exactly these nodes.
    pub preferred: bool,
    /// Whether the policy admits the pod; else kubelet rejects it with `TopologyAffinityError`.
    #[serde(skip)]
    pub admitted: bool,
}

/// Why kubelet does not start, or cannot be predicted, with these settings on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyRefusal {
    /// kubelet does not start.
    #[error("{nodes} NUMA nodes are more than max-allowable-numa-nodes, which is {allowed}")]
    TooManyNodes {
        /// How many the machine has.
        nodes: usize,
        /// How many the option allows.
        allowed: usize,
    },
    /// kubelet's masks have 64 bits.
    #[error(transparent)]
    Node(#[from] NodeTooHigh),
    /// kubelet uses a node's id as its index in the others' rows. Where ids have gaps it panics as soon as it compares
    /// masks with the highest one.
    #[error(
        "prefer-closest-numa-nodes: NUMA node {node} has {distances} distances, and kubelet would look for that to node {highest} at \
         place {highest}"
    )]
    Distances {
        /// The node with this row.
        node: u32,
        /// How many distances it has.
        distances: usize,
        /// The machine's highest node.
        highest: u32,
    },
}

/// The part of the Topology Manager that merges: a policy, its options and the machine's nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Merger {
    policy: Policy,
    nodes: NodeMask,
    /// Set only where distances matter.
    distances: Option<Distances>,
}

impl Merger {
    /// A machine with these NUMA nodes. `distances` has each node's row as `/sys/devices/system/node/node*/distance`
    /// prints it; it is read only with `prefer-closest-numa-nodes` and a policy that uses it.
    ///
    /// Policy `none` refuses nothing: it looks at neither nodes nor options.
    pub fn new(
        policy: Policy,
        options: MergeOptions,
        nodes: &NodeSet,
        distances: &BTreeMap<u32, Vec<u64>>,
    ) -> Result<Self, TopologyRefusal> {
        if policy == Policy::None {
            return Ok(Self {
                policy,
                nodes: NodeMask::default(),
                distances: None,
            });
        }
        if nodes.len() > options.max_allowable_numa_nodes {
            return Err(TopologyRefusal::TooManyNodes {
                nodes: nodes.len(),
                allowed: options.max_allowable_numa_nodes,
            });
        }
        let nodes = NodeMask::try_from(nodes)?;
        let closest = options.prefer_closest_numa_nodes && policy != Policy::SingleNumaNode;
        Ok(Self {
            policy,
            nodes,
            distances: closest.then(|| Distances::new(nodes, distances)).transpose()?,
        })
    }

    /// Merges the hints of all resources, of whichever provider.
    pub fn merge(&self, lists: &[HintList]) -> Merged {
        if self.policy == Policy::None {
            return self.conclude(None);
        }
        let lists = self.considered(lists);
        let agreed = self.best(0, self.agreed(&lists)).map(|nodes| (nodes, true));
        let best = agreed.or_else(|| {
            let reached = fold::reachable(self.nodes, lists.iter().map(|list| masks(list, self.nodes)));
            self.best(target(&lists), reached).map(|nodes| (nodes, false))
        });
        self.conclude(best)
    }

    /// The lists as kubelet's product takes them: none is empty, except by what `single-numa-node` drops.
    fn considered<'a>(&self, lists: &'a [HintList]) -> Vec<Cow<'a, [Hint]>> {
        let considered = lists.iter().map(|list| {
            let hints = match list.as_deref() {
                None => NO_PREFERENCE,
                Some([]) => UNSATISFIABLE,
                Some(hints) => hints,
            };
            if self.policy != Policy::SingleNumaNode {
                return Cow::Borrowed(hints);
            }
            let single = |hint: &&Hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.len() == 1);
            Cow::Owned(hints.iter().filter(single).copied().collect())
        });
        considered.collect()
    }

    /// The masks that preferred permutations agree on, cut to the machine's nodes.
    fn agreed(&self, lists: &[Cow<'_, [Hint]>]) -> Vec<NodeMask> {
        // The masks of lists that also have a hint without a mask, and of those that do not.
        let (mut optional, mut common): (Vec<NodeMask>, Option<Vec<NodeMask>>) = (Vec::new(), None);
        for list in lists {
            let preferred = list.iter().filter(|hint| hint.preferred);
            let mut masks: Vec<NodeMask> = preferred.clone().filter_map(|hint| hint.nodes).collect();
            if preferred.clone().any(|hint| hint.nodes.is_none()) {
                optional.append(&mut masks);
                continue;
            }
            masks.sort_unstable();
            common = Some(match common {
                None => masks,
                Some(mut common) => {
                    common.retain(|mask| masks.binary_search(mask).is_ok());
                    common
                }
            });
        }
        let agreed = common.unwrap_or_else(|| {
            optional.push(self.nodes);
            optional
        });
        agreed.into_iter().map(|mask| mask & self.nodes).collect()
    }

    /// The best of masks that are all preferred or all not. Preferred ones have no target, which is a target of 0.
    fn best(&self, target: u32, masks: Vec<NodeMask>) -> Option<NodeMask> {
        let masks = masks.into_iter().filter(|mask| !mask.is_empty());
        masks.min_by(|one, other| self.order(target, *one, *other))
    }

    fn order(&self, target: u32, one: NodeMask, other: NodeMask) -> Ordering {
        let rank = |mask: NodeMask| match mask.len() {
            size if size == target => (0, 0),
            size if size < target => (1, target - size),
            size => (2, size - target),
        };
        let distance = || self.average_distance(one).total_cmp(&self.average_distance(other));
        rank(one)
            .cmp(&rank(other))
            .then_with(distance)
            .then_with(|| one.cmp(&other))
    }

    /// 0 where distances do not decide.
    fn average_distance(&self, mask: NodeMask) -> f64 {
        self.distances.as_ref().map_or(0.0, |distances| distances.average(mask))
    }

    fn conclude(&self, best: Option<(NodeMask, bool)>) -> Merged {
        let (nodes, preferred) = best.unwrap_or((self.nodes, false));
        let any = match self.policy {
            Policy::None => true,
            Policy::SingleNumaNode => nodes == self.nodes,
            Policy::BestEffort | Policy::Restricted => false,
        };
        Merged {
            nodes: (!any).then_some(nodes),
            preferred,
            admitted: preferred || matches!(self.policy, Policy::None | Policy::BestEffort),
        }
    }
}

/// T: the target number of nodes of an answer that not every resource prefers.
fn target(lists: &[Cow<'_, [Hint]>]) -> u32 {
    let narrowest = |list: &Cow<'_, [Hint]>| list.iter().filter_map(|hint| hint.nodes).map(NodeMask::len).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// A list's masks, cut to the machine's nodes.
fn masks(list: &[Hint], nodes: NodeMask) -> Vec<NodeMask> {
    list.iter()
        .map(|hint| hint.nodes.map_or(nodes, |mask| mask & nodes))
        .collect()
}
