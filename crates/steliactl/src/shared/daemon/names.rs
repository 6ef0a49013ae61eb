//! What names a VM on the command line: the namespace and name of its pod, the name alone, the name of its KubeVirt VM, its UID, or a
//! pattern as a shell has it. The beginning of a name is no name.

use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use stelia_cpus::text::near;
use stelia_model::FormerVm;

use super::client::{Client, connect};
use super::condition::{Condition, own_cpus};
use super::failure::Failure;
use super::node::{Description, former_in_words};
use super::pod::{Pod, Pods};
use crate::shared::output::{cut, some_of};

/// The number of names that a message offers, and the columns of what was asked for that it repeats.
const MAX_OFFERED: usize = 3;
const MAX_REPEATED: usize = 80;
/// Timeout of a completion: a person has pressed Tab and waits.
const COMPLETION_TIMEOUT: Duration = Duration::from_millis(250);

/// Whether a text is a pattern with `*`, `?` or `[a-z]` and no word.
pub(crate) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A word, which has to be a name, or a pattern.
pub(crate) type VmPattern = glob::Pattern;

/// The one pod that a word names.
///
/// # Errors
/// No pod has this name, several have it, or it is a pattern.
pub(crate) fn one(pods: &Pods, asked: &str) -> Result<Pod, Failure> {
    let found: Vec<&Pod> = pods.iter().filter(|pod| pod.is_called(asked, pods)).collect();
    match found.as_slice() {
        [] if is_glob(asked) => {
            let asked = cut(asked, MAX_REPEATED);
            Err(Failure::Usage(format!(
                "{asked} is a pattern: name one VM (see steliactl list)"
            )))
        }
        [] => Err(none_among(asked, pods.iter())),
        [pod] => Ok(Pod::clone(pod)),
        several => {
            let names = some_of(several.iter().map(|pod| pod.in_full()), MAX_OFFERED);
            Err(Failure::Usage(format!("several VMs are called {asked}: {names}")))
        }
    }
}

/// For a pod that is known to have no VM.
pub(crate) fn no_instance(asked: &str) -> Failure {
    Failure::NoSuchInstance(format!("pod {} has no VM on this node", cut(asked, MAX_REPEATED)))
}

/// The error for a name or a pattern that none of these pods fits.
pub(crate) fn none_among<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> Failure {
    let what = if is_glob(asked) { "fits" } else { "is called" };
    let meant = perhaps_meant(asked, pods);
    let asked = cut(asked, MAX_REPEATED);
    Failure::NoSuchInstance(format!("no VM on this node {what} {asked}{meant}"))
}

/// What is known of a name or a pattern of no VM of the node: that it is of one that was released, or what may be meant.
pub(super) fn none_on(description: &Description, asked: &str) -> String {
    let pod = |one: &FormerVm| (Pod::new(&one.pod, one.pod_name.as_ref()), one.ended_us);
    let former: Vec<(Pod, u64)> = description.node.former.iter().map(pod).collect();
    let all: Pods = former.iter().map(|(pod, _)| pod.clone()).collect();
    let of_name = former.iter().position(|(pod, _)| pod.is_called(asked, &all));
    let words = of_name.and_then(|at| former_in_words(description, &former[at..=at]));
    words.unwrap_or_else(|| none_among(asked, Pods::of(description).iter()).to_string())
}

/// "; did you mean a/web, a/web-2, …?" with the pods whose names contain, or whose UIDs begin with, what none of these pods is called, or
/// else with the one that is called most like it; empty where none is.
fn perhaps_meant<'a>(asked: &str, pods: impl IntoIterator<Item = &'a Pod>) -> String {
    let word = asked.rsplit('/').next().unwrap_or_default().trim_matches(['*', '?']);
    let pods: Vec<&Pod> = pods.into_iter().filter(|_| !word.is_empty()).collect();
    let names = pods.iter().map(|pod| pod.pod_name.as_str());
    let nearest = near::nearest(word, names.filter(|name| !name.is_empty()));
    let is_part = |pod: &&&Pod| pod.pod_name.contains(word) || pod.pod_uid.starts_with(word);
    let is_nearest = |pod: &&&Pod| Some(pod.pod_name.as_str()) == nearest;
    let some = match some_of(pods.iter().filter(is_part).map(ToString::to_string), MAX_OFFERED) {
        none if none.is_empty() => pods.iter().find(is_nearest).map(ToString::to_string),
        some => Some(some),
    };
    some.map_or(String::new(), |some| format!("; did you mean {some}?"))
}

