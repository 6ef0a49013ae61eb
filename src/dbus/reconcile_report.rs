//! What a pass did, and what one would do, as D-Bus dictionaries.

use stelia_api::dict::dict;
use stelia_api::{Error, Reason};
use stelia_decide::Whom;
use stelia_kubelet::PodUid;

use super::manager::Options;
use crate::engine::{PassReport, Preview};

/// The pod's UID, or - for what concerns the whole node; the code of a reason, its text and its fix.
type Row = (String, String, String, String);

/// The answer of `Reconcile`: the pass's number, what it changed, and what remains wrong.
pub(super) fn report_dict(report: PassReport) -> Result<Options, Error> {
    dict([
        ("reasons", rows(&report.degraded).into()),
        ("pass", report.pass.into()),
        ("steps", report.did.steps.into()),
        ("writes", report.did.writes.into()),
        ("moves", report.did.moves.into()),
        ("repaired", report.did.repaired.into()),
    ])
}

/// `plan`, each line with its pod in front, or `-` for what all share, and `reasons`.
pub(super) fn preview_dict(preview: Preview) -> Result<Options, Error> {
    let steps = preview.steps.iter();
    let steps: Vec<String> = steps
        .map(|planned| format!("{}: {}", whose(&planned.whom), planned.step))
        .collect();
    dict([("plan", steps.into()), ("reasons", rows(&preview.degraded).into())])
}

fn rows(reasons: &[(Whom, Reason)]) -> Vec<Row> {
    let row = |(whom, reason): &(Whom, Reason)| {
        let (code, text, fix) = (reason.code.to_string(), reason.text.clone(), reason.fix.clone());
        (whose(whom), code, text, fix)
    };
    reasons.iter().map(row).collect()
}

fn whose(whom: &Whom) -> String {
    whom.pod().map_or_else(|| "-".to_owned(), PodUid::to_string)
}

#[cfg(test)]
mod tests {
    use stelia_api::ReasonCode;
    use zbus::Variant;

    use super::*;

    #[test]
    fn a_reason_has_the_uid_of_the_instance_that_it_is_told_of() {
        let pods = [1, 2].map(|n| PodUid::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap());
        let evicted = Reason::of(&pods[1], ReasonCode::Evicted, "kubelet gave the CPUs 2 away");
        let preview = Preview {
            steps: Vec::new(),
            degraded: vec![
                (Whom::Node, Reason::of_node(ReasonCode::StepFailed, "write")),
                (Whom::Instance(pods[0].clone()), evicted),
            ],
        };
        let dict = preview_dict(preview).unwrap();
        let Variant::Array(rows) = &*dict["reasons"] else {
            panic!("no array");
        };
        let text = |field: &Variant<'_>| String::try_from(field.clone()).unwrap();
        let first_three = |row: &Variant<'_>| match row {
            Variant::Structure(row) => row.fields().iter().take(3).map(text).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let rows: Vec<Vec<String>> = rows.inner().iter().map(first_three).collect();
        let expected = [
            ["-", "step-failed", "write"],
            [pods[0].as_str(), "evicted", "kubelet gave the CPUs 2 away"],
        ];
        assert_eq!(rows, expected);
    }
}
