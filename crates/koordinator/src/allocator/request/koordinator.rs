//! Koordinator's annotations of a pod: `scheduling.koordinator.sh/resource-spec`, by the pod's author, and
//! `scheduling.koordinator.sh/resource-status`, by a scheduler.
//!
//! The names are those of Koordinator's `apis/extension/resource.go` and of its proposal of fine-grained CPU
//! orchestration. Unknown fields are refused: either what a pod was promised is followed, or the VM does not start. An
//! annotation that the pod does not have is an empty text.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IgnoredAny, IntoDeserializer};
use stelia_cpus::NodeSet;
use stelia_cpus::text::excerpt;

use crate::allocator::{AllocationRequest, Schedule};

/// What the pod's author asks for.
pub const RESOURCE_SPEC: &str = "scheduling.koordinator.sh/resource-spec";
/// What a scheduler chose for the pod.
pub const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResourceSpec {
    #[serde(rename = "requiredCPUBindPolicy")]
    required_bind: String,
    #[serde(rename = "preferredCPUBindPolicy")]
    preferred_bind: String,
    #[serde(rename = "preferredCPUExclusivePolicy")]
    preferred_exclusive: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResourceStatus {
    cpuset: String,
    #[serde(rename = "numaNodeResources")]
    numa_nodes: Vec<NumaNode>,
    #[serde(rename = "cpuSharedPools")]
    shared_pools: Vec<SharedPool>,
}

/// The amounts are the scheduler's bookkeeping and are ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumaNode {
    node: u32,
    #[serde(default, rename = "resources")]
    _resources: BTreeMap<String, IgnoredAny>,
}

/// How the proposal names a NUMA node to an LS pod. The node decides which CPUs the pool has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedPool {
    #[serde(default, rename = "socket")]
    _socket: u32,
    node: u32,
    #[serde(default, rename = "cpuset")]
    _cpuset: String,
}

/// A JSON object; an empty text, which stands for a missing annotation, gives the default.
fn object<T: DeserializeOwned + Default>(text: &str) -> Result<T, String> {
    match text.trim() {
        "" => Ok(T::default()),
        text => serde_json::from_str(text).map_err(|cause| excerpt::cause(&cause)),
    }
}

/// Adds what a resource-spec requests.
///
/// # Errors
/// It does not parse, or contradicts what was requested before.
pub fn add_spec(request: &mut AllocationRequest, text: &str) -> Result<(), String> {
    let spec: ResourceSpec = object(text)?;
    let AllocationRequest {
        required_cpu_bind_policy: required,
        cpu_bind_policy: preferred,
        cpu_exclusive_policy: exclusive,
        ..
    } = request;
    let names = ("requiredCPUBindPolicy", "--required-cpu-bind-policy");
    add_policy(required, names, &spec.required_bind)?;
    let names = ("preferredCPUBindPolicy", "--cpu-bind-policy");
    add_policy(preferred, names, &spec.preferred_bind)?;
    let names = ("preferredCPUExclusivePolicy", "--cpu-exclusive-policy");
    add_policy(exclusive, names, &spec.preferred_exclusive)
}

/// Requests a policy by its name in the annotation; an empty name requests nothing. The command line must not name
/// another.
fn add_policy<T: DeserializeOwned + PartialEq>(
    given: &mut Option<T>,
    (name, option): (&str, &str),
    value: &str,
) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    let read = |value: StrDeserializer<'_, ValueError>| T::deserialize(value);
    let found = read(value.into_deserializer()).map_err(|cause| format!("{name}: {}", excerpt::cause(&cause)))?;
    match given {
        Some(given) if *given != found => Err(format!("it says something else than {option} on the command line")),
        _ => {
            *given = Some(found);
            Ok(())
        }
    }
}

