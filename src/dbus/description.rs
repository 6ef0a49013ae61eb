//! The answer to Describe: the engine's view in the contract's words.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use stelia_api::{Error, ErrorKind};
use stelia_model as model;

use super::cached_readings::Recent;
use crate::engine::Handle;

/// Everything that the daemon knows, as JSON.
pub(super) fn json(engine: &Handle, recent: &mut Recent) -> Result<String, Error> {
    let view = engine.view();
    let usage = recent.usage(&*engine.system().cgroups, &view).clone();
    let description = model::Description {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        usage,
        kubelet_config: match recent.kubelet_config() {
            Ok(config) => serde_json::json!(config),
            Err(unread) => serde_json::json!({ "problem": unread.text }),
        },
        locality: recent.locality(engine.system(), &view).clone(),
        metrics: engine.metrics().read(),
        problems: view.problems(),
        node: Arc::unwrap_or_clone(view),
    };
    // By way of a Value the members are sorted by name.
    Ok(value(&description)?.to_string())
}

fn value(part: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(part).map_err(|cause| ErrorKind::Failed.because(format!("describe the node: {cause}")))
}

#[cfg(test)]
mod tests {
    use stelia_api::{Reason, ReasonCode};
    use stelia_cpus::{CpuSet, Topology};
    use stelia_kernel::proc::TaskId;
    use stelia_koordinator::allocator::{AllocatorPolicies, CpuSource, HeldCpus, Pools};
    use stelia_kubelet::{PodName, PodUid};

