//! The object as Koordinator's koordlet writes it (`states_noderesourcetopology.go`, `apis/extension/numa_aware.go`). Its amounts of CPUs are those
//! of the hardware, whatever is reserved or assigned, so only the annotations say which CPUs are free: those in the shared pools that are
//! not kubelet's reserved ones. Any field may be missing; a list that is `null` is empty.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use stelia_cpus::CpuSet;
use stelia_kubelet::{PodName, PodUid};

use super::Holder;
use crate::report::annotations::{
    CPU_MANAGER_POLICY, CPU_SHARED_POOLS, CPU_TOPOLOGY, CpuDetails, CpuInfo, POD_CPU_ALLOCS,
};
use crate::report::described::{self, DescribedError, Lists, annotation_of, wrong};
use crate::report::numa::KernelNumaNode;
use crate::report::{Alignment, Facts, Kubelet, Managers, PodAllocation};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policy {
    policy: String,
    options: Option<BTreeMap<String, String>>,
    #[serde(rename = "reservedCPUs")]
    reserved: String,
}

#[derive(Debug, Deserialize)]
struct Topology {
    detail: Option<Vec<Info>>,
}

#[derive(Debug, Deserialize)]
struct Info {
    id: u32,
    core: u32,
    socket: u32,
    node: u32,
}

