//! What the file says of the node: read from the host, and decided from the engine's view.

use std::collections::BTreeMap;

use serde_json::Value;
use stelia_api::publication::{Ready, Summary};
use stelia_api::{Error, ErrorKind};
use stelia_cpus::text::excerpt;
use stelia_kernel::System;
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::Profile;
use stelia_kubelet::config;
use stelia_model as model;

use super::pod_messages::waiting_too_long;
use crate::engine::{Configuration, ObjectForm, node_name, node_topology};
use crate::kubelet_config::Read;

/// What was read of the host.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// kubelet's configuration, or why it cannot be read. `None` where no kubelet is known to run: the object has less then, and nothing wrong.
    pub(super) config: Read,
    /// The same, or why it is not the one that kubelet has.
    pub(super) known: Read,
    /// What the Node is called, or why nothing can be.
    pub(super) name: Result<String, String>,
    pub(super) object: Result<Value, Error>,
}

impl Host {
    /// Blocks.
    pub(super) fn read(system: &System, view: &model::Node, config: Read, profile: Profile) -> Self {
        let name = node_name(config.as_ref().ok().and_then(Option::as_ref));
        let known = certain(config.clone(), view.kubelet_policy.as_deref());
        let told = known.as_ref().map(Option::as_ref).map_err(String::as_str);
        let object = match &name {
            Ok(name) => object(system, view, told, name.clone(), profile),
            Err(cause) => Err(Error::failed(cause)),
        };
        Self {
            name: name.map_err(|cause| cause.to_string()),
            object,
            config,
            known,
        }
    }
}

/// An error where the policy of kubelet's state file shows that a flag is hidden which overrides the configuration.
fn certain(config: Read, stored: Option<&str>) -> Read {
    match config {
        Ok(Some(config)) if config.is_overridden(stored) => Err(format!(
            "kubelet's settings are not known: {}; cpuManagerPolicy is {} there, and {} in cpu_manager_state",
            config::HIDDEN,
            config.cpu_manager_policy,
            stored.unwrap_or_default()
        )),
        config => config,
    }
}

fn object(
    system: &System,
    view: &model::Node,
    config: Configuration<'_>,
    name: String,
    profile: Profile,
) -> Result<Value, Error> {
    let form = ObjectForm {
        profile,
        // The one that the profile's readers take.
        version: profile.version(None).unwrap_or(ApiVersion::V1Alpha2),
        method: Method::default(),
    };
    let object = node_topology(system, view, config, name, form)?;
    serde_json::to_value(&object).map_err(ErrorKind::Failed.context("write the object"))
}