    use stelia_api::ledger::{LedgerSummary, LedgerVm};
    use stelia_api::publishing::Publishing;
    use stelia_api::quiet::{self, Quiet};
    use stelia_cpus::located::{Located, Part};

    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A view that has something in each of its members.
    fn view() -> model::Node {
        let pod = PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
        let of_pod = |list: &str| (pod.clone(), cpus(list));
        let allocation = r#"{"qos":"LSE","cpus":2,"bind":"FullPCPUs","required":true,"exclusive":"PCPULevel",
            "strategy":"MostAllocated","alignment":"None","limit_milli":0,"numa_node":null,"exclusivity":"kept",
            "explanation":["2 CPUs wanted"]}"#;
        let job = r#"{"id":1,"scope":"node","phase":"Succeed","reason":"done","began_us":5,"ended_us":6,
            "moves":[{"pod":"p","from":"1","to":"2","gain":"g"}]}"#;
        let topology = r#"{"cpus":{"0":{"package":0,"core":0,"node":0},"10":{"package":1,"core":2,"node":3}}}"#;
        let shared = stelia_koordinator::allocator::SharedPool {
            socket: 1,
            cpus: cpus("0-1"),
        };
        let instance = model::Instance {
            container: "compute".to_owned(),
            adopted_by: Some("kubevirt".to_owned()),
            pod_name: PodName::new("team-a", "vm"),
            degraded: vec![Reason::of(&pod, ReasonCode::CpusOffline, "CPUs 3 are offline")],
            exclusive: cpus("2-3"),
            allocation: Some(serde_json::from_str(allocation).unwrap()),
            float: cpus("0-1"),
            mems: [0].into(),
            partition: "isolated".to_owned(),
            state_since_us: 10,
            registered_us: 7,
            isolated_us: 8,
            pinned_reason: Some(model::PinnedReason::Refused),
            vcpus: vec![model::PinnedThread {
                thread: stelia_model::record::VcpuThread {
                    role: stelia_api::ThreadRole::Vcpu(1),
                    task: TaskId { id: 70, start: 9 },
                    cpu: Some(2),
                },
                guest_node: Some(0),
            }],
            memory_limit: Some(1 << 30),
            pending_resize: Some(model::PendingResize {
                from: 4,
                to: 2,
                deadline_us: 9,
            }),
            ..crate::engine::registered(pod.clone())
        };
        model::Node {
            cpu_source: CpuSource::Steliad,
            pool: Some(cpus("0-1")),
            pools: Some(Arc::new(model::Pools {
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
            kubelet_unknown_keys: vec!["slices".to_owned()],
            systemd_problem: Some("silent".to_owned()),
            watch_problem: Some("no inotify".to_owned()),
            kvm_problem: Some("no netlink".to_owned()),
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
            counters: model::Counters {
                drift_found: 2,
                drift_repaired: 1,
            },
            last_pass: Some(model::LastPass {
                number: 7,
                trigger: model::Trigger::Audit,
                ended_us: 3,
                duration_us: 4,
                steps: 5,
                writes: 6,
                moves: 7,
                failures: 8,
            }),
            instances: [(pod.clone(), Arc::new(instance))].into(),
            former: Arc::new(vec![model::FormerVm {
                pod: pod.clone(),
                pod_name: PodName::new("team-a", "vm"),
                cpus: cpus("4"),
                ended_us: 11,
            }]),
            jobs: vec![serde_json::from_str(job).unwrap()],
            unreadable: vec![("a.scope".to_owned(), "schema 9".to_owned())],
            unadopted: Arc::new(vec![model::Unadopted {
                pod: pod.clone(),
                pod_name: PodName::new("team-a", "vm"),
                container: "compute".to_owned(),
                rule: "kubevirt".to_owned(),
                reason: "Gap".to_owned(),
                text: "none of vCPU 1".to_owned(),
                since_us: 3,
            }]),
            quiet: Arc::new(quiet()),
            ledger: Arc::new(ledger()),
            publishing: Arc::new(Publishing {
                profile: Some("nrt".to_owned()),
                problem: Some("full".to_owned()),
                written_us: 10,
            }),
            vm_capacity: 0,
        }
    }

    fn ledger() -> LedgerSummary {
        let of = LedgerVm {
            other_tasks_least: 1,
            other_tasks_most: 2,
            devices: 3,
            delay_ns: 4,
            promised_us: 6,
            covered_us: 5,
            intruded: 7,
        };
        let located = Located {
            part: Part::Memory,
            nodes: vec![(0, 97), (1, 3)],
            near_percent: 97,
            attached_percent: 0,
            since_us: 10,
            ..Located::default()
        };
        LedgerSummary {
            enabled: true,
            problem: Some("full".to_owned()),
            key: "key".to_owned(),
            seq: 8,
            hash: "00ff".to_owned(),
            day: "2026-10-31".to_owned(),
            bytes: 9,
            vms: [("3ceda12c-3ee9-40fa-9f42-61428fe654a6".to_owned(), of)].into(),
            located: [("3ceda12c-3ee9-40fa-9f42-61428fe654a6".to_owned(), vec![located])].into(),
        }
    }

    fn quiet() -> Quiet {
        let text = |text: &str| text.to_owned();
        Quiet {
            steering: text("shared"),
            problem: Some(text("nothing listens")),
            answered_us: 9,
            report: quiet::Report {
                interrupts: 30,
                moved: 12,
                writes: 3,
                remaining: vec![quiet::Remaining {
                    irq: 31,
                    name: text("nvme0q3"),
                    cpus: cpus("3"),
                    why: quiet::RemainingCause::Managed,
                    text: text("Operation not permitted"),
                    count: 4,
                }],
                left_out: [(text("p"), text("it has no live instance"))].into(),
                irqbalance: quiet::Irqbalance::Informed,
                threads_moved: 2,
                threads_remaining: vec![quiet::Thread {
                    id: 70,
                    name: text("napi/eth0-1"),
                    cpus: cpus("3"),
                    text: text("Invalid argument"),
                }],
                problems: vec![quiet::Problem {
                    pod: String::new(),
                    text: text("read"),
                }],
                caches: [(
                    text("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5"),
                    quiet::CacheUse {
                        class: text("gold"),
                        llc_bytes: Some(4096),
                        memory_bytes: None,
                    },
                )]
                .into(),
            },
        }
    }

    /// The names are a contract: a monitoring system reads them.
    #[test]
    fn the_names_and_forms_of_the_description_stay() {
        let described = value(&view()).unwrap();
        insta::assert_snapshot!(described.to_string());
        let started = model::Node {
            cpu_source: CpuSource::Kubelet,
            ..model::Node::default()
        };
        let empty = value(&started).unwrap();
        insta::assert_snapshot!("the_description_of_nothing", empty.to_string());
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let written = value(&view()).unwrap();
        let read: model::Node = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(value(&read).unwrap(), written);
    }
}
