//! The error for a name that no VM has, with the most similar name.

use stelia_cpus::text::near;

use super::failure::Failure;
use super::pattern::is_glob;
use super::pod::Pod;
use crate::shared::output::cut;

/// The number of names that are offered.
const MAX_OFFERED: usize = 3;

/// The columns of what was asked for that a message repeats.
const MAX_REPEATED: usize = 80;

/// The beginning of what was asked for: a message does not repeat thousands of characters.
fn excerpt(asked: &str) -> String {
    cut(asked, MAX_REPEATED)
}

/// For a pod that is known to have no instance.
pub(crate) fn no_instance(asked: &str) -> Failure {
    Failure::NoSuchInstance(format!("pod {} has no instance on this node", excerpt(asked)))
}

/// For a name or a pattern that none of these pods fits.
pub(super) fn no_instance_among<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> Failure {
    let what = if is_glob(asked) { "fits" } else { "is called" };
    let meant = perhaps_meant(asked, pods);
    Failure::NoSuchInstance(format!("no VM on this node {what} {}{meant}", excerpt(asked)))
}

/// "; did you mean a/web, a/web-2, …?" with names like the one that none of these pods has; empty where none is like it.
pub(crate) fn perhaps_meant<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> String {
    let pods = pods.into_iter().filter(|pod| pod.is_named());
    let mut names: Vec<(String, &str)> = pods.map(|pod| (pod.to_string(), pod.pod_name.as_str())).collect();
    names.sort();
    names.dedup();
    let offered = like(asked, &names);
    if offered.is_empty() {
        return String::new();
    }
    let more = if offered.len() > MAX_OFFERED { ", …" } else { "" };
    let first: Vec<&str> = offered.into_iter().take(MAX_OFFERED).collect();
    format!("; did you mean {}{more}?", first.join(", "))
}

/// The names that contain the word; if none does, the one that is most like it.
fn like<'a>(asked: &str, names: &'a [(String, &'a str)]) -> Vec<&'a str> {
    let word = asked.rsplit('/').next().unwrap_or_default().trim_matches(['*', '?']);
    if word.is_empty() {
        return Vec::new();
    }
    let containing = names.iter().filter(|(_, name)| name.contains(word));
    let containing: Vec<&str> = containing.map(|(full, _)| full.as_str()).collect();
    if !containing.is_empty() {
        return containing;
    }
    let near = near::nearest(word, names.iter().map(|(_, name)| *name));
    let near = near.and_then(|near| names.iter().find(|(_, name)| *name == near));
    near.map(|(full, _)| full.as_str()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use stelia_kubelet::PodName;

    use super::*;

    fn said(asked: &str) -> String {
        let names = ["virt-launcher-web-1-x7k2p", "virt-launcher-web-2-abcde", "database"];
        let pods = names.map(|name| Pod::new("u", PodName::new("team-a", name).as_ref()));
        let failure = no_instance_among(asked, pods.iter().chain([&Pod::unnamed("3ceda12c")]));
        assert_eq!(failure.exit_code(), 3);
        failure.to_string()
    }

    #[test]
    fn what_may_be_meant_is_offered() {
        assert_eq!(
            said("web"),
            "no VM on this node is called web; did you mean team-a/virt-launcher-web-1-x7k2p, team-a/virt-launcher-web-2-abcde?"
        );
        assert!(said("databse").ends_with("; did you mean team-a/database?"));
        // In another namespace.
        assert!(said("team-b/database").ends_with("; did you mean team-a/database?"));
        assert_eq!(
            said("databse*"),
            "no VM on this node fits databse*; did you mean team-a/database?"
        );
        assert_eq!(said("cache"), "no VM on this node is called cache");
        assert_eq!(said(""), "no VM on this node is called ");
        for long in ["x".repeat(5_000), "=".repeat(5_000)] {
            let message = said(&long);
            assert!(message.len() < 250 && message.contains('…'), "{message}");
        }
    }

    #[test]
    fn of_many_names_three_are_offered() {
        let pods: Vec<Pod> = (0..9)
            .map(|at| Pod::new("u", PodName::new("a", &format!("vm-{at}")).as_ref()))
            .collect();
        let text = no_instance_among("vm", &pods).to_string();
        assert!(text.ends_with("; did you mean a/vm-0, a/vm-1, a/vm-2, …?"), "{text}");
    }
}
