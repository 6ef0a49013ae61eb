//! `doctor --kubelet-state`: what steliad reads from a checkpoint file of kubelet's. Which CPUs a pod's containers share is not in the
//! file: it is read from the containers, if they run on this node.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::KernelCgroups;
use stelia_kernel::containers::{entry_uses, live_containers};
use stelia_kubelet::cpu_manager_state::{CPU_MANAGER_STATE, MAX_BYTES};
use stelia_kubelet::memory::{MEMORY_MANAGER_STATE, MemoryBlock};
use stelia_kubelet::{CpuManagerState, MemoryManagerState, PodUid};

use crate::shared::daemon::{Pod, Pods, remedy_of_file};
use crate::shared::files;
use crate::shared::output::{Column, Render, TextStyle, column, properties, table};

/// A file of kubelet's CPU manager or memory manager. What a file of the other kind has, or one that is refused, is empty.
#[derive(Debug, Default, Serialize)]
pub(crate) struct StateFile {
    file: String,
    /// Why it is refused, or why steliad would not act on it; empty if it would.
    reason: String,
    is_refused: bool,
    schema: String,
    policy: String,
    default_cpus: CpuSet,
    shared_pool: CpuSet,
    unknown_keys: Vec<String>,
    assignments: Vec<Assignment>,
}

/// CPUs or memory of a container, or of a whole pod. The oldest schemas have the container's id instead of its pod and name.
#[derive(Debug, Default, Serialize)]
struct Assignment {
    #[serde(flatten)]
    pod: Pod,
    /// Empty of a whole pod.
    container: String,
    /// `cpus`, or the kind of memory, such as `hugepages-2Mi`.
    resource: String,
    /// CPUs, or the NUMA nodes of memory.
    set: CpuSet,
    /// Of memory.
    bytes: Option<u64>,
    /// CPUs at admission, where kubelet may resize them in place.
    baseline_cpus: Option<CpuSet>,
    /// Of a whole pod: which of its CPUs its containers share.
    shared_in_pod: Option<CpuSet>,
}

/// Reads a file. Its name says what kind it is, else its content. `root` is `/`, `pods` are the names of its pods.
pub(super) fn gather(path: &Path, root: &Path, pods: &Pods) -> StateFile {
    let read = read(path, root, pods).unwrap_or_else(|error| StateFile {
        reason: error,
        is_refused: true,
        ..StateFile::default()
    });
    let file = path.display().to_string();
    StateFile { file, ..read }
}

fn read(path: &Path, root: &Path, pods: &Pods) -> Result<StateFile, String> {
    // The file need not be kubelet's: the remedy of a kubelet that never ran does not apply.
    let bytes = files::bytes(path, MAX_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    })?;
    let is_memory = match path.file_name().and_then(|name| name.to_str()) {
        Some(MEMORY_MANAGER_STATE) => true,
        Some(CPU_MANAGER_STATE) => false,
        // It is required in each schema of the memory manager's file; the newest has it beside `data`.
        _ => serde_json::from_slice(&bytes).is_ok_and(|keys: Value| keys.get("machineState").is_some()),
    };
    if is_memory {
        let state = MemoryManagerState::parse(&bytes).map_err(|error| error.to_string())?;
        Ok(memory(state, pods))
    } else {
        let state = CpuManagerState::parse(&bytes).map_err(|error| error.to_string())?;
        Ok(cpus(state, root, pods))
    }
}

fn cpus(state: CpuManagerState, root: &Path, pods: &Pods) -> StateFile {
    let assigned = |pod: Pod, container: &str, cpus: &CpuSet| Assignment {
        pod,
        container: container.to_owned(),
        resource: "cpus".to_owned(),
        set: cpus.clone(),
        ..Assignment::default()
    };
    let mut assignments = Vec::new();
    for (pod, containers) in &state.entries {
        assignments.extend(containers.iter().map(|(name, cpus)| Assignment {
            baseline_cpus: state.baselines.get(pod).and_then(|all| all.get(name)).cloned(),
            ..assigned(pods.get(pod.as_str()), name, cpus)
        }));
    }
    assignments.extend(state.pod_entries.iter().map(|(pod, cpus)| Assignment {
        shared_in_pod: Some(shared_in_pod(&state, root, pod)),
        ..assigned(pods.get(pod.as_str()), "", cpus)
    }));
    // By the first CPU; one without CPUs is the last.
    assignments.sort_by_key(|one| (one.set.iter().next().unwrap_or(u32::MAX), !one.container.is_empty()));
    StateFile {
        reason: unusable(&state).unwrap_or_default(),
        schema: format!("{:?}", state.schema),
        shared_pool: state.shared_pool(),
        policy: state.policy,
        default_cpus: state.default_cpus,
        unknown_keys: state.unknown_keys,
        assignments,
        ..StateFile::default()
    }
}

