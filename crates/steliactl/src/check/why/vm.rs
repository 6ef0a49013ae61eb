//! A VM: whether it is isolated and why not, its CPUs, where its threads run, and what slows it down.

use serde_json::json;
use stelia_api::{ReasonCode, State};
use stelia_kernel::locality::nodes;
use stelia_koordinator::allocator::Allocation;
use stelia_model::{FloatReason, Instance};
use stelia_settings::Isolation;

use super::Answer;
use super::slow::{Reading, share, slowdowns};
use crate::shared::daemon::{Description, Failure, Pod, Rows, age, assigned_by, no_instance, own_cpus};
use crate::shared::output::counted;

/// The answer at `now`, with what two readings say.
pub(super) fn answer(
    description: &Description,
    pod: &str,
    now: u64,
    readings: (&Reading, &Reading),
) -> Result<Answer, Failure> {
    let node = &description.node;
    let (uid, instance) = node.instances.get_key_value(pod).ok_or_else(|| no_instance(pod))?;
    let name = Pod::of(uid, instance);
    let mut details = json!(name);
    details["state"] = json!(instance.state);
    details["degraded"] = json!(instance.degraded);
    details["not_isolated"] = json!(instance.not_isolated);
    let mut answer = Answer::new(String::new(), details);
    let facts = &mut answer.facts;
    facts.reasons(instance);
    let [state, registered] = [instance.state_since_us, instance.registered_us].map(|us| age(us, now));
    // A time that is not known has no age.
    if !state.is_empty() && !registered.is_empty() {
        let text = format!("{} for {state}, registered {registered} ago", instance.state);
        facts.say("Since", text);
    }
    cpus(facts, description, instance);
    let busy = share(readings.0, readings.1, &instance.float, |time| time.busy);
    float(facts, description, instance, busy);
    let waits = instance
        .not_isolated
        .iter()
        .any(|reason| reason.code == ReasonCode::NoVcpus);
    if instance.isolation == Isolation::Container {
        facts.say("vCPUs", "not told apart: its whole container has the CPUs");
    } else if instance.vcpus.is_empty() && !waits {
        facts.say("vCPUs", "none are attached, so none was measured");
    }
    let is_all_measured = slowdowns(facts, description, (&name, instance), readings);
    let is_degraded = !instance.degraded.is_empty();
    let is = match instance.state {
        State::Isolated if is_degraded => "is isolated, but DEGRADED",
        State::Isolated => "is isolated",
        State::Pinned => "is pinned, not isolated",
        _ => "is NOT isolated",
    };
    let is_slow = facts.0.iter().any(|row| row.label == "Slow");
    let slow = if instance.vcpus.is_empty() || is_degraded && !is_slow {
        ""
    } else if is_slow {
        "; it is slowed down"
    } else if is_all_measured {
        "; nothing slows it down"
    } else {
        "; not all that may slow it down was measured"
    };
    answer.title = format!("{name} {is}{slow}");
    answer.node_problems(description);
    Ok(answer)
}

fn cpus(facts: &mut Rows, description: &Description, instance: &Instance) {
    let (node, own) = (&description.node, &own_cpus(instance));
    let host = nodes(&node.topology, own).to_string();
    let mut text = if own.is_empty() {
        "none of its own".to_owned()
    } else {
        format!("{own} on NUMA {host}, assigned by {}", assigned_by(instance))
    };
    if matches!(instance.partition.as_str(), "isolated" | "root") {
        text += &format!("; partition type {}", instance.partition);
    }
    if instance.isolation == Isolation::Container {
        text += "; scope: container";
    }
    facts.say("CPUs", text);
    if let Some(allocation) = &instance.allocation {
        allocated(facts, allocation);
    }
}

/// What was asked of steliad's allocator, and what it chose.
fn allocated(facts: &mut Rows, allocation: &Allocation) {
    let mut text = format!("class {}", allocation.qos);
    if allocation.cpus > 0 {
        let (count, bind) = (counted(allocation.cpus.into(), "CPU"), allocation.bind);
        text += &format!(", {count}, bind {bind}, exclusive {}", allocation.exclusive);
    }
    if allocation.limit_milli > 0 {
        text += &format!(", CPU limit {}", allocation.limit_milli as f64 / 1000.0);
    }
    facts.say("Asked", text);
    if !allocation.explanation.is_empty() {
        facts.say("Chosen", allocation.explanation.join("; "));
    }
}

/// Where everything but the vCPUs runs; all threads where the vCPUs are not on CPUs of their own.
fn float(facts: &mut Rows, description: &Description, instance: &Instance, busy: Option<f64>) {
    let why = match instance.float_reason {
        FloatReason::PodPool => "the pod's own shared CPUs",
        FloatReason::Near => "shared CPUs of its NUMA nodes",
        FloatReason::TooFewNear => "all shared CPUs: its NUMA nodes have fewer than float-min-cpus",
        FloatReason::Pool => "all shared CPUs",
        FloatReason::NodePool => "shared CPUs of the NUMA node chosen for class LS",
        FloatReason::BePool => "shared CPUs of class BE",
        FloatReason::Spare => "the container's CPUs that no vCPU is pinned to",
        FloatReason::UntilAttached => "shared CPUs of its NUMA nodes and its own CPUs, until vCPUs are attached",
        FloatReason::NoFloat => return facts.say("Threads", "all run on its own CPUs"),
        FloatReason::Unchanged if description.node.kubelet_problem.is_some() => "frozen: kubelet's file is unusable",
        FloatReason::Unchanged => "frozen: no shared CPUs can be chosen now",
    };
    let busy = busy.map_or(String::new(), |busy| format!("{busy:.0} % busy; "));
    // What runs there is the effect of why it is not isolated.
    let who = match instance.state {
        State::Isolated | State::Pinned => "all but its vCPUs",
        _ => "all",
    };
    facts.say("Threads", format!("{who} run on {} ({busy}{why})", instance.float));
}
