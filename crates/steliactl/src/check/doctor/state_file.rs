//! `doctor --kubelet-state`: what steliad reads from kubelet's `cpu_manager_state`, or a copy.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use stelia_cpus::CpuSet;
use stelia_kubelet::cpu_manager_state::MAX_BYTES;
use stelia_kubelet::{CpuManagerState, PodUid};

use crate::shared::daemon::{Pod, Pods, remedy_of_file};
use crate::shared::files;
use crate::shared::output::{Column, Render, TextStyle, column, properties, table};

/// What is read from the file; nothing but the reason of one that is refused.
#[derive(Debug, Default, Serialize)]
pub(crate) struct StateFile {
    file: String,
    /// Why it is refused, or why steliad would not act on it; empty if it would.
    pub(crate) reason: String,
    is_refused: bool,
    schema: String,
    policy: String,
    default_cpus: CpuSet,
    shared_pool: CpuSet,
    unknown_keys: Vec<String>,
    assignments: Vec<Assignment>,
}

/// CPUs of a container, or of a whole pod. The oldest schemas have the container's id instead of its pod and name.
#[derive(Debug, Serialize)]
struct Assignment {
    #[serde(flatten)]
    pod: Pod,
    /// Empty of a whole pod.
    container: String,
    cpus: CpuSet,
}

/// Reads a file. `pods` are the names of its pods.
pub(crate) fn read_state_file(path: &Path, pods: &Pods) -> StateFile {
    let file = path.display().to_string();
    match read(path) {
        Ok(state) => StateFile {
            file,
            reason: unusable(&state).unwrap_or_default(),
            is_refused: false,
            schema: format!("{:?}", state.schema),
            shared_pool: state.shared_pool(),
            assignments: assignments(&state, pods),
            policy: state.policy,
            default_cpus: state.default_cpus,
            unknown_keys: state.unknown_keys,
        },
        Err(reason) => StateFile {
            file,
            reason,
            is_refused: true,
            ..StateFile::default()
        },
    }
}

fn read(path: &Path) -> Result<CpuManagerState, String> {
    // The file need not be kubelet's: the remedy of a kubelet that never ran does not apply.
    let bytes = files::bytes(path, MAX_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    })?;
    // Each schema of the memory manager's file has it.
    let keys = serde_json::from_slice(&bytes);
    if keys.is_ok_and(|keys: Value| keys.get("machineState").is_some()) {
        return Err("this is memory_manager_state".to_owned());
    }
    CpuManagerState::parse(&bytes).map_err(|error| error.to_string())
}

fn assignments(state: &CpuManagerState, pods: &Pods) -> Vec<Assignment> {
    let of_pod = |pod: &PodUid, container: &str, cpus: &CpuSet| Assignment {
        pod: pods.get(pod.as_str()),
        container: container.to_owned(),
        cpus: cpus.clone(),
    };
    let whole = state.pod_entries.iter().map(|(pod, cpus)| of_pod(pod, "", cpus));
    let mut assignments: Vec<Assignment> = whole.collect();
    for (pod, own) in &state.entries {
        assignments.extend(own.iter().map(|(container, cpus)| of_pod(pod, container, cpus)));
    }
    // By the first CPU; one without CPUs is the last.
    assignments.sort_by_key(|one| (one.cpus.iter().next().unwrap_or(u32::MAX), !one.container.is_empty()));
    assignments
}

/// Why steliad would not act on this file; `None` if it would.
pub(super) fn unusable(state: &CpuManagerState) -> Option<String> {
    if state.policy != "static" {
        return Some(format!("the CPU manager policy is {:?}, not \"static\"", state.policy));
    }
    if let Some((pod, container, cpus)) = state.overlap() {
        let why = "are in the default set too: kubelet does not start with this file";
        return Some(format!("CPUs {cpus} of {pod}/{container} {why}"));
    }
    // kubelet writes such a file when it starts.
    let empty = state.shared_pool().is_empty();
    empty.then(|| "the shared pool is empty".to_owned())
}

const COLUMNS: [Column<Assignment>; 3] = [
    column("POD", |one: &Assignment| one.pod.to_string())
        .yields(1)
        .shortens(),
    column("CONTAINER", |one: &Assignment| one.container.clone()),
    column("CPUS", |one: &Assignment| one.cpus.to_string()),
];

impl Render for StateFile {
    fn text(&self, style: TextStyle) -> String {
        let usable = match self.reason.as_str() {
            "" => "yes".to_owned(),
            reason => format!("no: {reason}"),
        };
        let rows = [
            ("File", self.file.clone()),
            ("Schema", self.schema.clone()),
            ("Policy", self.policy.clone()),
            ("Default set", self.default_cpus.to_string()),
            ("Shared pool", self.shared_pool.to_string()),
            ("Unknown keys", self.unknown_keys.join(", ")),
            ("Usable", usable),
            ("Fix", remedy_of_file(&self.reason).unwrap_or_default().to_owned()),
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
