//! The answer to Describe: the engine's view in the contract's words.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stelia_api::view::{Description, Instance, LastPass, Node, Pools, SharedPool, Task, VcpuThread};
use stelia_api::{Error, ErrorKind};
use stelia_node::locality::Localities;

use super::readings::Recent;
use crate::engine::{Handle, InstanceView, PoolsView, View};

/// Everything that the daemon knows, as JSON.
pub(super) fn json(engine: &Handle, recent: &mut Recent) -> Result<String, Error> {
    let view = engine.view();
    let usage = recent.usage(&*engine.system().cgroups, &view).iter();
    let usage = usage.map(|(pod, usage)| (pod.to_string(), *usage)).collect();
    let description = Description::<Localities> {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: node(&view)?,
        usage,
        kubelet_config: match recent.kubelet_config() {
            Ok(config) => serde_json::json!(config),
            Err(problem) => serde_json::json!({ "problem": problem }),
        },
        locality: recent.locality(engine.system(), &view).clone(),
        metrics: engine.metrics().read(),
    };
    // By way of a Value the members are sorted by name.
    Ok(value(&description)?.to_string())
}

fn value(part: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(part).map_err(|cause| ErrorKind::Failed.because(format!("describe the node: {cause}")))
}

/// A value that is recorded as JSON, too, in the contract's words already.
fn same<T: DeserializeOwned>(part: &impl Serialize) -> Result<T, Error> {
    serde_json::from_value(value(part)?)
        .map_err(|cause| ErrorKind::Failed.because(format!("describe the node: {cause}")))
}

fn node(view: &View) -> Result<Node, Error> {
    let entries = view.entries.iter();
    let instances = view.instances.iter();
    Ok(Node {
        cpu_source: Some(view.cpu_source.name().to_owned()),
        pool: view.pool.clone(),
        pools: view.pools.as_deref().map(pools).transpose()?,
        kubelet_problem: view.kubelet_problem.clone(),
        systemd_problem: view.systemd_problem.clone(),
        entries: entries.map(|(pod, cpus)| (pod.to_string(), cpus.clone())).collect(),
        pod_entries: view
            .pod_entries
            .iter()
            .map(|(pod, cpus)| (pod.to_string(), cpus.clone()))
            .collect(),
        kubelet_cpus: view.kubelet_cpus.clone(),
        kubelet_policy: view.kubelet_policy.clone(),
        kubelet_modified_us: view.kubelet_modified_us,
        topology: (*view.topology).clone(),
        offline: view.offline.clone(),
        slice_exclusive: view.slice_exclusive.clone(),
        partitions: view.partitions,
        restricted: view.restricted.clone(),
        counters: view.counters,
        last_pass: view.last_pass.map(|pass| LastPass {
            number: pass.number,
            trigger: pass.trigger.to_owned(),
            ended_us: pass.ended_us,
            duration_us: pass.duration_us,
            steps: pass.steps,
            writes: pass.writes,
            moves: pass.moves,
            failures: pass.failures,
        }),
        instances: instances
            .map(|(pod, one)| Ok((pod.to_string(), instance(one)?)))
            .collect::<Result<BTreeMap<_, _>, Error>>()?,
        jobs: view.jobs.iter().map(value).collect::<Result<_, _>>()?,
        unreadable: view.unreadable.clone(),
    })
}

fn pools(view: &PoolsView) -> Result<Pools, Error> {
    let by_node = view.pools.shared_by_node.iter().map(|(node, pool)| {
        let (socket, cpus) = (pool.socket, pool.cpus.clone());
        (*node, SharedPool { socket, cpus })
    });
    Ok(Pools {
        reserved: view.reserved.clone(),
        kubelet: view.kubelet.clone(),
        policies: value(&view.policies)?,
        held: value(&view.held)?,
        allocatable: view.pools.allocatable.clone(),
        exclusive: view.pools.exclusive.clone(),
        shared: view.pools.shared.clone(),
        shared_by_node: by_node.collect(),
        be_shared: view.pools.be_shared.clone(),
    })
}

fn instance(view: &Arc<InstanceView>) -> Result<Instance, Error> {
    let thread = |thread: &stelia_record::VcpuThread| VcpuThread {
        index: thread.role.into(),
        task: Task {
            id: thread.task.id,
            start: thread.task.start,
        },
        cpu: thread.cpu,
    };
    Ok(Instance {
        pod: view.pod.to_string(),
        container: view.container.clone(),
        state: view.state.to_owned(),
        degraded: view.degraded.iter().map(ToString::to_string).collect(),
        exclusive: view.exclusive.clone(),
        allocation: view.allocation.as_ref().map(same).transpose()?,
        float: view.float.clone(),
        mems: view.mems.clone(),
        partition: view.partition.clone(),
        placement: view.placement.to_owned(),
        scope: view.scope.as_str().to_owned(),
        origin: view.origin.as_str().to_owned(),
        registered_us: view.registered_us,
        isolated_us: view.isolated_us,
        vcpus: view.vcpus.iter().map(thread).collect(),
    })
}