/// Whether VMs can be admitted. `unread`: why kubelet's configuration cannot be read. The message names no pod: whoever may read Nodes reads
/// it.
pub(super) fn ready(view: &model::Node, unread: Option<&String>, object: &Result<Value, Error>) -> Ready {
    let not = |reason: &str, message: &str| Ready {
        status: false,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match (view.admission_problem(), object) {
        (Some(problem), _) => not(problem.reason(), problem.text()),
        (None, Err(error)) if error.kind == ErrorKind::KubeletStateUnusable => {
            not("KubeletStateUnusable", &error.to_string())
        }
        (None, Err(_)) if unread.is_some() && view.cpu_source.needs_static_policy() => {
            not("KubeletConfigUnreadable", unread.map_or("", String::as_str))
        }
        (None, Err(error)) => not("HostNotReadable", &error.to_string()),
        (None, Ok(_)) => Ready {
            status: true,
            reason: "Ready".to_owned(),
            message: "VMs can be admitted".to_owned(),
        },
    }
}

/// The node in a few words and numbers.
pub(super) fn summary(view: &model::Node, ready: &Ready, now_us: u64) -> Summary {
    let mut instances: BTreeMap<String, u64> = BTreeMap::new();
    for instance in view.instances.values() {
        *instances.entry(instance.state.to_string()).or_default() += 1;
    }
    let degraded = view.instances.values().filter(|instance| !instance.degraded.is_empty());
    Summary {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        reason: ready.reason.clone(),
        message: if ready.status {
            String::new()
        } else {
            excerpt::cause(&ready.message)
        },
        instances,
        degraded: degraded.count() as u64,
        problems: problem_codes(view),
        waiting_too_long: waiting_too_long(&view.instances, now_us),
    }
}

fn problem_codes(view: &model::Node) -> Vec<String> {
    let mut codes: Vec<String> = view.problems().iter().map(|problem| problem.code.to_string()).collect();
    codes.dedup();
    codes
}

/// Whether two views differ in what the file says. Parts that are the same value in memory are not compared.
pub(super) fn differs(was: &model::Node, now: &model::Node) -> bool {
    was.cpu_source != now.cpu_source
        || was.pool != now.pool
        || was.pools != now.pools
        || was.kubelet_problem != now.kubelet_problem
        || problem_codes(was) != problem_codes(now)
        || was.entries != now.entries
        || was.pod_entries != now.pod_entries
        || was.kubelet_cpus != now.kubelet_cpus
        || was.kubelet_policy != now.kubelet_policy
        || was.topology != now.topology
        || was.instances != now.instances
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stelia_api::{Reason, ReasonCode, State};
    use stelia_cpus::CpuSet;
    use stelia_cpus::testing::Shape;
    use stelia_kubelet::PodUid;

    use stelia_koordinator::allocator::CpuSource;

    use super::*;
    use stelia_kubelet::KubeletConfig;

    fn view() -> model::Node {
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 2,
            interleaved: false,
        };
        model::Node {
            cpu_source: CpuSource::Kubelet,
            pool: Some("0-7".parse().unwrap()),
            topology: Arc::new(shape.topology()),
            ..model::Node::default()
        }
    }

    #[test]
    fn the_node_is_ready_when_nothing_keeps_a_vm_from_being_admitted() {
        let object: Result<Value, Error> = Ok(Value::Null);
        let told = |view: &model::Node, object| {
            let ready = ready(view, None, object);
            (ready.status, ready.reason, ready.message)
        };
        let not = |reason: &str, message: &str| (false, reason.to_owned(), message.to_owned());
        assert!(told(&view(), &object).0);
        let slow = model::Node {
            systemd_problem: Some("no answer".to_owned()),
            ..view()
        };
        assert_eq!(
            told(&slow, &object),
            not("SystemdNotAnswering", "systemd (PID 1) does not answer")
        );
        let full = model::Node {
            pool: Some(CpuSet::new()),
            ..view()
        };
        assert_eq!(
            told(&full, &object),
            not("KubeletStateUnusable", "kubelet's shared pool is empty")
        );
        let unread: Result<Value, Error> = Err(ErrorKind::KubeletStateUnusable.because("not read yet"));
        assert_eq!(told(&view(), &unread), not("KubeletStateUnusable", "not read yet"));
        let hidden: Result<Value, Error> = Err(ErrorKind::Failed.because("read /sys"));
        assert_eq!(told(&view(), &hidden), not("HostNotReadable", "read /sys"));
        let told =
            |view: &model::Node| ready(view, Some(&"kubelet would not start: k.yaml".to_owned()), &hidden).reason;
        assert_eq!(told(&view()), "KubeletConfigUnreadable");
        // Where steliad chooses the CPUs another reason is needed.
        let steliads = model::Node {
            cpu_source: CpuSource::Steliad,
            ..view()
        };
        assert_eq!(told(&steliads), "HostNotReadable");
        let told = |view: &model::Node, object| {
            let ready = ready(view, None, object);
            (ready.status, ready.reason, ready.message)
        };
        let broken = model::Node {
            kubelet_problem: Some("pod team-a/web has CPU 99".to_owned()),
            ..slow
        };
        // The object is read by others than the pod's tenant.
        assert_eq!(
            told(&broken, &unread),
            not("KubeletStateUnusable", "kubelet's CPU manager state cannot be used")
        );
    }

    #[test]
    fn the_summary_counts_instances_by_state_and_says_why_no_vm_is_admitted() {
        let instance = |uid: &str, state: State, degraded: Vec<Reason>| {
            let pod = PodUid::parse(uid).unwrap();
            let instance = model::Instance {
                state,
                degraded,
                pod: pod.clone(),
                ..model::Instance::default()
            };
            (pod, Arc::new(instance))
        };
        let mut view = view();
        view.instances = [
            instance("00000000-0000-4000-8000-000000000001", State::Isolated, Vec::new()),
            instance(
                "00000000-0000-4000-8000-000000000002",
                State::Isolated,
                vec![Reason::of_node(ReasonCode::StepFailed, "")],
            ),
            instance("00000000-0000-4000-8000-000000000003", State::Waiting, Vec::new()),
        ]
        .into();
        let no = Ready {
            status: false,
            reason: "KubeletStateUnusable".to_owned(),
            message: "wrong checksum".to_owned(),
        };
        let told = summary(&view, &no, 0);
        assert_eq!(
            told.instances,
            BTreeMap::from([("waiting".to_owned(), 1), ("isolated".to_owned(), 2)])
        );
        assert_eq!(
            (told.degraded, told.reason.as_str(), told.message.as_str()),
            (1, "KubeletStateUnusable", "wrong checksum")
        );
        let yes = Ready {
            status: true,
            reason: "Ready".to_owned(),
            message: "VMs can be admitted".to_owned(),
        };
        assert_eq!(summary(&view, &yes, 0).message, "");
    }

    #[test]
    fn a_policy_that_a_hidden_flag_overrides_is_a_problem() {
        let read = |hidden| {
            let config = KubeletConfig {
                hidden,
                ..KubeletConfig::default()
            };
            Ok(Some(config))
        };
        let problem = certain(read(true), Some("static")).unwrap_err();
        assert!(
            problem.contains("k3s hides") && problem.contains("cpu_manager_state"),
            "{problem}"
        );
        for (config, stored) in [
            (read(true), Some("none")),
            (read(true), None),
            (read(false), Some("static")),
        ] {
            assert_eq!(certain(config.clone(), stored), config);
        }
    }

    #[test]
    fn what_the_file_does_not_say_is_no_difference() {
        let was = view();
        let mut now = model::Node {
            offline: "9".parse().unwrap(),
            ..was.clone()
        };
        now.counters.drift_found = 3;
        assert!(!differs(&was, &now));
        now.kubelet_policy = Some("static".to_owned());
        assert!(differs(&was, &now));
    }
}
