//! Topology Manager's settings, as KubeletConfiguration names them.

use std::collections::BTreeMap;

use stelia_cpus::text::excerpt::excerpt;
use stelia_cpus::text::named;
use stelia_kubelet::config::parse_bool;

named! {
    /// `topologyManagerPolicy`: what happens to a pod whose resources do not agree.
    #[derive(Hash)]
    pub enum Policy {
        /// Hints are not asked for.
        None = "none",
        /// It is admitted.
        BestEffort = "best-effort",
        /// It is rejected.
        Restricted = "restricted",
        /// It is rejected, also if they agree on more than one node.
        SingleNumaNode = "single-numa-node",
    }
}

named! {
    /// `topologyManagerScope`: what one merge is for.
    #[derive(Hash)]
    pub enum Scope {
        /// One container. Containers follow one another, init containers first; each is given its resources before the next one's
        /// hints are made, and the first that is not admitted rejects the pod.
        Container = "container",
        /// The pod: hints are made for what its containers need together, and each gets the one answer.
        Pod = "pod",
    }
}

/// `topologyManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MergeOptions {
    /// Among masks of the same size, the smaller average distance. `single-numa-node` does not look at it.
    pub prefer_closest_numa_nodes: bool,
    /// With more NUMA nodes than this kubelet does not start.
    pub max_allowable_numa_nodes: usize,
}

/// The lowest value that kubelet accepts for `max-allowable-numa-nodes`.
const MAX_ALLOWABLE_NUMA_NODES: usize = 8;

impl Default for MergeOptions {
    /// kubelet's defaults.
    fn default() -> Self {
        Self {
            prefer_closest_numa_nodes: false,
            max_allowable_numa_nodes: MAX_ALLOWABLE_NUMA_NODES,
        }
    }
}

/// Why kubelet does not start with these options. With policy `none` it reads none of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyOptionError {
    /// There is no option of this name; of a long one the beginning.
    #[error("unknown Topology Manager policy option {0:?}")]
    Unknown(String),
    /// The value has the wrong type.
    #[error("Topology Manager policy option {name}: {value:?} is not {wanted}")]
    Value {
        /// The option.
        name: String,
        /// The value, or the beginning of a long one.
        value: String,
        /// The expected type.
        wanted: &'static str,
    },
}

impl MergeOptions {
    /// Parses the options of a KubeletConfiguration; missing ones have their defaults.
    ///
    /// ```
    /// use kubelet_planner::merge::MergeOptions;
    ///
    /// let options = [("max-allowable-numa-nodes".to_owned(), "16".to_owned())];
    /// assert_eq!(MergeOptions::parse(&options.into())?.max_allowable_numa_nodes, 16);
    /// # Ok::<(), kubelet_planner::merge::TopologyOptionError>(())
    /// ```
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, TopologyOptionError> {
        let mut parsed = Self::default();
        for (name, value) in options {
            let wrong = |wanted| TopologyOptionError::Value {
                name: name.clone(),
                value: excerpt(value),
                wanted,
            };
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    parsed.prefer_closest_numa_nodes = parse_bool(value).ok_or_else(|| wrong("a truth value"))?;
                }
                "max-allowable-numa-nodes" => {
                    let count = value.parse::<usize>().ok();
                    let allowed = count.filter(|count| (MAX_ALLOWABLE_NUMA_NODES..=i64::MAX as usize).contains(count));
                    parsed.max_allowable_numa_nodes = allowed.ok_or_else(|| wrong("a number of at least 8"))?;
                }
                name => return Err(TopologyOptionError::Unknown(excerpt(name))),
            }
        }
        Ok(parsed)
    }
}
