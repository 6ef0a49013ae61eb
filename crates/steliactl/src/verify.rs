//! `verify`: whether every promise holds now. A finding is what is not whole, or a step that a pass would take: its cure; or
//! that a VM's memory is not where its CPUs are.

use serde::Serialize;
use stelia_api::client::OwnedDict;
use stelia_node::locality::Localities;
use zbus::Variant;

use super::cli::Json;
use super::client::{Failure, InstanceSummary};
use super::{locality, view};

/// One promise that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Finding {
    /// The pod; `-` for what all share.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// What is not whole; empty for a difference that the next pass repairs.
    pub problem: String,
    /// What a pass would do about it; empty where it can do nothing.
    pub cure: String,
}

fn lines<'a>(preview: &'a OwnedDict, name: &str) -> Vec<(&'a str, &'a str)> {
    let Some(Variant::Array(lines)) = preview.get(name).map(|value| &**value) else {
        return Vec::new();
    };
    let texts = lines.inner().iter().filter_map(|line| match line {
        Variant::Str(text) => text.as_str().split_once(": "),
        _ => None,
    });
    texts.collect()
}

/// The findings of all pods, or of one and of what all share.
pub fn findings(preview: &OwnedDict, pod: Option<&str>) -> Vec<Finding> {
    let asked = |(of, _): &(&str, &str)| pod.is_none_or(|pod| *of == pod || *of == "-");
    let problems = lines(preview, "degraded")
        .into_iter()
        .filter(asked)
        .map(|(pod, problem)| Finding {
            pod_uid: pod.to_owned(),
            problem: problem.to_owned(),
            cure: String::new(),
        });
    let cures = lines(preview, "plan")
        .into_iter()
        .filter(asked)
        .map(|(pod, cure)| Finding {
            pod_uid: pod.to_owned(),
            problem: String::new(),
            cure: cure.to_owned(),
        });
    problems.chain(cures).collect()
}

/// The steps, one a line.
pub fn plan(preview: &OwnedDict) -> String {
    let steps = lines(preview, "plan").into_iter();
    steps
        .map(|(pod, step)| format!("{pod}: {}\n", view::printable(step)))
        .collect()
}

/// What is to be printed.
///
/// # Errors
/// [`Failure::Partial`] when a promise does not hold.
pub fn run(
    preview: &OwnedDict,
    near: &Localities,
    instances: &[InstanceSummary],
    pod: Option<&str>,
    json: Json,
    legend: bool,
) -> Result<String, Failure> {
    let findings = [findings(preview, pod), locality::findings(near, pod)].concat();
    let count = instances
        .iter()
        .filter(|instance| pod.is_none_or(|pod| instance.pod_uid == pod))
        .count();
    let printed = if json.is_on() {
        view::to_json(json, &findings)
    } else if findings.is_empty() {
        format!("{count} instances: every promise holds\n")
    } else {
        let rows = findings.iter().map(|finding| {
            [&finding.pod_uid, &finding.problem, &finding.cure]
                .map(|cell| view::or_dash(cell))
                .to_vec()
        });
        view::table(&["POD UID", "PROBLEM", "CURE"], rows.collect(), legend, None)
    };
    if findings.is_empty() {
        return Ok(printed);
    }
    Err(Failure::Partial {
        printed,
        reason: format!("{} promises of {count} instances do not hold", findings.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview(plan: &[&str], degraded: &[&str]) -> OwnedDict {
        let owned = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            Variant::from(lines).try_into().unwrap()
        };
        [
            ("plan".to_owned(), owned(plan)),
            ("degraded".to_owned(), owned(degraded)),
        ]
        .into()
    }

    #[test]
    fn when_every_promise_holds_that_is_said_and_no_failure() {
        assert_eq!(
            run(&preview(&[], &[]), &Localities::default(), &[], None, Json::Off, true).unwrap(),
            "0 instances: every promise holds\n"
        );
        assert_eq!(
            run(
                &preview(&[], &[]),
                &Localities::default(),
                &[],
                None,
                Json::Pretty,
                true
            )
            .unwrap(),
            "[]\n"
        );
    }

    #[test]
    fn what_does_not_hold_is_listed_with_its_cure_and_the_program_fails() {
        let preview = preview(
            &["a: pin thread 7 to CPU 3", "-: set CPUWeight=200 of stelia.slice"],
            &["b: 2 vCPUs: 1 CPU"],
        );
        let Err(Failure::Partial { printed, reason }) =
            run(&preview, &Localities::default(), &[], None, Json::Off, false)
        else {
            panic!("all is well");
        };
        assert!(
            printed.contains("pin thread 7 to CPU 3") && printed.contains("2 vCPUs: 1 CPU"),
            "{printed}"
        );
        assert!(reason.starts_with("3 promises"), "{reason}");
        // Of one pod: its own and what all share.
        let of_a = findings(&preview, Some("a"));
        assert_eq!(
            of_a.iter().map(|finding| finding.pod_uid.as_str()).collect::<Vec<_>>(),
            ["a", "-"]
        );
    }

    #[test]
    fn a_preview_without_its_members_is_no_finding_and_no_panic() {
        assert!(findings(&OwnedDict::new(), None).is_empty());
    }
}