/// What a resource-status says.
///
/// # Errors
/// It does not parse.
pub fn schedule(text: &str) -> Result<Schedule, String> {
    let status: ResourceStatus = object(text)?;
    let cpus = match status.cpuset.trim() {
        "" => None,
        list => Some(list.parse().map_err(|cause| format!("cpuset: {cause}"))?),
    };
    let resources = status.numa_nodes.iter().map(|one| one.node);
    let pools = status.shared_pools.iter().map(|one| one.node);
    let nodes: NodeSet = resources.chain(pools).collect();
    Ok(Schedule {
        cpus,
        nodes: (!nodes.is_empty()).then_some(nodes),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::allocator::{CpuBindPolicy, CpuExclusivePolicy};

    fn spec(text: &str) -> Result<AllocationRequest, String> {
        let mut options = AllocationRequest::default();
        add_spec(&mut options, text).map(|()| options)
    }

    #[rstest]
    #[case("", None, &[])]
    #[case("\n", None, &[])]
    #[case("{}", None, &[])]
    #[case(r#"{"cpuset":"0-3"}"#, Some("0-3"), &[])]
    #[case(r#"{"cpuset":"0-3\n","numaNodeResources":[{"node":1,"resources":{"cpu":"4","memory":"8Gi"}}]}"#, Some("0-3"), &[1])]
    #[case(r#"{"numaNodeResources":[{"node":0},{"node":1}]}"#, None, &[0, 1])]
    #[case(r#"{"cpuSharedPools":[{"socket":0,"node":1,"cpuset":""}]}"#, None, &[1])]
    fn what_the_scheduler_chose_is_read(#[case] text: &str, #[case] cpus: Option<&str>, #[case] nodes: &[u32]) {
        let expected = Schedule {
            cpus: cpus.map(|cpus| cpus.parse().unwrap()),
            nodes: (!nodes.is_empty()).then(|| nodes.iter().copied().collect()),
        };
        assert_eq!(schedule(text), Ok(expected));
    }

    #[rstest]
    #[case("0-3", "line 1")]
    #[case(r#"{"cpuset":"3-0"}"#, "cpuset: ")]
    #[case(r#"{"cpuset":4}"#, "expected a string")]
    #[case(r#"{"cpuset":"0-3","device":"1"}"#, "unknown field")]
    #[case(r#"{"numaNodeResources":[{"node":-1}]}"#, "-1")]
    #[case(r#"{"cpuset":"0-3"} {}"#, "trailing")]
    fn what_is_not_understood_is_named(#[case] text: &str, #[case] told: &str) {
        let error = schedule(text).unwrap_err();
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn what_the_pod_asks_for_is_read() {
        assert_eq!(spec("").unwrap(), AllocationRequest::default());
        let asked = spec(
            r#"{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"Default","preferredCPUExclusivePolicy":"PCPULevel"}"#,
        );
        let expected = AllocationRequest {
            required_cpu_bind_policy: Some(CpuBindPolicy::FullPcpus),
            cpu_bind_policy: Some(CpuBindPolicy::Default),
            cpu_exclusive_policy: Some(CpuExclusivePolicy::PcpuLevel),
            ..AllocationRequest::default()
        };
        assert_eq!(asked.unwrap(), expected);
        let wrong = spec(r#"{"preferredCPUBindPolicy":"Full"}"#).unwrap_err();
        assert!(
            wrong.contains("preferredCPUBindPolicy") && wrong.contains("SpreadByPCPUs"),
            "{wrong}"
        );
        assert!(
            spec(r#"{"preferredCPUBindpolicy":"FullPCPUs"}"#)
                .unwrap_err()
                .contains("unknown field")
        );
    }

    #[test]
    fn the_command_line_and_the_annotation_must_not_contradict_each_other() {
        let with = |bind| {
            let mut options = AllocationRequest {
                cpu_bind_policy: Some(bind),
                ..AllocationRequest::default()
            };
            add_spec(&mut options, r#"{"preferredCPUBindPolicy":"FullPCPUs"}"#)
        };
        assert_eq!(with(CpuBindPolicy::FullPcpus), Ok(()));
        let error = with(CpuBindPolicy::SpreadByPcpus).unwrap_err();
        assert!(error.contains("--cpu-bind-policy"), "{error}");
    }
}
