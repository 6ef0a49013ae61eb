//! What is wrong with a node's description, for who reads it.

use stelia_cpus::CpuSet;

use crate::report::{Facts, nodes};

impl Facts {
    /// What is wrong with this description: what follows from it, and [`problems`](Self::problems). Nothing here keeps
    /// the object from being made.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = sparse(self).into_iter().collect();
        let others = self.problems.iter().filter(|problem| !warnings.contains(problem));
        let others: Vec<String> = others.cloned().collect();
        warnings.extend(others);
        warnings
    }
}

/// kube-scheduler's NodeResourceTopologyMatch takes a NUMA node's id for a place in a list as long as there are zones
/// (`pkg/noderesourcetopology/score.go`), and ends with a panic at a higher one.
fn sparse(facts: &Facts) -> Option<String> {
    let ids: CpuSet = nodes(facts).into_iter().collect();
    let highest = ids.iter().last()?;
    (highest as usize >= ids.len()).then(|| {
        format!(
            "the ids of the NUMA nodes, {ids}, have gaps: kube-scheduler's NodeResourceTopologyMatch may end at such a \
             node with a panic"
        )
    })
}
