//! What the file says of the node: read from the host, and decided from the engine's view.

use serde_json::Value;
use stelia_allocator::CpuSource;
use stelia_api::{Error, ErrorKind};
use stelia_cpus::CpuSet;
use stelia_kubelet::KubeletConfig;
use stelia_kubelet::config;
use stelia_node::System;
use stelia_node_report::ApiVersion;
use stelia_node_report::fingerprint::Method;
use stelia_node_report::profile::Profile;
use stelia_publication::Ready;

use crate::engine::{ObjectForm, View, node_name, node_object};

/// What was read of the host.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// `None` where it is not known: the object has less then, and nothing wrong.
    pub(super) config: Option<KubeletConfig>,
    /// What the Node is called, or why nothing can be.
    pub(super) name: Result<String, String>,
    pub(super) object: Result<Value, Error>,
}

impl Host {
    /// Blocks. `config`: kubelet's configuration as it was read before; to find it all of `/proc` is looked through.
    pub(super) fn read(system: &System, view: &View, config: Option<KubeletConfig>, profile: Profile) -> Self {
        let name = node_name(config.as_ref());
        let object = match &name {
            Ok(name) => object(system, view, config.as_ref(), name.clone(), profile),
            Err(cause) => Err(ErrorKind::Failed.because(cause.to_string())),
        };
        Self {
            name: name.map_err(|cause| cause.to_string()),
            object,
            config,
        }
    }
}

/// The running kubelet's configuration. Blocks.
pub(super) fn kubelet_config(system: &System) -> Option<KubeletConfig> {
    let root = system.root();
    config::read(&root.join("proc"), root).ok()
}

fn object(
    system: &System,
    view: &View,
    config: Option<&KubeletConfig>,
    name: String,
    profile: Profile,
) -> Result<Value, Error> {
    let form = ObjectForm {
        profile,
        // The one that the profile's readers take.
        version: profile.version(None).unwrap_or(ApiVersion::V1Alpha2),
        method: Method::default(),
    };
    let object = node_object(system, view, config, name, form)?;
    serde_json::to_value(&object).map_err(ErrorKind::Failed.context("write the object"))
}

/// Whether VMs can be admitted.
pub(super) fn ready(view: &View, object: &Result<Value, Error>) -> Ready {
    let not = |reason: &str, message: &str| Ready {
        status: false,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match (&view.kubelet_problem, &view.systemd_problem, object) {
        (Some(problem), _, _) => not("KubeletStateUnusable", problem),
        (None, Some(problem), _) => not("SystemdNotAnswering", problem),
        (None, None, Err(error)) if error.kind == ErrorKind::KubeletStateUnusable => {
            not("KubeletStateUnusable", &error.to_string())
        }
        (None, None, Err(error)) => not("HostNotReadable", &error.to_string()),
        (None, None, Ok(_)) => Ready {
            status: true,
            reason: "Ready".to_owned(),
            message: "VMs can be admitted".to_owned(),
        },
    }
}

/// Of how many VMs the node has room at most: one CPU each of those that are not reserved. `reserved`: steliad's own setting.
pub(super) fn vm_capacity(view: &View, config: Option<&KubeletConfig>, reserved: &CpuSet) -> u32 {
    let reserved = match view.cpu_source {
        CpuSource::Steliad => reserved.clone(),
        CpuSource::Kubelet => config
            .map(|config| config.reserved_system_cpus.clone())
            .unwrap_or_default(),
    };
    let free = view.topology.online().difference(&reserved);
    u32::try_from(free.len()).unwrap_or(u32::MAX)
}

/// Whether two views differ in what the file says. Parts that are the same value in memory are not compared.
pub(super) fn differs(was: &View, now: &View) -> bool {
    was.cpu_source != now.cpu_source
        || was.pool != now.pool
        || was.pools != now.pools
        || was.kubelet_problem != now.kubelet_problem
        || was.systemd_problem != now.systemd_problem
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

    use stelia_cpus::testing::Shape;

    use super::*;

    fn view() -> View {
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 2,
            interleaved: false,
        };
        View {
            topology: Arc::new(shape.topology()),
            ..View::default()
        }
    }

    #[test]
    fn the_node_is_ready_when_nothing_keeps_a_vm_from_being_admitted() {
        let object: Result<Value, Error> = Ok(Value::Null);
        let told = |view: &View, object| {
            let ready = ready(view, object);
            (ready.status, ready.reason, ready.message)
        };
        let not = |reason: &str, message: &str| (false, reason.to_owned(), message.to_owned());
        assert!(told(&view(), &object).0);
        let slow = View {
            systemd_problem: Some("no answer".to_owned()),
            ..view()
        };
        assert_eq!(told(&slow, &object), not("SystemdNotAnswering", "no answer"));
        let unread: Result<Value, Error> = Err(ErrorKind::KubeletStateUnusable.because("not read yet"));
        assert_eq!(told(&view(), &unread), not("KubeletStateUnusable", "not read yet"));
        let hidden: Result<Value, Error> = Err(ErrorKind::Failed.because("read /sys"));
        assert_eq!(told(&view(), &hidden), not("HostNotReadable", "read /sys"));
        let broken = View {
            kubelet_problem: Some("wrong checksum".to_owned()),
            ..slow
        };
        assert_eq!(told(&broken, &unread), not("KubeletStateUnusable", "wrong checksum"));
    }

    #[test]
    fn there_is_room_for_a_vm_on_each_cpu_that_is_not_reserved() {
        let config = KubeletConfig {
            reserved_system_cpus: "0-1,9".parse().unwrap(),
            ..KubeletConfig::default()
        };
        let own: CpuSet = "0".parse().unwrap();
        assert_eq!(vm_capacity(&view(), None, &own), 8);
        assert_eq!(vm_capacity(&view(), Some(&config), &own), 6);
        let steliads = View {
            cpu_source: CpuSource::Steliad,
            ..view()
        };
        assert_eq!(vm_capacity(&steliads, Some(&config), &own), 7);
    }

    #[test]
    fn what_the_file_does_not_say_is_no_difference() {
        let was = view();
        let mut now = View {
            offline: "9".parse().unwrap(),
            ..was.clone()
        };
        now.counters.drift_found = 3;
        assert!(!differs(&was, &now));
        now.kubelet_policy = Some("static".to_owned());
        assert!(differs(&was, &now));
    }
}
