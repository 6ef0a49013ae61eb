//! What a pass did, and what one would do, as D-Bus dictionaries.

use stelia_api::Error;
use stelia_api::dict::dict;
use stelia_kubelet::PodUid;

use super::manager::Options;
use crate::engine::{PassReport, Preview};

/// The answer of `Reconcile`: the pass's number, what it changed, how many instances it left degraded.
pub(super) fn report_dict(report: PassReport) -> Result<Options, Error> {
    dict([
        ("degraded", report.lines().into()),
        ("pass", report.pass.into()),
        ("steps", report.did.steps.into()),
        ("writes", report.did.writes.into()),
        ("moves", report.did.moves.into()),
        ("repaired", report.did.repaired.into()),
    ])
}

/// `plan` and `degraded`, each line with its pod in front, or `-` for what all share; `reasons`, the same as `degraded` with the
/// kind of each, and once what is of the whole node.
pub(super) fn preview_dict(preview: Preview) -> Result<Options, Error> {
    let shared = |pod: Option<&PodUid>| pod.map_or_else(|| "-".to_owned(), PodUid::to_string);
    let steps = preview.steps.iter();
    let steps: Vec<String> = steps
        .map(|(pod, step)| format!("{}: {step}", shared(pod.as_ref())))
        .collect();
    let mut lines: Vec<String> = Vec::new();
    let mut reasons: Vec<(String, String, String)> = Vec::new();
    for (pod, reason) in &preview.degraded {
        lines.push(format!("{}: {reason}", shared(pod.as_ref())));
        // A reason may name another pod, whose details it has; it is told of the instance that is degraded.
        let whose = shared(pod.as_ref().filter(|_| reason.pod.is_some()));
        let row = (whose, reason.kind.to_string(), reason.text.clone());
        if !reasons.contains(&row) {
            reasons.push(row);
        }
    }
    dict([
        ("plan", steps.into()),
        ("degraded", lines.into()),
        ("reasons", reasons.into()),
    ])
}

#[cfg(test)]
mod tests {
    use stelia_api::client::OwnedDict;
    use stelia_api::{Reason, ReasonKind};
    use zbus::Variant;

    use super::*;

    fn rows(dict: &OwnedDict) -> Vec<Vec<String>> {
        let Variant::Array(rows) = &*dict["reasons"] else {
            panic!("no array");
        };
        let text = |field: &Variant<'_>| String::try_from(field.clone()).unwrap();
        let row = |row: &Variant<'_>| match row {
            Variant::Structure(row) => row.fields().iter().map(text).collect(),
            other => panic!("{other:?}"),
        };
        rows.inner().iter().map(row).collect()
    }

    #[test]
    fn what_is_of_the_node_is_told_once_and_an_instances_own_with_its_uid() {
        let pods = [1, 2].map(|n| PodUid::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap());
        let node = || Reason::of_node(ReasonKind::KubeletUnusable, "no file");
        let evicted = Reason::of(&pods[1], ReasonKind::Evicted, "kubelet gave the CPUs 2 away");
        let preview = Preview {
            steps: Vec::new(),
            degraded: vec![
                (Some(pods[0].clone()), node()),
                (Some(pods[0].clone()), evicted),
                (Some(pods[1].clone()), node()),
            ],
        };
        let dict = preview_dict(preview).unwrap();
        assert_eq!(
            rows(&dict),
            [
                ["-", "kubelet-unusable", "no file"],
                [pods[0].as_str(), "evicted", "kubelet gave the CPUs 2 away"]
            ]
        );
        let Variant::Array(lines) = &*dict["degraded"] else {
            panic!("no array");
        };
        assert_eq!(lines.inner().len(), 3);
    }
}
