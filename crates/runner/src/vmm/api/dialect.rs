//! The requests to Cloud Hypervisor and Firecracker, and their answers. Pure.
//!
//! Cloud Hypervisor: `vmm/src/api/openapi/cloud-hypervisor.yaml` and `docs/api.md` of its repository. Firecracker:
//! `src/firecracker/swagger/firecracker.yaml`. The answers are declared with the few fields that are read, and with run
//! states as texts, so that additions of a newer version are not errors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use crate::vmm::VmmKind;

/// A request. Its answer is empty or JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// JSON, or empty.
    pub(super) body: Cow<'static, str>,
    /// For messages.
    pub(super) name: &'static str,
}

impl Request {
    fn get(name: &'static str, path: &'static str) -> Request {
        Request::new(Method::GET, name, path, "")
    }

    pub(super) fn put(name: &'static str, path: &'static str) -> Request {
        Request::new(Method::PUT, name, path, "")
    }

    fn new(method: Method, name: &'static str, path: &'static str, body: &'static str) -> Request {
        Request {
            method,
            path,
            body: Cow::Borrowed(body),
            name,
        }
    }
}

/// A kind of HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    CloudHypervisor,
    Firecracker,
}

impl Dialect {
    /// `None` if the VMM has no HTTP API.
    pub(crate) fn of(kind: VmmKind) -> Option<Dialect> {
        match kind {
            VmmKind::Qemu => None,
            VmmKind::CloudHypervisor => Some(Dialect::CloudHypervisor),
            VmmKind::Firecracker => Some(Dialect::Firecracker),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Dialect::CloudHypervisor => VmmKind::CloudHypervisor.name(),
            Dialect::Firecracker => VmmKind::Firecracker.name(),
        }
    }

