//! The answer of steliad's allocator.

use kubelet_planner::manifest::Described;
use kubelet_planner::{Container, ContainerKind};
use serde_json::Value;
use stelia_api::dict::{borrowed, to_dict};
use stelia_koordinator::allocator::CpuSource;
use stelia_koordinator::allocator::evaluate::{self, EvaluateAnswer, EvaluateRequest, SchedulerOptions};
use stelia_koordinator::report::Facts;

use super::PlanOptions;
use super::answer::{Answer, Rejected};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::json_of;

/// Asks the allocator of a described node, or the daemon of this one.
///
/// # Errors
/// The daemon refuses to answer, or steliad does not assign the CPUs of the described node.
pub(super) async fn answer(
    asked: &PlanOptions,
    question: &Described,
    facts: Option<&Facts>,
    client: impl AsyncFnOnce() -> Result<Client, Failure>,
) -> Result<Answer, Failure> {
    let pod = &question.pod;
    // The container of the VM, to which alone steliad assigns CPUs: that with the most.
    let apps = pod.containers.iter().filter(|one| one.kind == ContainerKind::App);
    let container = apps.max_by_key(|one| limit(one));
    let mut allocation = asked.request.clone();
    if asked.is_whole() {
        let milli = container.and_then(limit);
        let limit = milli.and_then(|milli| u32::try_from(milli).ok());
        allocation.cpu_limit = allocation.cpu_limit.or(limit);
    }
    let request = EvaluateRequest {
        allocation,
        options: SchedulerOptions {
            kubernetes_class: asked.is_whole().then(|| pod.qos()),
            scoring_strategy: asked.scoring_strategy.unwrap_or_default(),
        },
    };
    let answer: EvaluateAnswer = match facts.map(Facts::allocator_node) {
        Some(node) => {
            let node = node.map_err(|cause| Failure::Other(cause.to_string()))?;
            evaluate::answer(&node, &request).into()
        }
        None => {
            let request = to_dict(&request).map_err(|cause| Failure::Other(cause.to_string()))?;
            let answers = client().await?.evaluate(vec![borrowed(&request)]).await?;
            let answer = answers.first().map(json_of).unwrap_or_default();
            let read = serde_json::from_value(Value::Object(answer));
            read.map_err(|cause| Failure::Other(format!("the daemon's answer is not understood: {cause}")))?
        }
    };
    let mut told = Answer {
        node: facts.map(|facts| facts.name.clone()),
        assigned_by: CpuSource::Steliad,
        admitted: Some(true),
        placement: answer.place,
        ..Answer::about(question)
    };
    if pod.containers.len() > 1 {
        let name = container.map(|one| one.name.as_str()).unwrap_or_default();
        told.assumed.push(format!(
            "steliad assigns CPUs only to the VM's container: {name}, which has the most"
        ));
    }
    if answer.fit {
        return Ok(told);
    }
    Ok(told.refused(Rejected {
        reason: answer.error.unwrap_or_default(),
        message: answer.reason.unwrap_or_default(),
        ..Rejected::default()
    }))
}

fn limit(container: &Container) -> Option<u64> {
    container.resources.limits.milli_cpus
}
