//! What a pass did, and what one would do, as D-Bus dictionaries.

use stelia_api::Error;
use stelia_api::dict::dict;
use stelia_kubelet::PodUid;

use super::manager::Options;
use crate::engine::{Preview, Report};

/// Of `Reconcile`: the pass's number, what it changed, how many instances it left degraded.
pub(super) fn report_dict(report: Report) -> Result<Options, Error> {
    dict([
        ("degraded", report.lines().into()),
        ("pass", report.pass.into()),
        ("steps", report.steps.into()),
        ("writes", report.writes.into()),
        ("moves", report.moves.into()),
        ("repaired", report.repaired.into()),
    ])
}

/// `plan` and `degraded`, each line with its pod in front, or `-` for what all share.
pub(super) fn preview_dict(preview: Preview) -> Result<Options, Error> {
    let shared = |pod: Option<PodUid>| pod.map_or_else(|| "-".to_owned(), |pod| pod.to_string());
    let steps = preview.steps.into_iter();
    let steps: Vec<String> = steps.map(|(pod, step)| format!("{}: {step}", shared(pod))).collect();
    let reasons = preview.degraded.into_iter();
    let reasons: Vec<String> = reasons.map(|(pod, reason)| format!("{pod}: {reason}")).collect();
    dict([("plan", steps.into()), ("degraded", reasons.into())])
}
