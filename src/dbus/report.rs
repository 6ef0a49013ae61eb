//! What a pass did, and what one would do, as D-Bus dictionaries.

use stelia_api::{Error, ErrorKind};
use stelia_kubelet::PodUid;
use zbus::Variant;

use super::manager::Options;
use crate::engine::{Preview, Report};

/// Of `Reconcile`: the pass's number, what it changed, how many instances it left degraded.
pub(super) fn report_dict(report: Report) -> Result<Options, Error> {
    let failed = |cause| ErrorKind::Failed.because(format!("report: {cause}"));
    let lines = report.lines();
    let numbers = [
        ("pass", report.pass),
        ("steps", report.steps),
        ("writes", report.writes),
        ("moves", report.moves),
        ("repaired", report.repaired),
    ];
    let mut dict = Options::new();
    for (name, number) in numbers {
        dict.insert(name.into(), Variant::from(number).try_into().map_err(failed)?);
    }
    dict.insert("degraded".into(), Variant::from(lines).try_into().map_err(failed)?);
    Ok(dict)
}

/// `plan` and `degraded`, each line with its pod in front, or `-` for what all share.
pub(super) fn preview_dict(preview: Preview) -> Result<Options, Error> {
    let failed = |cause| ErrorKind::Failed.because(format!("report: {cause}"));
    let shared = |pod: Option<PodUid>| pod.map_or_else(|| "-".to_owned(), |pod| pod.to_string());
    let steps = preview.steps.into_iter();
    let steps: Vec<String> = steps.map(|(pod, step)| format!("{}: {step}", shared(pod))).collect();
    let reasons = preview.degraded.into_iter();
    let reasons: Vec<String> = reasons.map(|(pod, reason)| format!("{pod}: {reason}")).collect();
    let mut dict = Options::new();
    dict.insert("plan".into(), Variant::from(steps).try_into().map_err(failed)?);
    dict.insert("degraded".into(), Variant::from(reasons).try_into().map_err(failed)?);
    Ok(dict)
}
