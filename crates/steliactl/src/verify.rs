//! `verify`: whether every promise holds now. A finding is a reason of degradation, a step that a pass would take (its
//! cure), or memory of a VM that is not on the NUMA nodes of its CPUs.

use serde::Serialize;
use serde_json::{Map, Value};

use super::client::{Client, Failure};
use super::locality;
use super::view::{Column, Render, column, list, texts_of};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Finding {
    /// `-` for what concerns all pods.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Empty for a difference that the next pass repairs.
    pub problem: String,
    /// What a pass would do about it; empty where a pass cannot help.
    pub cure: String,
}

const COLUMNS: [Column<Finding>; 3] = [
    column("POD UID", |finding| finding.pod_uid.clone()),
    column("PROBLEM", |finding| finding.problem.clone()),
    column("CURE", |finding| finding.cure.clone()),
];

/// Its JSON is the list of findings.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Verified {
    findings: Vec<Finding>,
    #[serde(skip)]
    instances: usize,
}

/// The findings of all instances, or those of the pod `uid` and of what all share.
///
/// # Errors
/// No such instance, or the daemon does not answer.
pub(crate) async fn gather(client: &Client, uid: Option<&str>) -> Result<Verified, Failure> {
    let pod = match uid {
        Some(uid) => Some(client.find(uid).await?.0),
        None => None,
    };
    let (pod, instances) = (pod.as_deref(), client.instances().await?);
    let described = client.describe().await?;
    let preview = client.preview().await?;
    Ok(Verified {
        findings: [findings(&preview, pod), locality::findings(&described.locality, pod)].concat(),
        instances: instances
            .iter()
            .filter(|one| pod.is_none_or(|pod| one.pod_uid == pod))
            .count(),
    })
}

/// The entries `POD: text` of a member, split.
pub(crate) fn lines<'a>(preview: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    texts_of(preview, name).filter_map(|line| line.split_once(": "))
}

fn findings(preview: &Map<String, Value>, pod: Option<&str>) -> Vec<Finding> {
    let finding = |pod: &str, problem: &str, cure: &str| Finding {
        pod_uid: pod.to_owned(),
        problem: problem.to_owned(),
        cure: cure.to_owned(),
    };
    let problems = lines(preview, "degraded").map(|(pod, problem)| finding(pod, problem, ""));
    let cures = lines(preview, "plan").map(|(pod, cure)| finding(pod, "", cure));
    let all = problems.chain(cures);
    all.filter(|one| pod.is_none_or(|pod| one.pod_uid == pod || one.pod_uid == "-"))
        .collect()
}

fn counted(instances: usize) -> String {
    match instances {
        1 => "1 instance".to_owned(),
        count => format!("{count} instances"),
    }
}

impl Render for Verified {
    fn text(&self, legend: bool) -> String {
        match self.findings.is_empty() {
            true => format!("{}: every promise holds\n", counted(self.instances)),
            false => list(&COLUMNS, &self.findings, legend),
        }
    }

    fn failure(&self) -> Option<String> {
        let (count, instances) = (self.findings.len(), self.instances);
        (count > 0).then(|| format!("{count} promises of {} do not hold", counted(instances)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::Json;
    use crate::view::How;

    fn preview(plan: &[&str], degraded: &[&str]) -> Map<String, Value> {
        json!({ "plan": plan, "degraded": degraded })
            .as_object()
            .cloned()
            .unwrap()
    }

    fn printed(preview: &Map<String, Value>, json: Json) -> Result<String, Failure> {
        let verified = Verified {
            findings: findings(preview, None),
            instances: 0,
        };
        How { json, legend: false }.print(&verified)
    }

    #[test]
    fn when_every_promise_holds_that_is_said_and_no_failure() {
        let good = preview(&[], &[]);
        assert_eq!(printed(&good, Json::Off).unwrap(), "0 instances: every promise holds\n");
        assert_eq!(printed(&good, Json::Pretty).unwrap(), "[]\n");
    }

    #[test]
    fn what_does_not_hold_is_listed_with_its_cure_and_the_program_fails() {
        let preview = preview(
            &["a: pin thread 7 to CPU 3", "-: set CPUWeight=200 of stelia.slice"],
            &["b: 2 vCPUs: 1 CPU"],
        );
        let Err(Failure::Partial { printed, reason }) = printed(&preview, Json::Off) else {
            panic!("all is well");
        };
        assert!(
            printed.contains("pin thread 7 to CPU 3") && printed.contains("2 vCPUs: 1 CPU"),
            "{printed}"
        );
        assert!(reason.starts_with("3 promises"), "{reason}");
        // With a UID: the pod's own findings and those that concern all.
        let of_a = findings(&preview, Some("a"));
        assert_eq!(
            of_a.iter().map(|finding| finding.pod_uid.as_str()).collect::<Vec<_>>(),
            ["a", "-"]
        );
    }

    #[test]
    fn a_preview_without_its_members_is_no_finding_and_no_panic() {
        assert!(findings(&Map::new(), None).is_empty());
    }
}