#[cfg(test)]
mod tests {
    use stelia_allocator::{AllocatorPolicies, CpuSource, HeldCpus, Pools};
    use stelia_api::{Amiss, Reason};
    use stelia_cpus::{CpuSet, Topology};
    use stelia_kubelet::PodUid;
    use stelia_node::proc::TaskId;

    use super::*;
    use crate::engine::{Counters, LastPass};

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A view that has something in each of its members.
    fn view() -> View {
        let pod = PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
        let of_pod = |list: &str| (pod.clone(), cpus(list));
        let allocation = r#"{"qos":"LSE","cpus":2,"bind":"FullPCPUs","required":true,"exclusive":"PCPULevel",
            "strategy":"MostAllocated","alignment":"None","limit_milli":0,"numa_node":null,"exclusivity":"kept",
            "explanation":["2 CPUs wanted"]}"#;
        let job = r#"{"id":1,"scope":"node","phase":"Succeed","reason":"done","began_us":5,"ended_us":6,
            "moves":[{"pod":"p","from":"1","to":"2","gain":"g"}]}"#;
        let topology = r#"{"cpus":{"0":{"package":0,"core":0,"node":0},"10":{"package":1,"core":2,"node":3}}}"#;
        let shared = stelia_allocator::SharedPool {
            socket: 1,
            cpus: cpus("0-1"),
        };
        let instance = InstanceView {
            container: "compute".to_owned(),
            degraded: vec![Reason::of(&pod, Amiss::CpusOffline, "CPUs 3 are offline")],
            exclusive: cpus("2-3"),
            allocation: Some(serde_json::from_str(allocation).unwrap()),
            float: cpus("0-1"),
            mems: "0".to_owned(),
            partition: "isolated".to_owned(),
            registered_us: 7,
            isolated_us: 8,
            vcpus: vec![stelia_record::VcpuThread {
                role: stelia_api::ThreadRole::Vcpu(1),
                task: TaskId { id: 70, start: 9 },
                cpu: Some(2),
            }],
            ..InstanceView::registered(pod.clone())
        };
        View {
            cpu_source: CpuSource::Steliad,
            pool: Some(cpus("0-1")),
            pools: Some(Arc::new(PoolsView {
                reserved: cpus("0"),
                kubelet: cpus("6"),
                policies: AllocatorPolicies::default(),
                held: HeldCpus {
                    pcpu_level: cpus("2-3"),
                    ..HeldCpus::default()
                },
                pools: Pools {
                    allocatable: cpus("1"),
                    exclusive: cpus("2-3,6"),
                    shared: cpus("0-1"),
                    shared_by_node: [(0, shared)].into(),
                    be_shared: cpus("0-1,4"),
                },
            })),
            kubelet_problem: Some("no file".to_owned()),
            systemd_problem: Some("silent".to_owned()),
            entries: Arc::new([(pod.clone(), [("compute".to_owned(), cpus("2-3"))].into())].into()),
            pod_entries: Arc::new([of_pod("5")].into()),
            kubelet_cpus: cpus("2-3,5"),
            kubelet_policy: Some("static".to_owned()),
            kubelet_modified_us: Some(4),
            topology: Arc::new(serde_json::from_str::<Topology>(topology).unwrap()),
            offline: cpus("11"),
            slice_exclusive: cpus("2-3"),
            partitions: Some(true),
            restricted: [("system.slice".to_owned(), "0-1".to_owned())].into(),
            counters: Counters {
                drift_found: 2,
                drift_repaired: 1,
            },
            last_pass: Some(LastPass {
                number: 7,
                trigger: "audit",
                ended_us: 3,
                duration_us: 4,
                steps: 5,
                writes: 6,
                moves: 7,
                failures: 8,
            }),
            instances: [(pod, Arc::new(instance))].into(),
            jobs: vec![serde_json::from_str(job).unwrap()],
            unreadable: vec![("a.scope".to_owned(), "schema 9".to_owned())],
        }
    }

    /// The names are a contract: a monitoring system reads them.
    #[test]
    fn the_names_and_forms_of_the_description_stay() {
        let described = value(&node(&view()).unwrap()).unwrap();
        insta::assert_snapshot!(described.to_string());
        let empty = value(&node(&View::default()).unwrap()).unwrap();
        insta::assert_snapshot!("the_description_of_nothing", empty.to_string());
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let node = node(&view()).unwrap();
        assert_eq!(serde_json::from_value::<Node>(value(&node).unwrap()).unwrap(), node);
    }
}
