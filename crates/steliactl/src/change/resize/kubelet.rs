//! What kubelet would do with a resize of a VM's pod. Pure.

use kubelet_planner::merge::Policy;
use kubelet_planner::{Amounts, Container, ContainerKind, Cpus, Node, Resources, admit};
use stelia_cpus::CpuSet;
use stelia_model::Instance;
use stelia_node_plan::Subject;
use stelia_table::counted;

use super::vcpu_count;
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
    let mut lines = vec![
        "kubelet chose its CPUs: a resize of its pod changes them, and steliad follows kubelet's entry.".to_owned(),
    ];
    let unchanged = instance.exclusive.to_string();
    if to == from {
        lines.push(format!("It has the CPUs {unchanged} already."));
        return Answer { cpus: unchanged, lines };
    }
    match &subject {
        Err(cause) => lines.push(format!("What kubelet would answer is not known: {cause}")),
        Ok(subject) => {
            if let Some(line) = refusal(instance, to, subject) {
                lines.extend([line, format!("The VM keeps the CPUs {unchanged} then.")]);
                return Answer { cpus: unchanged, lines };
            }
            lines.push(gate(subject));
            let more = to
                .checked_sub(from)
                .and_then(|more| new_container(more, &subject.node).ok());
            lines.extend(more.map(|cpus| format!("Enough are free: a new container would be given the CPUs {cpus}.")));
        }
    }
    lines.push(follows(instance, to));
    Answer {
        cpus: String::new(),
        lines,
    }
}

/// Whether kubelet has the feature gate for exclusive CPUs; `None` if that is not known.
fn has_gate(subject: &Subject) -> Option<bool> {
    let gates = subject.gates.as_ref()?;
    Some(gates.get(GATE).copied().unwrap_or(false))
}

/// Why kubelet would not resize the pod, or not now.
fn refusal(instance: &Instance, to: usize, subject: &Subject) -> Option<String> {
    if has_gate(subject) == Some(false) {
        return Some(format!(
            "kubelet would refuse: its feature gate {GATE} is off, and the resize would be Infeasible."
        ));
    }
    let all: CpuSet = subject.topology.cpus.keys().copied().collect();
    let assignable = all.difference(&subject.reserved).len();
    if to > assignable {
        return Some(format!(
            "It would be refused, by the API server or by kubelet (Infeasible): containers can have {assignable} CPUs of this node."
        ));
    }
    let policy = subject.node.settings().topology_policy;
    if matches!(policy, Policy::Restricted | Policy::SingleNumaNode) {
        return Some(format!(
            "kubelet would put it off: with the Topology Manager's policy {} version 1.36 gives no running container another \
             number of CPUs, and the resize would be Deferred.",
            policy.name()
        ));
    }
    let rejection = new_container(to, &subject.node.without(instance.pod.as_str())).err()?;
    Some(format!(
        "kubelet would put it off, and the resize would be Deferred: {rejection}"
    ))
}