impl From<Info> for CpuInfo {
    fn from(Info { id, core, socket, node }: Info) -> Self {
        Self { id, core, socket, node }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Alloc {
    namespace: String,
    name: String,
    uid: String,
    cpuset: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    cpuset: String,
}

/// The node and the pods with CPUs of their own. Those of pods that koord-scheduler gave CPUs are not named: only the pools show that they are assigned.
///
/// # Errors
/// What is wrong with an annotation, or that it does not tell which CPUs are free.
pub(super) fn read(
    name: String,
    annotations: &BTreeMap<String, String>,
    alignment: Option<Alignment>,
    numa: BTreeMap<u32, KernelNumaNode>,
) -> Result<(Facts, Vec<Holder>), DescribedError> {
    let mut lists = Lists::default();
    let policy: Policy = optional(annotations, CPU_MANAGER_POLICY)?.unwrap_or_default();
    let topology: Topology = annotation_of(annotations, CPU_TOPOLOGY)?;
    let detail = topology.detail.into_iter().flatten().map(CpuInfo::from).collect();
    let topology = described::topology(CpuDetails { detail })?;
    let online = topology.online();
    if online.is_empty() {
        return Err(wrong(&format!("annotation {CPU_TOPOLOGY}"), "", "it has no CPU"));
    }
    let mut holders = Vec::new();
    let allocs: Option<Vec<Alloc>> = optional(annotations, POD_CPU_ALLOCS)?;
    for (at, alloc) in allocs.unwrap_or_default().into_iter().enumerate() {
        let place = format!("annotation {POD_CPU_ALLOCS}[{at}]");
        let cpus = lists.parse(&format!("{place}.cpuset"), &alloc.cpuset)?;
        holders.push(Holder {
            pod: PodUid::parse(&alloc.uid).map_err(|_| wrong(&format!("{place}.uid"), &alloc.uid, "not a pod UID"))?,
            name: PodName::new(&alloc.namespace, &alloc.name),
            cpus: Some(cpus).filter(|cpus| !cpus.is_empty()),
            is_container: None,
        });
    }
    let allocated: CpuSet = holders
        .iter()
        .filter_map(|one| one.cpus.as_ref())
        .flat_map(CpuSet::iter)
        .collect();
    let pools: Option<Vec<Pool>> = if annotations.contains_key(CPU_SHARED_POOLS) {
        Some(optional(annotations, CPU_SHARED_POOLS)?.unwrap_or_default())
    } else {
        None
    };
    let shared = match pools {
        Some(pools) => {
            let mut shared = CpuSet::new();
            for (at, pool) in pools.iter().enumerate() {
                let place = format!("annotation {CPU_SHARED_POOLS}[{at}].cpuset");
                shared = shared.union(&lists.parse(&place, &pool.cpuset)?);
            }
            shared
        }
        None if holders.iter().any(|one| one.cpus.is_none()) => return Err(DescribedError::Missing(CPU_SHARED_POOLS)),
        None => online.clone(),
    };
    let shared = shared.intersection(&online).difference(&allocated);
    let reserved = lists.parse(
        &format!("annotation {CPU_MANAGER_POLICY}: reservedCPUs"),
        &policy.reserved,
    )?;
    let listed = holders.iter().filter_map(|holder| {
        Some(PodAllocation {
            pod: holder.pod.clone(),
            name: holder.name.clone(),
            cpus: holder.cpus.clone()?.intersection(&online),
            by_kubelet: true,
        })
    });
    let facts = Facts {
        name,
        numa,
        exclusive: online.difference(&shared).difference(&reserved.difference(&allocated)),
        reserved: reserved.intersection(&online),
        shared,
        topology,
        allocations: listed.collect(),
        containers: BTreeSet::new(),
        kubelet: Kubelet {
            cpu_policy: policy.policy,
            cpu_options: policy.options.unwrap_or_default(),
            reserved,
            alignment,
            max_numa_nodes: None,
            managers: Managers::default(),
        },
        allocator: None,
        pods: None,
        devices: BTreeMap::new(),
        problems: Vec::new(),
    };
    Ok((facts, holders))
}

/// `None` where the annotation is missing or null.
fn optional<T: DeserializeOwned>(
    annotations: &BTreeMap<String, String>,
    name: &'static str,
) -> Result<Option<T>, DescribedError> {
    if annotations.contains_key(name) {
        annotation_of(annotations, name)
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::report::profile::Profile;
    use crate::report::stored::Stored;
    use crate::report::testing::cpus;

    use super::*;

    const POD: &str = "32b14702-2efe-4be9-a9da-f3b779175846";

    /// What koordlet writes of 8 CPUs in 4 cores: 0-1 reserved, 4-5 a pod's, whose amounts say nothing of that.
    fn object() -> Value {
        let detail: Vec<Value> = (0..8)
            .map(|id| json!({"id": id, "core": id / 2, "socket": 0, "node": 0}))
            .collect();
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": "node1",
                "labels": {"app.kubernetes.io/managed-by": "Koordinator"},
                "annotations": {
                    CPU_MANAGER_POLICY: r#"{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}"#,
                    CPU_TOPOLOGY: json!({"detail": detail, "newer": 1}).to_string(),
                    CPU_SHARED_POOLS: r#"[{"socket":0,"node":0,"cpuset":"0-3,6-7"}]"#,
                    "node.koordinator.sh/be-cpu-shared-pools": r#"[{"socket":0,"node":0,"cpuset":"0-3,6-7"}]"#,
                    POD_CPU_ALLOCS: json!([{"namespace": "default", "name": "p", "uid": POD, "cpuset": "4-5", "managedByKubelet": true}]).to_string(),
                },
            },
            "topologyPolicies": ["RestrictedPodLevel"],
            "zones": [{"name": "node-0", "type": "Node", "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"},
                {"name": "memory", "capacity": "16Gi", "allocatable": "16Gi", "available": "16Gi"},
                {"name": "koordinator.sh/gpu", "capacity": "100", "allocatable": "100", "available": "100"},
            ]}],
        })
    }

    fn with(annotation: &str, text: &str) -> Value {
        let mut object = object();
        object["metadata"]["annotations"][annotation] = json!(text);
        object
    }

    fn without(annotation: &str) -> Value {
        let mut object = object();
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(annotation);
        object
    }

    fn stored(object: &Value) -> Stored {
        Stored::read(&object.to_string()).unwrap()
    }

    fn free(object: &Value) -> CpuSet {
        let stored = stored(object);
        let facts = stored.facts.unwrap_or_else(|| panic!("{:?}", stored.problem));
        facts
            .topology
            .online()
            .difference(&facts.exclusive)
            .difference(&facts.reserved)
    }

    #[test]
    fn the_annotations_say_which_cpus_are_free_and_the_amounts_do_not() {
        let read = stored(&object());
        assert_eq!((read.profile, read.problem), (Profile::Koordinator, None));
        assert_eq!(read.manager.as_deref(), Some("Koordinator"));
        let alignment = read.alignment.unwrap();
        assert_eq!(
            (alignment.policy.as_str(), alignment.scope.as_str()),
            ("restricted", "pod")
        );
        let facts = read.facts.unwrap();
        assert_eq!((&facts.reserved, &facts.shared), (&cpus("0-1"), &cpus("0-3,6-7")));
        assert_eq!(
            (facts.numa[&0].memory.unwrap().total, facts.devices.len()),
            (16 << 30, 0)
        );
        assert_eq!(read.holders[0].cpus, Some(cpus("4-5")));
        assert_eq!(free(&object()), cpus("2-3,6-7"));
        // CPUs that koord-scheduler gave to a pod, or that the node reserves by an annotation, are in no pool.
        assert_eq!(
            free(&with(CPU_SHARED_POOLS, r#"[{"node":0,"cpuset":"0-3"}]"#)),
            cpus("2-3")
        );
        for none in ["null", "[]", r#"[{"socket":0,"node":0}]"#] {
            assert_eq!(free(&with(CPU_SHARED_POOLS, none)), CpuSet::new(), "{none}");
        }
        // A pod has its CPUs whatever the pools say.
        assert_eq!(free(&with(CPU_SHARED_POOLS, r#"[{"cpuset":"0-7"}]"#)), cpus("2-3,6-7"));
        assert_eq!(free(&without(CPU_SHARED_POOLS)), cpus("2-3,6-7"));
        assert_eq!(
            free(&with(CPU_MANAGER_POLICY, r#"{"policy":"static","options":null}"#)),
            cpus("0-3,6-7")
        );
        assert_eq!(free(&without(CPU_MANAGER_POLICY)), cpus("0-3,6-7"));
    }

    /// koordlet takes CPUs out of the pool that pods have, that the node reserves or that its system alone may use, and leaves kubelet's reserved ones in.
    #[test]
    fn a_cpu_in_no_pool_is_not_free_whether_or_not_kubelet_reserves_it() {
        let mut object = with(CPU_SHARED_POOLS, r#"[{"socket":0,"node":0,"cpuset":"0,2-3,6-7"}]"#);
        assert_eq!(free(&object), cpus("2-3,6-7"));
        let none_reserved = r#"{"policy":"static","options":{"full-pcpus-only":"true"}}"#;
        object["metadata"]["annotations"][CPU_MANAGER_POLICY] = json!(none_reserved);
        assert_eq!(free(&object), cpus("0,2-3,6-7"));
        let facts = stored(&object).facts.unwrap();
        assert_eq!((facts.exclusive, facts.reserved), (cpus("1,4-5"), CpuSet::new()));
    }

    #[test]
    fn without_pods_or_their_cpus_the_pools_are_enough() {
        let mut object = with(POD_CPU_ALLOCS, "null");
        assert_eq!((free(&object), stored(&object).holders.len()), (cpus("2-3,6-7"), 0));
        object = without(POD_CPU_ALLOCS);
        assert_eq!(free(&object), cpus("2-3,6-7"));
        // As in Koordinator's proposal, with the zone of its first releases.
        let alloc =
            json!([{"namespace": "default", "name": "p", "uid": POD, "cpu": "4-8", "managedByKubelet": "true"}]);
        object = with(POD_CPU_ALLOCS, &alloc.to_string());
        object["zones"] = json!([{"name": "fake-name", "type": "fake-type"}]);
        let read = stored(&object);
        assert_eq!((read.holders[0].cpus.clone(), read.problem), (None, None));
        assert_eq!(free(&object), cpus("2-3,6-7"));
    }

    #[test]
    fn amounts_of_an_object_whose_annotations_cannot_be_read_are_not_believed() {
        let alloc = json!([{"uid": POD}]).to_string();
        let mut untold = with(POD_CPU_ALLOCS, &alloc);
        untold["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(CPU_SHARED_POOLS);
        for (object, says) in [
            (with(CPU_TOPOLOGY, "{}"), "no CPU"),
            (with(CPU_TOPOLOGY, "[]"), CPU_TOPOLOGY),
            (with(POD_CPU_ALLOCS, r#"[{"uid":"x","cpuset":"4"}]"#), "not a pod UID"),
            (with(POD_CPU_ALLOCS, "7"), POD_CPU_ALLOCS),
            (with(CPU_SHARED_POOLS, r#"[{"cpuset":"many"}]"#), "not a CPU list"),
            (with(CPU_MANAGER_POLICY, r#"{"reservedCPUs":"x"}"#), "reservedCPUs"),
            (untold, CPU_SHARED_POOLS),
        ] {
            let read = stored(&object);
            assert!(
                read.problem.as_ref().is_some_and(|problem| problem.contains(says)),
                "{says}: {:?}",
                read.problem
            );
            let zone = &read.zones[&0];
            assert!(
                read.facts.is_none() && !zone.contains_key("cpu") && zone.contains_key("memory"),
                "{says}"
            );
        }
        // Other writers' amounts are all that is known of their nodes.
        let mut of_others = without(CPU_TOPOLOGY);
        assert!(stored(&of_others).problem.unwrap().contains(CPU_TOPOLOGY));
        of_others["metadata"]["annotations"] = json!({});
        let read = stored(&of_others);
        assert!(read.problem.is_none() && read.zones[&0].contains_key("cpu"));
    }
}