    pub(super) fn pause(self) -> Request {
        match self {
            Dialect::CloudHypervisor => Request::put("vm.pause", "/api/v1/vm.pause"),
            Dialect::Firecracker => Request::new(Method::PATCH, "PATCH /vm", "/vm", r#"{"state":"Paused"}"#),
        }
    }

    pub(super) fn resume(self) -> Request {
        match self {
            Dialect::CloudHypervisor => Request::put("vm.resume", "/api/v1/vm.resume"),
            Dialect::Firecracker => Request::new(Method::PATCH, "PATCH /vm", "/vm", r#"{"state":"Resumed"}"#),
        }
    }

    /// `None` if the VMM cannot change the number of vCPUs.
    pub(super) fn resize(self, vcpus: u32) -> Option<Request> {
        match self {
            Dialect::CloudHypervisor => Some(Request {
                body: Cow::Owned(format!(r#"{{"desired_vcpus": {vcpus}}}"#)),
                ..Request::put("vm.resize", "/api/v1/vm.resize")
            }),
            Dialect::Firecracker => None,
        }
    }

    /// The answer is for [`Dialect::run_state`].
    pub(super) fn state(self) -> Request {
        match self {
            Dialect::CloudHypervisor => Request::get("vm.info", "/api/v1/vm.info"),
            Dialect::Firecracker => Request::get("GET /", "/"),
        }
    }

    /// The answer is for [`Dialect::shape`].
    pub(super) fn configuration(self) -> Request {
        match self {
            Dialect::CloudHypervisor => Request::get("vm.info", "/api/v1/vm.info"),
            Dialect::Firecracker => Request::get("GET /machine-config", "/machine-config"),
        }
    }

    /// Firecracker has no power button: an operating system reboots on Ctrl+Alt+Del, and Firecracker ends when a guest reboots.
    pub(super) fn power_button(self) -> Request {
        match self {
            Dialect::CloudHypervisor => Request::put("vm.power-button", "/api/v1/vm.power-button"),
            Dialect::Firecracker => Request::new(
                Method::PUT,
                "SendCtrlAltDel",
                "/actions",
                r#"{"action_type":"SendCtrlAltDel"}"#,
            ),
        }
    }

    /// `None` if only SIGTERM ends the VMM.
    pub(super) fn quit(self) -> Option<Request> {
        match self {
            Dialect::CloudHypervisor => Some(Request::put("vmm.shutdown", "/api/v1/vmm.shutdown")),
            Dialect::Firecracker => None,
        }
    }

    /// Whether the VMM accepts a request to pause a guest that is paused already. Cloud Hypervisor refuses it.
    pub(super) fn pauses_twice(self) -> bool {
        self == Dialect::Firecracker
    }

    /// The longest interval of queries for the run state of a booted VM. Firecracker logs every request.
    pub(super) fn max_query_interval(self) -> Duration {
        Duration::from_secs(match self {
            Dialect::CloudHypervisor => 5,
            Dialect::Firecracker => 60,
        })
    }

    /// The run state, by its QMP name where QMP has one.
    pub(super) fn run_state(self, answer: &[u8]) -> Result<String, serde_json::Error> {
        let state = serde_json::from_slice::<StateAnswer>(answer)?.state;
        Ok(match state.as_str() {
            "Created" | "Not started" => "prelaunch".into(),
            "BreakPoint" => "debug".into(),
            other => other.to_lowercase(),
        })
    }

    /// Whether the VMM refuses the query for the run state with this HTTP status because it has no VM yet.
    pub(super) fn has_no_vm(self, status: u16) -> bool {
        // Older versions of Cloud Hypervisor answer 500; there is no other reason for vm.info to fail.
        self == Dialect::CloudHypervisor && matches!(status, 404 | 500)
    }

    pub(super) fn shape(self, answer: &[u8]) -> Result<Shape, serde_json::Error> {
        match self {
            Dialect::CloudHypervisor => serde_json::from_slice::<VmInfo>(answer).map(Shape::from),
            Dialect::Firecracker => serde_json::from_slice::<MachineConfiguration>(answer).map(Shape::from),
        }
    }
}

/// The fields that both VMMs have and that are read; all others are ignored.
#[derive(Debug, Deserialize)]
struct StateAnswer {
    state: String,
}

#[derive(Debug, Deserialize)]
struct VmInfo {
    config: VmConfig,
}

#[derive(Debug, Deserialize)]
struct VmConfig {
    cpus: CpusConfig,
    #[serde(default)]
    numa: Option<Vec<NumaConfig>>,
}

#[derive(Debug, Deserialize)]
struct CpusConfig {
    boot_vcpus: u32,
    #[serde(default)]
    max_vcpus: Option<u32>,
    #[serde(default)]
    topology: Option<Topology>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Topology {
    threads_per_core: u32,
    cores_per_die: u32,
    dies_per_package: u32,
}

#[derive(Debug, Deserialize)]
struct NumaConfig {
    guest_numa_id: u32,
    #[serde(default)]
    cpus: Option<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
struct MachineConfiguration {
    vcpu_count: u32,
    #[serde(default)]
    smt: bool,
}

/// The VM's vCPUs and their topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// How many there are.
    pub(super) vcpus: u32,
    /// How many there can be.
    pub(super) max: u32,
    topology: Option<Topology>,
    /// Guest NUMA node by vCPU.
    nodes: BTreeMap<u32, u32>,
}

impl Shape {
    /// The vCPU's place in the guest's topology, as the properties of AttachVcpus. Both VMMs number threads first, then cores,
    /// dies and sockets.
    pub(super) fn props(&self, index: u32) -> BTreeMap<String, Value> {
        let mut props = BTreeMap::new();
        let mut put = |name: &str, value: u32| drop(props.insert(name.to_owned(), Value::from(value)));
        if let Some(topology) = self.topology {
            let mut rest = index;
            let levels = [
                ("thread-id", topology.threads_per_core),
                ("core-id", topology.cores_per_die),
                ("die-id", topology.dies_per_package),
            ];
            for (name, size) in levels {
                // The configuration may have a zero.
                put(name, rest % size.max(1));
                rest /= size.max(1);
            }
            put("socket-id", rest);
        }
        if let Some(node) = self.nodes.get(&index) {
            put("node-id", *node);
        }
        props
    }
}

impl From<VmInfo> for Shape {
    fn from(VmInfo { config }: VmInfo) -> Shape {
        let numa = config.numa.unwrap_or_default();
        let nodes = numa.iter().flat_map(|node| {
            let cpus = node.cpus.iter().flatten();
            cpus.map(|cpu| (*cpu, node.guest_numa_id))
        });
        Shape {
            vcpus: config.cpus.boot_vcpus,
            max: config.cpus.max_vcpus.unwrap_or(config.cpus.boot_vcpus),
            topology: config.cpus.topology,
            nodes: nodes.collect(),
        }
    }
}

impl From<MachineConfiguration> for Shape {
    fn from(machine: MachineConfiguration) -> Shape {
        let siblings = Topology {
            threads_per_core: 2,
            cores_per_die: machine.vcpu_count.div_ceil(2),
            dies_per_package: 1,
        };
        Shape {
            vcpus: machine.vcpu_count,
            max: machine.vcpu_count,
            topology: machine.smt.then_some(siblings),
            nodes: BTreeMap::new(),
        }
    }
}

/// The text of a refusal: Firecracker's `fault_message`, Cloud Hypervisor's list of causes, or the answer itself.
pub(super) fn refusal(status: u16, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let causes = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    let causes = causes.collect::<Vec<_>>().join(": ");
    let text = match value.get("fault_message").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None if !causes.is_empty() => causes,
        None => String::from_utf8_lossy(body).into_owned(),
    };
    let text = text.trim();
    let excerpt: String = text.chars().take(300).collect();
    let dots = if excerpt.len() < text.len() { "…" } else { "" };
    match excerpt.as_str() {
        "" => format!("status {status}"),
        _ => format!("{excerpt}{dots} (status {status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    use Dialect::{CloudHypervisor, Firecracker};

    #[rstest]
    #[case(
        CloudHypervisor,
        r#"{"config":{},"state":"Running","memory_actual_size":1}"#,
        "running"
    )]
    #[case(CloudHypervisor, r#"{"state":"Created"}"#, "prelaunch")]
    #[case(CloudHypervisor, r#"{"state":"Shutdown"}"#, "shutdown")]
    #[case(CloudHypervisor, r#"{"state":"Paused"}"#, "paused")]
    #[case(CloudHypervisor, r#"{"state":"BreakPoint"}"#, "debug")]
    #[case(
        Firecracker,
        r#"{"id":"a","state":"Not started","vmm_version":"1","app_name":"F"}"#,
        "prelaunch"
    )]
    #[case(Firecracker, r#"{"state":"Running"}"#, "running")]
    #[case(Firecracker, r#"{"state":"New In 99"}"#, "new in 99")]
    fn run_states_have_the_names_that_qmp_gives_them(
        #[case] dialect: Dialect,
        #[case] answer: &str,
        #[case] expected: &str,
    ) {
        assert_eq!(dialect.run_state(answer.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn one_that_logs_every_request_is_asked_once_a_minute() {
        assert_eq!(Firecracker.max_query_interval(), Duration::from_secs(60));
        assert!(CloudHypervisor.max_query_interval() >= Duration::from_secs(5));
    }

    fn props(shape: &Shape, index: u32) -> Vec<(String, u64)> {
        let props = shape.props(index).into_iter();
        props.map(|(name, value)| (name, value.as_u64().unwrap())).collect()
    }

    #[test]
    fn cloud_hypervisors_topology_numbers_threads_first() {
        let info = br#"{"config":{"cpus":{"boot_vcpus":6,"max_vcpus":8,"kvm_hyperv":false,
            "topology":{"threads_per_core":2,"cores_per_die":2,"dies_per_package":1,"packages":2}},
            "numa":[{"guest_numa_id":0,"cpus":[0,1,2,3]},{"guest_numa_id":1,"cpus":[4,5,6,7]},{"guest_numa_id":2,"cpus":null}]},
            "state":"Paused"}"#;
        let shape = CloudHypervisor.shape(info).unwrap();
        assert_eq!((shape.vcpus, shape.max), (6, 8));
        let expected = [
            ("core-id", 0),
            ("die-id", 0),
            ("node-id", 1),
            ("socket-id", 1),
            ("thread-id", 1),
        ];
        assert_eq!(props(&shape, 5), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn without_a_topology_the_vcpus_have_no_places() {
        for config in [
            r#"{"boot_vcpus":2}"#,
            r#"{"boot_vcpus":2,"max_vcpus":2,"topology":null}"#,
        ] {
            let info = format!(r#"{{"config":{{"cpus":{config},"numa":null}}}}"#);
            let shape = CloudHypervisor.shape(info.as_bytes()).unwrap();
            assert_eq!(shape.vcpus, 2);
            assert!(shape.props(1).is_empty());
        }
    }

    #[test]
    fn firecrackers_smt_makes_siblings_of_two_neighbours() {
        let shape = Firecracker
            .shape(br#"{"vcpu_count":4,"mem_size_mib":128,"smt":true}"#)
            .unwrap();
        let expected = [("core-id", 1), ("die-id", 0), ("socket-id", 0), ("thread-id", 1)];
        assert_eq!(props(&shape, 3), expected.map(|(name, value)| (name.to_owned(), value)));
        let shape = Firecracker.shape(br#"{"vcpu_count":4,"smt":false}"#).unwrap();
        assert!(shape.props(3).is_empty());
    }

    #[rstest]
    #[case(
        400,
        r#"{"fault_message":"not supported before starting the microVM."}"#,
        "not supported before starting the microVM. (status 400)"
    )]
    #[case(
        500,
        r#"["Error from API","The VM could not be paused"]"#,
        "Error from API: The VM could not be paused (status 500)"
    )]
    #[case(500, "VmNotRunning\n", "VmNotRunning (status 500)")]
    #[case(405, "", "status 405")]
    #[case(500, "[]", "[] (status 500)")]
    fn a_refusal_has_a_text(#[case] status: u16, #[case] body: &str, #[case] expected: &str) {
        assert_eq!(refusal(status, body.as_bytes()), expected);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_is_too_odd(status: u16, body: Vec<u8>, index: u32, text: String) {
            assert!(refusal(status, &body).chars().count() < 400);
            assert!(refusal(status, text.as_bytes()).chars().count() < 400);
            for dialect in [CloudHypervisor, Firecracker] {
                let _ = dialect.run_state(&body);
                if let Ok(shape) = dialect.shape(&body) {
                    shape.props(index);
                }
            }
        }

        #[test]
        fn no_topology_is_too_odd(threads: u32, cores: u32, dies: u32, index: u32) {
            let topology = format!(r#"{{"threads_per_core":{threads},"cores_per_die":{cores},"dies_per_package":{dies}}}"#);
            let info = format!(r#"{{"config":{{"cpus":{{"boot_vcpus":1,"topology":{topology}}}}}}}"#);
            assert_eq!(CloudHypervisor.shape(info.as_bytes()).unwrap().props(index).len(), 4);
        }
    }
}
