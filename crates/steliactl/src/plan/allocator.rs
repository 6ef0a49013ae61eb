//! The answer of steliad's allocator.

use kubelet_planner::{Container, ContainerKind};
use serde_json::{Map, Value};
use stelia_api::dict::{borrowed, to_dict};
use stelia_koordinator::allocator::evaluate::{self, EvaluateAnswer, EvaluateRequest, Fit, SchedulerOptions};
use stelia_koordinator::report::Facts;

use super::answer::{Answer, Placement, Rejected, Row};
use super::{PlanOptions, Question};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::json_of;

/// Asks the daemon.
///
/// # Errors
/// The daemon refuses to answer.
pub(super) async fn here(asked: &PlanOptions, question: &Question, client: &Client) -> Result<Answer, Failure> {
    let request = to_dict(&asked.request_of(question)).map_err(|cause| Failure::Other(cause.to_string()))?;
    let answers = client.evaluate(vec![borrowed(&request)]).await?;
    let answer: Map<String, Value> = answers.first().map(json_of).unwrap_or_default();
    let read = serde_json::from_value(Value::Object(answer));
    let answer = read.map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))?;
    Ok(told(question, None, answer))
}

/// Asks the allocator of a described node.
///
/// # Errors
/// steliad does not assign the CPUs there.
pub(super) fn described(asked: &PlanOptions, question: &Question, facts: &Facts) -> Result<Answer, Failure> {
    let node = facts
        .allocator_node()
        .map_err(|cause| Failure::Other(cause.to_string()))?;
    let answer = evaluate::answer(&node, &asked.request_of(question)).into();
    Ok(told(question, Some(facts.name.clone()), answer))
}

impl PlanOptions {
    fn request_of(&self, question: &Question) -> EvaluateRequest {
        let mut allocation = self.request.clone();
        let mut kubernetes_class = None;
        if question.is_whole {
            let limit = question.container().and_then(limit);
            allocation.cpu_limit = allocation
                .cpu_limit
                .or(limit.and_then(|milli| u32::try_from(milli).ok()));
            kubernetes_class = Some(question.pod.qos());
        }
        EvaluateRequest {
            allocation,
            options: SchedulerOptions {
                kubernetes_class,
                scoring_strategy: self.scoring_strategy.unwrap_or_default(),
            },
        }
    }
}

fn limit(container: &Container) -> Option<u64> {
    container.resources.limits.milli_cpus
}

impl Question {
    /// The container of the VM, to which alone steliad assigns CPUs: that with the most.
    fn container(&self) -> Option<&Container> {
        let apps = self.pod.containers.iter().filter(|one| one.kind == ContainerKind::App);
        apps.max_by_key(|one| limit(one))
    }
}

fn told(question: &Question, node: Option<String>, answer: EvaluateAnswer) -> Answer {
    let container = question.container().map(|one| one.name.clone()).unwrap_or_default();
    let mut assumed = question.assumed.clone();
    if question.pod.containers.len() > 1 {
        assumed.push(format!(
            "steliad assigns CPUs to the VM's container alone, here {container}, which has the most"
        ));
    }
    Answer {
        pod: question.name.clone(),
        qos: question.pod.qos().name(),
        node,
        assigned_by: "steliad",
        assumed,
        admitted: answer.fit,
        rejection: (!answer.fit).then(|| Rejected {
            reason: answer.error,
            message: answer.reason.unwrap_or_default(),
            ..Rejected::default()
        }),
        containers: answer
            .place
            .into_iter()
            .map(|fit| row(container.clone(), fit))
            .collect(),
        ..Answer::default()
    }
}

fn row(container: String, fit: Fit) -> Row {
    Row {
        container,
        kind: "app",
        pool: if fit.cpus.is_empty() { "node" } else { "exclusive" },
        cpus: fit.cpus,
        numa_nodes: fit.numa_nodes,
        placement: Some(Placement {
            class: fit.qos.name(),
            runs_on: fit.runs_on,
            exclusivity: fit.exclusivity.name(),
            score: fit.score.sum,
            score_numa: fit.score.numa,
            score_cpus: fit.score.cpus,
        }),
        ..Row::default()
    }
}
