//! Which of the nodes that fit a filter call names.

use std::cmp::Reverse;

/// Limit of the nodes that an answer names, which kube-scheduler then scores and sends to prioritize: as many as it scores at least
/// where it does not look at all nodes (its `minFeasibleNodesToFind`).
const MAX_FIT_NODES: usize = 100;

/// The nodes with the highest scores. Which of equal nodes are among them is not the same for each pod, by its `number`.
pub(super) fn best_nodes(mut fit: Vec<(u16, &str)>, number: u128) -> Vec<&str> {
    if fit.len() > MAX_FIT_NODES {
        let first = usize::try_from(number % fit.len() as u128).unwrap_or_default();
        fit.rotate_left(first);
        fit.sort_by_key(|(score, _)| Reverse(*score));
        fit.truncate(MAX_FIT_NODES);
    }
    fit.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_nodes_are_named_and_equal_ones_take_turns() {
        let names: Vec<String> = (0..250).map(|number| format!("w-{number:03}")).collect();
        let fit = |scores: fn(usize) -> u16| -> Vec<(u16, &str)> {
            let each = names.iter().enumerate();
            each.map(|(at, name)| (scores(at), name.as_str())).collect()
        };
        // A few nodes: all, as they came.
        let few: Vec<(u16, &str)> = fit(|at| at as u16).into_iter().take(MAX_FIT_NODES).collect();
        assert_eq!(best_nodes(few, 7), names[..MAX_FIT_NODES]);
        let mut best = best_nodes(fit(|at| at as u16), 7);
        best.sort_unstable();
        assert_eq!(best, names[150..]);
        // The best ten are always among them, of the others those that the number chooses.
        let scores = |at: usize| if at.is_multiple_of(25) { 900 } else { 500 };
        let (one, other) = (best_nodes(fit(scores), 30), best_nodes(fit(scores), 180));
        for best in [&one, &other] {
            assert_eq!(best.len(), MAX_FIT_NODES);
            assert!((0..250).step_by(25).all(|at| best[..10].contains(&names[at].as_str())));
        }
        assert!(one.contains(&"w-031") && !one.contains(&"w-181"), "{one:?}");
        assert!(other.contains(&"w-181") && !other.contains(&"w-031"), "{other:?}");
    }
}
