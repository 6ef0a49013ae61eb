//! The answer of steliad's allocator.

use kubelet_planner::{Container, ContainerKind};
use serde_json::Value;
use stelia_api::dict::{borrowed, to_dict};
use stelia_koordinator::allocator::CpuSource;
use stelia_koordinator::allocator::evaluate::{self, EvaluateAnswer, EvaluateRequest, SchedulerOptions};
use stelia_koordinator::report::Facts;

use super::answer::{Answer, Rejected};
use super::{PlanOptions, Question};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::json_of;

/// Asks the daemon.
///
/// # Errors
/// The daemon refuses to answer.
pub(super) async fn here(asked: &PlanOptions, question: Question, client: &Client) -> Result<Answer, Failure> {
    let request = to_dict(&asked.request_of(&question)).map_err(|cause| Failure::Other(cause.to_string()))?;
    let answers = client.evaluate(vec![borrowed(&request)]).await?;
    let answer = answers.first().map(json_of).unwrap_or_default();
    let read = serde_json::from_value(Value::Object(answer));
    let answer = read.map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))?;
    Ok(question.answered(None, answer))
}

/// Asks the allocator of a described node.
///
/// # Errors
/// steliad does not assign the CPUs there.
pub(super) fn described(asked: &PlanOptions, question: Question, facts: &Facts) -> Result<Answer, Failure> {
    let node = facts
        .allocator_node()
        .map_err(|cause| Failure::Other(cause.to_string()))?;
    let answer = evaluate::answer(&node, &asked.request_of(&question)).into();
    Ok(question.answered(Some(facts.name.clone()), answer))
}

impl PlanOptions {
    fn request_of(&self, question: &Question) -> EvaluateRequest {
        let mut allocation = self.request.clone();
        if question.is_whole {
            let limit = question.container().and_then(limit);
            let limit = limit.and_then(|milli| u32::try_from(milli).ok());
            allocation.cpu_limit = allocation.cpu_limit.or(limit);
        }
        EvaluateRequest {
            allocation,
            options: SchedulerOptions {
                kubernetes_class: question.is_whole.then(|| question.pod.qos()),
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

    fn answered(mut self, node: Option<String>, answer: EvaluateAnswer) -> Answer {
        if self.pod.containers.len() > 1 {
            let container = self.container().map(|one| one.name.as_str()).unwrap_or_default();
            let alone = format!("steliad assigns CPUs only to the VM's container: {container}, which has the most");
            self.assumed.push(alone);
        }
        Answer {
            qos: self.pod.qos().name(),
            pod: self.name,
            node,
            assigned_by: CpuSource::Steliad,
            assumed: self.assumed,
            admitted: answer.fit,
            rejection: (!answer.fit).then(|| Rejected {
                reason: answer.error.unwrap_or_default(),
                message: answer.reason.unwrap_or_default(),
                ..Rejected::default()
            }),
            placement: answer.place,
            ..Answer::default()
        }
    }
}