fn memory(state: MemoryManagerState, pods: &Pods) -> StateFile {
    let assigned = |pod: &PodUid, container: &str, block: &MemoryBlock| Assignment {
        pod: pods.get(pod.as_str()),
        container: container.to_owned(),
        resource: block.kind.clone(),
        set: block.nodes.iter().copied().collect(),
        bytes: Some(block.size),
        ..Assignment::default()
    };
    let mut assignments = Vec::new();
    for (pod, containers) in &state.entries {
        for (container, blocks) in containers {
            assignments.extend(blocks.iter().map(|block| assigned(pod, container, block)));
        }
    }
    for (pod, blocks) in &state.pod_entries {
        assignments.extend(blocks.iter().map(|block| assigned(pod, "", block)));
    }
    StateFile {
        schema: format!("{:?}", state.schema),
        policy: state.policy,
        assignments,
        ..StateFile::default()
    }
}

/// A pod's shared pool, by the cgroups of its running containers; those that cannot be read are left out.
fn shared_in_pod(state: &CpuManagerState, root: &Path, pod: &PodUid) -> CpuSet {
    let cgroups = KernelCgroups::new(root.join("sys/fs/cgroup"));
    let running = live_containers(&cgroups, &root.join("run"), pod, None).unwrap_or_default();
    let uses = entry_uses(state, pod, &running);
    state.pod_shared_pool(pod, &uses).unwrap_or_default()
}

/// Why steliad would not act on this file; `None` if it would.
fn unusable(state: &CpuManagerState) -> Option<String> {
    if state.policy != "static" {
        return Some(format!("the CPU manager policy is {:?}, not \"static\"", state.policy));
    }
    if let Some((pod, container, cpus)) = state.overlap() {
        return Some(format!(
            "CPUs {cpus} of {pod}/{container} are in the default set too: kubelet does not start with this file"
        ));
    }
    // kubelet writes such a file when it starts.
    let empty = state.shared_pool().is_empty();
    empty.then(|| "the shared pool is empty".to_owned())
}

const COLUMNS: [Column<Assignment>; 6] = [
    column("POD", |one: &Assignment| one.pod.to_string())
        .yields(1)
        .shortens(),
    column("CONTAINER", |one: &Assignment| one.container.clone()),
    column("RESOURCE", |one: &Assignment| one.resource.clone()),
    column("CPUS/NODES", |one: &Assignment| one.set.to_string()),
    column("BYTES", |one: &Assignment| {
        one.bytes.map(|bytes| bytes.to_string()).unwrap_or_default()
    })
    .right(),
    column("SHARED IN POD", |one: &Assignment| {
        one.shared_in_pod.as_ref().map(CpuSet::to_string).unwrap_or_default()
    }),
];

impl Render for StateFile {
    fn text(&self, style: TextStyle) -> String {
        let usable = match self.reason.as_str() {
            "" => "yes".to_owned(),
            reason => format!("no: {reason}"),
        };
        let fix = remedy_of_file(&self.reason).filter(|_| !self.reason.is_empty());
        let rows = [
            ("File", self.file.clone()),
            ("Schema", self.schema.clone()),
            ("Policy", self.policy.clone()),
            ("Default set", self.default_cpus.to_string()),
            ("Shared pool", self.shared_pool.to_string()),
            ("Unknown keys", self.unknown_keys.join(", ")),
            ("Usable", usable),
            ("Fix", fix.unwrap_or_default().to_owned()),
        ];
        let text = properties(rows.into_iter().filter(|(_, value)| !value.is_empty()), style);
        if self.assignments.is_empty() {
            return text;
        }
        format!("{text}\n{}", table(&COLUMNS, &self.assignments, style))
    }

    fn failure(&self) -> Option<String> {
        self.is_refused.then(|| format!("{} cannot be used", self.file))
    }
}