/// The CPUs that kubelet would give a new container of so many, or why it would not admit it.
fn new_container(cpus: usize, node: &Node) -> Result<CpuSet, String> {
    let amounts = Amounts {
        milli_cpus: Some(cpus as u64 * 1000),
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
    let admitted = admit(node, &pod).map_err(|rejection| rejection.to_string())?;
    match admitted.containers.into_iter().next().map(|one| one.cpus) {
        Some(Cpus::Exclusive(cpus)) => Ok(cpus),
        _ => Err("kubelet's CPU manager policy gives no exclusive CPUs".to_owned()),
    }
}

/// What kubelet does where nothing is against it.
fn gate(subject: &Subject) -> String {
    let admits = format!(
        "Up to 1.{LAST_WITHOUT_RESIZE} kubelet admits the resize and the container keeps its CPUs; whether a later version changes them is not known."
    );
    match has_gate(subject) {
        Some(true) => format!("kubelet's feature gate {GATE} is on. {admits}"),
        _ => format!("Whether kubelet has the feature gate {GATE} is not known. Without it kubelet refuses. {admits}"),
    }
}

/// What the VM does when its container has so many CPUs.
fn follows(instance: &Instance, to: usize) -> String {
    let superfluous = vcpu_count(instance).saturating_sub(to);
    let is_in_place = instance.scope == instance.origin;
    if to > instance.exclusive.len() {
        return format!("If the container is given {to} CPUs, stelia-runner plugs vCPUs, if the VMM has free slots.");
    }
    let remain = counted(to as u64, "CPU");
    match superfluous {
        0 => format!(
            "If the container is left with {remain}, the VM leaves the others at once: it has no more vCPUs than that."
        ),
        _ if is_in_place => format!(
            "If the container is left with {remain}, the VM leaves the others at once: in place nothing waits, and all its vCPUs share \
             what is left until some are unplugged."
        ),
        count => format!(
            "If the container is left with {remain}, the VM keeps its CPUs until {} unplugged, at most for unplug-timeout-s; then its \
             vCPUs share what is left.",
            match count {
                1 => "a vCPU is".to_owned(),
                count => format!("{count} vCPUs are"),
            }
        ),
    }
}

/// The command that resizes the pod.
pub(super) fn command(pod: &Pod, container: &str, cpus: u32) -> String {
    let (namespace, name) = if pod.pod_name.is_empty() {
        ("NAMESPACE", "POD")
    } else {
        (pod.pod_namespace.as_str(), pod.pod_name.as_str())
    };
    let amounts = format!("{{\"cpu\":\"{cpus}\"}}");
    format!(
        "kubectl patch pod {name} -n {namespace} --subresource resize --patch \
         '{{\"spec\":{{\"containers\":[{{\"name\":\"{container}\",\"resources\":{{\"requests\":{amounts},\"limits\":{amounts}}}}}]}}}}'"
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::tests::fixtures::says;

    const POD: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";

    fn vm() -> Instance {
        Instance {
            pod: stelia_kubelet::PodUid::parse(POD).unwrap(),
            exclusive: "2-5".parse().unwrap(),
            vcpus: vec![Default::default(); 4],
            origin: stelia_kernel::cgroup::CgroupPath::slice(),
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

    /// A node of 8 CPUs: 0 is reserved, 6-7 are another pod's, and 1 is free.
    fn subject(gate: Option<bool>, policy: &str, whole_cores: bool) -> Subject {
        let mut facts = stelia_koordinator::report::testing::facts();
        for (allocation, cpus) in facts.allocations.iter_mut().zip(["2-5", "6-7"]) {
            allocation.cpus = cpus.parse().unwrap();
        }
        (facts.exclusive, facts.shared) = ("2-7".parse().unwrap(), "0-1".parse().unwrap());
        facts.kubelet.alignment.as_mut().unwrap().policy = policy.to_owned();
        facts.kubelet.cpu_options = [("full-pcpus-only".to_owned(), whole_cores.to_string())].into();
        let mut subject = Subject::described(&facts).unwrap();
        subject.gates = gate.map(|on| [(GATE.to_owned(), on)].into());
        subject
    }

    /// The CPUs afterwards, and what is said.
    fn said(cpus: u32, subject: Result<&Subject, String>) -> (String, String) {
        let answer = answer(&vm(), cpus, subject);
        (answer.cpus, answer.lines.join("\n"))
    }

    #[test]
    fn what_is_not_known_is_said_and_what_the_vm_does_too() {
        let unknown = || Err("read /var/lib/kubelet: Permission denied".to_owned());
        let (cpus, lines) = said(2, unknown());
        assert!(lines.contains("is not known: read /var/lib/kubelet"), "{lines}");
        assert!(lines.contains("until 2 vCPUs are unplugged"), "{lines}");
        assert_eq!(cpus, "");
        let (cpus, lines) = said(6, unknown());
        assert!(lines.contains("plugs vCPUs"), "{lines}");
        assert_eq!(cpus, "");
        let (_, lines) = said(5, Ok(&subject(None, "none", false)));
        assert!(lines.contains("is not known. Without it kubelet refuses"), "{lines}");
    }

    #[rstest]
    #[case::no_gate(5, false, "none", false, "its feature gate")]
    #[case::no_gate_for_fewer(2, false, "none", false, "Infeasible")]
    #[case::more_than_there_are(8, true, "none", false, "containers can have 7 CPUs of this node")]
    #[case::more_than_are_free(6, true, "best-effort", false, "Deferred")]
    #[case::restricted(2, true, "restricted", false, "policy restricted")]
    #[case::single(5, true, "single-numa-node", false, "policy single-numa-node")]
    #[case::half_a_core_more(5, true, "none", true, "Deferred: SMT Alignment Error: requested 5")]
    #[case::half_a_core_less(3, true, "none", true, "Deferred: SMT Alignment Error: requested 3")]
    fn a_resize_that_is_refused_or_put_off_leaves_the_vm_its_cpus(
        #[case] cpus: u32,
        #[case] gate: bool,
        #[case] policy: &str,
        #[case] whole_cores: bool,
        #[case] reason: &str,
    ) {
        let (stay, lines) = said(cpus, Ok(&subject(Some(gate), policy, whole_cores)));
        assert_eq!(stay, "2-5", "{lines}");
        assert!(lines.contains(reason), "{lines}");
        assert!(!lines.contains("plug") && !lines.contains("admits"), "{lines}");
    }

    #[rstest]
    #[case::more(5, "plugs vCPUs")]
    #[case::fewer(2, "until 2 vCPUs are unplugged")]
    #[case::fewer_by_one(3, "until a vCPU is unplugged")]
    fn with_the_gate_it_is_said_that_the_cpus_stay_in_the_versions_that_are_known(
        #[case] cpus: u32,
        #[case] follows: &str,
    ) {
        let (known, lines) = said(cpus, Ok(&subject(Some(true), "none", false)));
        assert_eq!(known, "", "{lines}");
        says(&lines, &["admits the resize and the container keeps its CPUs"]);
        assert!(lines.contains(follows), "{lines}");
    }

    #[test]
    fn as_many_cpus_as_it_has_are_no_resize() {
        let (stay, lines) = said(4, Ok(&subject(Some(false), "none", false)));
        assert!(stay == "2-5" && lines.contains("already"), "{lines}");
        assert!(!lines.contains("refuse"), "{lines}");
    }
}
