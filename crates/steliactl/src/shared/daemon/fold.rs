//! Folding: a value that several VMs have is printed once.

use super::pod::Pod;

/// The number of VMs that are named where not all are. Where one more would be named, all are: "…" takes as much room as a name.
const MAX_NAMED: usize = 3;

/// Equal values together, each with the pods that have it; in the order in which they come.
pub(crate) fn fold<'a, T: PartialEq>(all: impl IntoIterator<Item = (&'a Pod, T)>) -> Vec<(Vec<&'a Pod>, T)> {
    let mut folded: Vec<(Vec<&Pod>, T)> = Vec::new();
    for (pod, value) in all {
        match folded.iter_mut().find(|(_, other)| *other == value) {
            Some((pods, _)) if pods.contains(&pod) => {}
            Some((pods, _)) => pods.push(pod),
            None => folded.push((vec![pod], value)),
        }
    }
    folded
}

/// "team-a/web", "2 VMs (team-a/db, team-a/web)", "200 VMs (team-a/vm-1, team-a/vm-2, team-a/vm-3, …)".
pub(crate) fn whose(pods: &[&Pod]) -> String {
    match pods {
        [pod] => pod.to_string(),
        pods => format!("{} VMs ({})", pods.len(), named(pods)),
    }
}

/// The first names, by name.
fn named(pods: &[&Pod]) -> String {
    let mut names: Vec<String> = pods.iter().map(|pod| pod.to_string()).collect();
    names.sort();
    let more = names.len() > MAX_NAMED + 1;
    if more {
        names.truncate(MAX_NAMED);
    }
    names.join(", ") + if more { ", …" } else { "" }
}