/// The VMs that a shell offers where a command takes one: by namespace and name, or by UID where the name is not known; none when the
/// daemon does not answer at once.
pub(crate) fn vms() -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let described = runtime.block_on(async {
        let client = Client::new(connect(COMPLETION_TIMEOUT).await?, COMPLETION_TIMEOUT).await?;
        client.describe().await
    });
    let Ok(described) = described else { return Vec::new() };
    let candidates = described.node.instances.iter().map(|(uid, instance)| {
        let cpus = Some(own_cpus(instance)).filter(|own| !own.is_empty());
        let cpus = cpus.map(|own| format!(", CPUs {own}")).unwrap_or_default();
        let help = format!("{}{cpus}", Condition::of(instance));
        CompletionCandidate::new(Pod::of(uid, instance).to_string()).help(Some(help.into()))
    });
    candidates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::pod;

    /// Words are `UID` or `UID=namespace/name`.
    fn pods(words: &[&str]) -> Vec<Pod> {
        let pods = words.iter().map(|word| {
            let (uid, name) = word.split_once('=').unwrap_or((word, ""));
            pod(uid, name)
        });
        pods.collect()
    }

    #[test]
    fn a_vm_is_named_exactly() {
        let names = pods(&[
            "aaa=default/vm",
            "bbb=default/db",
            "ccc=team-a/db",
            "ddd",
            "eee=team-b/aaa",
        ]);
        // The owner of a VM of KubeVirt gave it its own name.
        let of_kubevirt = pods(&[
            "aaa=team-a/virt-launcher-vm-5-x7k2p",
            "bbb=team-b/virt-launcher-vm-5-1-x7k2p",
        ]);
        for (pods, asked, expected) in [
            (&names, "vm", "aaa"),
            (&names, "default/vm", "aaa"),
            (&names, "team-a/db", "ccc"),
            (&names, "ddd", "ddd"),
            // A tenant called a pod by the UID of another VM.
            (&names, "aaa", "aaa"),
            (&names, "team-b/aaa", "eee"),
            (&of_kubevirt, "vm-5", "aaa"),
            (&of_kubevirt, "team-a/vm-5", "aaa"),
            (&of_kubevirt, "vm-5-1", "bbb"),
            (&of_kubevirt, "bbb", "bbb"),
        ] {
            assert_eq!(
                one(&pods.iter().cloned().collect(), asked).unwrap().pod_uid,
                expected,
                "{asked}"
            );
        }
        for (pods, asked) in [
            (&of_kubevirt, "team-b/vm-5"),
            (&of_kubevirt, "vm"),
            (&of_kubevirt, "virt-launcher"),
            (&names, "default"),
            (&names, "default/"),
            (&names, "v"),
            (&names, "d"),
            (&names, "/"),
            (&names, ""),
        ] {
            assert_eq!(
                one(&pods.iter().cloned().collect(), asked).unwrap_err().exit_code(),
                3,
                "{asked}"
            );
        }
        // It fits two, of which none is meant.
        assert_eq!(one(&names.into_iter().collect(), "*").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_name_that_several_vms_have_is_wrong_usage_and_their_uids_are_told() {
        for (words, asked, expected) in [
            (
                &["aaa=default/vm", "bbb=default/db", "ccc=team-a/db"][..],
                "db",
                "default/db (bbb), team-a/db (ccc)",
            ),
            // A pod that was made again under its name, while the former one ends.
            (
                &["aaa=default/vm", "bbb=default/vm"],
                "default/vm",
                "default/vm (aaa), default/vm (bbb)",
            ),
        ] {
            let failure = one(&pods(words).into_iter().collect(), asked).unwrap_err();
            let text = failure.to_string();
            assert!(failure.exit_code() == 2 && text.ends_with(expected), "{failure}");
        }
    }

    #[test]
    fn patterns_are_those_of_a_shell_and_fit_uids_only_where_there_is_no_name() {
        let of_kubevirt = pod("db9f1c7e", "team-a/virt-launcher-web-x7k2p");
        let unnamed = Pod::unnamed(&of_kubevirt.pod_uid);
        for (pattern, by_name, by_uid) in [
            ("we[a-c]", true, false),
            ("we[!b]", false, false),
            ("eb*", false, false),
            ("team-b/we*", false, false),
            ("db*", false, true),
        ] {
            let parsed: VmPattern = pattern.parse().unwrap();
            let selected = [&of_kubevirt, &unnamed].map(|pod| pod.fits(&parsed, &Pods::default()));
            assert_eq!(selected, [by_name, by_uid], "{pattern}");
        }
        assert!("vm-[".parse::<VmPattern>().is_err());
    }

    #[test]
    fn what_may_be_meant_is_offered() {
        let known = [
            "u=team-a/virt-launcher-web-1-x7k2p",
            "u=team-a/virt-launcher-web-2-abcde",
            "u=team-a/database",
            "3ceda12c",
        ];
        for (asked, meant) in [
            (
                "web",
                "; did you mean team-a/virt-launcher-web-1-x7k2p, team-a/virt-launcher-web-2-abcde?",
            ),
            ("databse", "; did you mean team-a/database?"),
            // In another namespace.
            ("team-b/database", "; did you mean team-a/database?"),
            ("databse*", "; did you mean team-a/database?"),
            ("3ced", "; did you mean 3ceda12c?"),
            ("cache", ""),
            ("", ""),
        ] {
            assert_eq!(perhaps_meant(asked, &pods(&known)), meant, "{asked}");
        }
        let many: Vec<Pod> = (0..9).map(|at| pod("u", &format!("a/vm-{at}"))).collect();
        assert_eq!(perhaps_meant("vm", &many), "; did you mean a/vm-0, a/vm-1, a/vm-2, …?");
        for long in ["x".repeat(5_000), "=".repeat(5_000)] {
            let failure = none_among(&long, &many);
            assert!(failure.exit_code() == 3 && failure.to_string().len() < 250, "{failure}");
        }
    }
}
