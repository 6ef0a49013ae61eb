//! A CPU: where it is, who owns it or did, and who else may run there.

use serde_json::json;
use stelia_api::{Reason, ReasonCode, State};
use stelia_model::{Instance, Pools};

use super::{Answer, NOT_COUNTED};
use crate::shared::daemon::{
    Condition, Description, Failure, Owner, Pod, Pods, Rows, assigned_by, former_since, owner, whose,
};
use crate::shared::kernel::interrupts::{Fired, named};

/// The answer about a CPU at `now`. `pods` has the names of pods, VMs or not; `fired` is what devices did meanwhile.
///
/// # Errors
/// There is no such CPU.
pub(super) fn answer(
    description: &Description,
    pods: &Pods,
    cpu: u32,
    fired: Option<&[Fired]>,
    now: u64,
) -> Result<Answer, Failure> {
    let node = &description.node;
    let own = owner(description, cpu);
    let place = node.topology.cpus.get(&cpu);
    let mut title = match place {
        Some(at) => format!("CPU {cpu}: core {}, socket {}, NUMA {}", at.core, at.package, at.node),
        None if node.offline.contains(cpu) => format!("CPU {cpu} is offline: nothing runs on it"),
        None => {
            let text = format!("there is no CPU {cpu}; online are {}", node.topology.online());
            return Err(Failure::Usage(text));
        }
    };
    for other in node.topology.siblings(cpu).iter().filter(|other| *other != cpu) {
        title += &format!("; sibling CPU {other} ({})", short(&owner(description, other), pods));
    }
    let mut answer = Answer::new(title, json!({ "cpu": cpu, "online": place.is_some(), "owner": own }));
    let facts = &mut answer.facts;
    match node.instances.iter().find(|(_, one)| one.exclusive.contains(cpu)) {
        Some((uid, vm)) => {
            let (pod, own) = (pods.get(uid.as_str()), std::iter::once(cpu).collect());
            of_vm(facts, &pod, vm, cpu);
            facts.reasons(vm);
            let locality = description.locality.instances.get(uid.as_str());
            let noise = format!("steliactl noise {pod}");
            match fired.map(|fired| named(fired, &own, locality)) {
                _ if place.is_none() => {}
                None => facts.say("Devices", NOT_COUNTED),
                Some(by) if by.is_empty() => facts.say("Devices", "no interrupts within a second"),
                Some(by) => facts.finding("Devices", &by.join("; "), "", &noise),
            }
        }
        None => of_no_vm(facts, description, &own, pods, cpu, now),
    }
    if place.is_none() {
        let fix = Reason::of_node(ReasonCode::CpusOffline, "").fix;
        facts.say_once("Fix", &fix.replace("cpuN", &format!("cpu{cpu}")));
    }
    if let Some(pools) = &node.pools {
        in_pools(facts, pools, cpu);
    }
    answer.node_problems(description);
    Ok(answer)
}

fn short(owner: &Owner, pods: &Pods) -> String {
    match owner {
        Owner::Instance { pod, .. } | Owner::Pod { pod } => pods.get(pod).to_string(),
        Owner::Shared => "shared".to_owned(),
        Owner::Reserved => "reserved for the system".to_owned(),
        Owner::Kubelet => "still held by kubelet".to_owned(),
        Owner::Unknown => "not known".to_owned(),
    }
}

fn of_vm(facts: &mut Rows, name: &Pod, vm: &Instance, cpu: u32) {
    let is_pinned = matches!(vm.state, State::Isolated | State::Pinned);
    let runs = match vm.vcpus.iter().find(|vcpu| is_pinned && vcpu.thread.cpu == Some(cpu)) {
        Some(vcpu) => format!("{} (tid {})", vcpu.thread.role, vcpu.thread.task.id),
        None => "no vCPU pinned here".to_owned(),
    };
    let text = format!(
        "{name} ({}), {runs}, assigned by {}",
        Condition::of(vm),
        assigned_by(vm)
    );
    let label = if vm.state == State::Evicted { "Before" } else { "Owner" };
    facts.say(label, text);
    facts.say("Class", vm.class());
    let others = match vm.state {
        State::Isolated => format!("no other tasks: partition type {}", vm.partition),
        State::Pinned => "kept off only by AllowedCPUs= of other units".to_owned(),
        _ => "any task may run here".to_owned(),
    };
    facts.say("Others", others);
}

fn of_no_vm(facts: &mut Rows, description: &Description, own: &Owner, pods: &Pods, cpu: u32, now: u64) {
    let node = &description.node;
    let text = match own {
        Owner::Pod { pod } => {
            let containers = node.entries.get(pod.as_str()).into_iter().flatten();
            let here = containers.filter(|(_, cpus)| cpus.contains(cpu));
            let here = here.map(|(name, cpus)| format!(", container {name} (CPUs {cpus})"));
            let here: String = here.collect();
            format!("{}{here}, assigned by kubelet; not a VM of steliad's", pods.get(pod))
        }
        other => short(other, pods),
    };
    facts.say("Owner", text);
    if let Some(former) = node.former.iter().find(|one| one.cpus.contains(cpu)) {
        let (pod, what) = (pods.get(former.pod.as_str()), former_since(former.ended_us, now));
        facts.say("Before", format!("VM {pod} (CPUs {}): {what}", former.cpus));
    }
    for (are_pinned, what) in [(false, "all threads"), (true, "non-vCPU threads")] {
        let here = node.instances.iter().filter(|(_, one)| {
            one.float.contains(cpu) && matches!(one.state, State::Isolated | State::Pinned) == are_pinned
        });
        let here: Vec<Pod> = here.map(|(uid, _)| pods.get(uid.as_str())).collect();
        if !here.is_empty() {
            let whose = whose(&here.iter().collect::<Vec<_>>());
            facts.say("Others", format!("{what} of {whose} may run here"));
        }
    }
}

/// The allocator's pools that contain it.
fn in_pools(facts: &mut Rows, pools: &Pools, cpu: u32) {
    let own = &pools.pools;
    let node = own.shared_by_node.iter().find(|(_, pool)| pool.cpus.contains(cpu));
    let node = node.map_or(String::new(), |(node, _)| format!(" of NUMA {node}"));
    let shared = format!("shared pool{node}: LS and Burstable run here");
    for (cpus, text) in [
        (&own.allocatable, "free for the next LSE or LSR VM"),
        (&own.shared, &shared),
        (&own.be_shared, "BE pool: BE and BestEffort run here"),
    ] {
        if cpus.contains(cpu) {
            facts.say("Pool", text);
        }
    }
}
