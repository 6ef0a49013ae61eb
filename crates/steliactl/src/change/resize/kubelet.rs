//! What kubelet would do with a resize of a VM's pod. Pure.

use kubelet_planner::{Amounts, Container, ContainerKind, Cpus, Resources, admit};
use stelia_model::Instance;
use stelia_node_plan::Subject;

use crate::shared::daemon::Pod;

/// Without this gate kubelet refuses to resize containers with exclusive CPUs.
const GATE: &str = "InPlacePodVerticalScalingExclusiveCPUs";
/// kubelet's minor versions up to this one admit the resize and leave the container's CPUs as they are.
const LAST_WITHOUT_RESIZE: u32 = 37;

/// kubelet's answer, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The CPUs afterwards; empty where that is not known.
    pub(super) cpus: String,
    pub(super) lines: Vec<String>,
}

/// The answer for an instance that is to have so many CPUs. `subject`: this node, or why it cannot be read.
pub(super) fn answer(instance: &Instance, cpus: u32, subject: Result<&Subject, String>) -> Answer {
    let (from, to) = (instance.exclusive.len(), cpus as usize);
    let mut answer = Answer {
        cpus: String::new(),
        lines: vec![
            "kubelet chose its CPUs: a resize of its pod changes them, and steliad follows kubelet's entry.".to_owned(),
        ],
    };
    answer.lines.push(match &subject {
        Err(cause) => format!("What kubelet would answer is not known: {cause}"),
        Ok(subject) => gate(subject),
    });
    if to > from {
        if let Ok(subject) = &subject {
            let (cpus, line) = more(instance, to - from, subject);
            answer.cpus = cpus;
            answer.lines.push(line);
        }
        answer
            .lines
            .push("stelia-runner then plugs vCPUs, if the VMM has free slots.".to_owned());
    } else if to < from {
        let superfluous = instance.vcpus.len().saturating_sub(to);
        answer.lines.push(match superfluous {
            0 => "It has no more vCPUs than CPUs that remain, and leaves the others at once.".to_owned(),
            count => format!(
                "It keeps its CPUs until {count} of its vCPUs are unplugged, at most for unplug-timeout-s; then its vCPUs share the CPUs \
                 that are left."
            ),
        });
    }
    answer
}

/// Whether kubelet resizes containers with exclusive CPUs at all.
fn gate(subject: &Subject) -> String {
    match subject
        .gates
        .as_ref()
        .map(|gates| gates.get(GATE).copied().unwrap_or(false))
    {
        None => format!("Whether kubelet has the feature gate {GATE}, which it needs for this, is not known."),
        Some(false) => {
            format!("kubelet would refuse: its feature gate {GATE} is off, and the resize would be Infeasible.")
        }
        Some(true) => format!(
            "kubelet's feature gate {GATE} is on. Up to 1.{LAST_WITHOUT_RESIZE} kubelet admits the resize and the container keeps its \
             CPUs; later versions give it others."
        ),
    }
}

/// The CPUs with so many more, as kubelet's static policy would give them to a new container; empty if it would not.
fn more(instance: &Instance, count: usize, subject: &Subject) -> (String, String) {
    let amounts = Amounts {
        milli_cpus: Some(count as u64 * 1000),
        memory: Some(1),
        ..Amounts::default()
    };
    let pod = kubelet_planner::Pod {
        uid: "resize".to_owned(),
        resources: None,
        containers: vec![Container::new(
            "more",
            ContainerKind::App,
            Resources::guaranteed(amounts),
        )],
    };
    let admitted = admit(&subject.node, &pod);
    let given = admitted
        .as_ref()
        .map(|admitted| admitted.containers.first().map(|one| &one.cpus));
    match given {
        Ok(Some(Cpus::Exclusive(cpus))) => (
            instance.exclusive.union(cpus).to_string(),
            format!("{count} more are free: a new container of {count} CPUs would be given {cpus}."),
        ),
        Ok(_) => (
            String::new(),
            "kubelet's CPU manager policy gives no exclusive CPUs.".to_owned(),
        ),
        Err(rejection) => (
            String::new(),
            format!("{count} more are not to be had now, and the resize would be Deferred: {rejection}"),
        ),
    }
}

/// The command that resizes the pod.
pub(super) fn command(pod: &Pod, container: &str, cpus: u32) -> String {
    let (namespace, name) = match pod.pod_name.is_empty() {
        true => ("NAMESPACE", "POD"),
        false => (pod.pod_namespace.as_str(), pod.pod_name.as_str()),
    };
    let amounts = format!("{{\"cpu\":\"{cpus}\"}}");
    format!(
        "kubectl patch pod {name} -n {namespace} --subresource resize --patch \
         '{{\"spec\":{{\"containers\":[{{\"name\":\"{container}\",\"resources\":{{\"requests\":{amounts},\"limits\":{amounts}}}}}]}}}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> Instance {
        Instance {
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            ..Instance::default()
        }
    }

    #[test]
    fn the_command_is_whole() {
        let pod = Pod {
            pod_namespace: "default".to_owned(),
            pod_name: "vm".to_owned(),
            ..Pod::default()
        };
        let line = command(&pod, "instance", 6);
        let patch = line.split('\'').nth(1).unwrap();
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        let container = &patch["spec"]["containers"][0];
        assert_eq!(container["name"], "instance");
        assert_eq!(container["resources"]["limits"], container["resources"]["requests"]);
        assert_eq!(container["resources"]["limits"]["cpu"], "6");
        assert!(line.starts_with("kubectl patch pod vm -n default --subresource resize"));
    }

    #[test]
    fn what_is_not_known_is_said_and_what_the_vm_does_too() {
        let unknown = || Err("read /var/lib/kubelet: Permission denied".to_owned());
        let shrinks = answer(&vm(), 2, unknown());
        assert!(
            shrinks
                .lines
                .iter()
                .any(|line| line.contains("is not known: read /var/lib/kubelet"))
        );
        assert!(
            shrinks
                .lines
                .iter()
                .any(|line| line.contains("until 2 of its vCPUs are unplugged"))
        );
        let grows = answer(&vm(), 6, unknown());
        assert!(grows.lines.iter().any(|line| line.contains("plugs vCPUs")));
        assert_eq!(grows.cpus, "");
    }
}
