//! Every version of `cpu_manager_state` that a real kubelet put in place while pods came and went, in order: whatever it
//! says in between, no float meets a CPU that is somebody's, and none is lost.

use std::collections::BTreeMap;
use std::fs;

use rstest::rstest;
use stelia_cpus::{Cpu, CpuSet, Topology};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::{CpuManagerState, PodUid};
use stelia_model::record::Record;
use stelia_settings::{FloatPolicy, Policies};

use crate::steps::tests::settle;
use crate::testing::{instance, snapshot};
use crate::{Instance, Snapshot, Tree};

const FOLDER: &str = "../../tests/data/kubelet-checkpoints/write-sequence/gate-off";

/// What happens between two of kubelet's writes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FileEvent {
    Nothing,
    /// The file is cut short.
    CutShort,
    /// kubelet starts again: for a moment its file is valid, and says neither CPUs nor pods.
    Restart,
}

/// When an instance ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    /// With its entry.
    WithEntry,
    /// Never: it still runs when kubelet has given its CPUs back.
    Never,
}

struct Write {
    node: String,
    bytes: Vec<u8>,
}

fn sequence() -> Vec<Write> {
    let index = fs::read_to_string(format!("{FOLDER}/INDEX.txt")).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let bytes = fs::read(format!("{FOLDER}/{}.json", words.next().unwrap())).unwrap();
        let node = words.next().unwrap().strip_prefix("node=").unwrap().to_owned();
        Write { node, bytes }
    };
    index.lines().map(line).collect()
}

/// As the engine takes it.
fn usable(bytes: &[u8]) -> Result<CpuManagerState, String> {
    let state = CpuManagerState::parse(bytes).map_err(|error| error.to_string())?;
    if state.policy == "static" {
        Ok(state)
    } else {
        Err(format!("policy {}", state.policy))
    }
}

/// Node 0 is 0-31 and 64-95, node 1 the rest; siblings are n and n+64.
fn topology() -> Topology {
    let cpu = |cpu: u32| {
        let core = cpu % 64;
        let node = core / 32;
        let place = Cpu {
            package: node,
            core,
            node,
        };
        (cpu, place)
    };
    Topology {
        cpus: (0..128).map(cpu).collect(),
    }
}

fn new_instance(pod: &PodUid, entry: &CpuSet) -> Instance {
    let blank = instance();
    Instance {
        record: Record {
            pod: pod.clone(),
            entry: entry.clone(),
            exclusive: entry.clone(),
            ..blank.record
        },
        tree: Tree::in_scope(CgroupPath::slice().child(&pod.scope())),
        origin_cpus: entry.clone(),
        ..blank
    }
}

fn float(instance: &Instance) -> &CpuSet {
    &instance.float().unwrap().cpus
}

/// The law, for what the planner made and for what it would make under the other policies.
fn check(snapshot: &Snapshot, assigned: &CpuSet, place: &str) {
    let taken = assigned.union(&snapshot.owned());
    for instance in snapshot.instances.values() {
        let pod = &instance.record.pod;
        let cpus = float(instance);
        assert!(!cpus.is_empty(), "{place}: the float of {pod} is lost");
        assert!(
            cpus.is_disjoint(&taken),
            "{place}: the float {cpus} of {pod} meets {taken}"
        );
        for policy in FloatPolicy::ALL {
            let policies = Policies {
                float: policy,
                ..Policies::default()
            };
            if let Some(cpus) = snapshot.assess(&policies, instance).float {
                assert!(
                    !cpus.is_empty() && cpus.is_disjoint(&taken),
                    "{place}: {policy:?} {cpus}"
                );
            }
        }
    }
}

#[rstest]
fn no_float_meets_a_cpu_that_is_somebodys_and_none_is_lost(
    #[values(FileEvent::Nothing, FileEvent::CutShort, FileEvent::Restart)] between: FileEvent,
    #[values(Ends::WithEntry, Ends::Never)] ends: Ends,
) {
    let mut now = snapshot(vec![]);
    let mut node = String::new();
    let mut most = 0;
    for (number, write) in sequence().into_iter().enumerate() {
        let place = format!("write {}", number + 1);
        if write.node != node {
            node = write.node;
            now = Snapshot {
                kubelet: Err("nothing read yet".into()),
                topology: topology(),
                ..snapshot(vec![])
            };
        }
        let state = usable(&write.bytes);
        if let Ok(state) = &state {
            // Before the file is read: kubelet takes CPUs out of its pool before it assigns them.
            for instance in now.instances.values() {
                let strange = state.assigned();
                assert!(
                    float(instance).is_disjoint(&strange),
                    "{place}: {} meets {strange}",
                    float(instance)
                );
            }
            follow(&mut now, state, ends);
        }
        let assigned = state.as_ref().map(CpuManagerState::assigned).unwrap_or_default();
        now.kubelet = state;
        settle(&mut now);
        check(&now, &assigned, &place);
        most = most.max(now.instances.len());

        let before = now.clone();
        now.kubelet = match between {
            FileEvent::Nothing => continue,
            FileEvent::CutShort => usable(&write.bytes[..write.bytes.len() / 2]),
            FileEvent::Restart => usable(br#"{"policyName":"static","defaultCpuSet":"","checksum":3083571066}"#),
        };
        assert_eq!(now.kubelet.is_err(), between == FileEvent::CutShort);
        settle(&mut now);
        check(&now, &assigned, &format!("after {place}"));
        let floats = |snapshot: &Snapshot| -> Vec<CpuSet> { snapshot.instances.values().map(float).cloned().collect() };
        assert_eq!(floats(&now), floats(&before), "after {place}");
    }
    // On node "many" five VMs come, and with their entries two of them go; that node is not the last.
    assert_eq!(most, 5);
}

/// A VM in every container called `instance`, from the moment kubelet has its entry on disk.
fn follow(now: &mut Snapshot, state: &CpuManagerState, ends: Ends) {
    let entries: BTreeMap<&PodUid, &CpuSet> = state
        .entries
        .iter()
        .filter_map(|(pod, containers)| Some((pod, containers.get("instance")?)))
        .collect();
    if ends == Ends::WithEntry {
        now.instances.retain(|pod, _| entries.contains_key(pod));
    }
    for (pod, entry) in entries {
        if !now.instances.values().any(|instance| instance.record.pod == *pod) {
            now.put(new_instance(pod, entry));
        }
    }
}
