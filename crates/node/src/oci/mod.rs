//! The OCI runtime of a container: which program it is, where it keeps the container's state, and whom it answers.
//!
//! Read from what containerd's shim and CRI-O's conmon leave of a container, so it is the program that they call, by the
//! rules that they find it by.

mod binary;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use binary::Identity;
pub use verdict::{Verdict, verdict_file};

/// Where containerd's shims keep their containers, by namespace: containerd's own, that of k3s and of k0s.
const TASKS: [&str; 3] = ["run/containerd", "run/k3s/containerd", "run/k0s/containerd"];
const TASKS_OF: &str = "io.containerd.runtime.v2.task";
/// Where the shim has its runtime keep containers, unless its options say otherwise (`RuncRoot` in containerd's runc shim).
const SHIM_ROOT: &str = "/run/containerd/runc";
/// The runtime of a shim whose options name none.
const SHIM_BINARY: &str = "runc";
/// Where CRI-O keeps what conmon is given of a container.
const CONMON: &str = "run/containers/storage/overlay-containers";

/// Who asks the runtime about a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manager {
    Containerd,
    CriO,
}

impl Manager {
    /// As the verdict's file has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
        }
    }
}

/// By the file in which the runtime keeps a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `state.json`: runc, and what keeps its form.
    Runc,
    /// `status`: crun.
    Crun,
}

impl Kind {
    /// The file's name in the container's folder of the state root.
    pub fn file(self) -> &'static str {
        match self {
            Self::Runc => "state.json",
            Self::Crun => "status",
        }
    }
}

/// The runtime of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    pub manager: Manager,
    pub kind: Kind,
    /// The program, as its manager calls it: an absolute path, symbolic links not followed.
    pub binary: PathBuf,
    /// `--root` of its calls; below it a folder for each container.
    pub root: PathBuf,
    /// Whether its calls have `--systemd-cgroup`.
    pub systemd_cgroup: bool,
}

impl Runtime {
    /// Where it keeps this container.
    pub fn state_file(&self, container_id: &str) -> PathBuf {
        self.root.join(container_id).join(self.kind.file())
    }
}

/// The runtime of a running container of containerd, in any namespace, or of CRI-O. `node` is `/`; the paths of the answer
/// are the node's. `None` where no such container is found, or its runtime is neither runc nor crun: nothing is known then.
pub fn runtime_of(node: &Path, container_id: &str) -> Option<Runtime> {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || b"_.-".contains(&c);
    // It becomes a part of paths.
    if container_id.is_empty() || container_id.starts_with('.') || !container_id.bytes().all(is_name) {
        return None;
    }
    of_containerd(node, container_id).or_else(|| of_crio(node, container_id))
}

/// What the shim keeps of its options (`Options` of containerd's runc shim) that is read.
#[derive(Debug, Default, Deserialize)]
struct ShimOptions {
    #[serde(default)]
    binary_name: String,
    #[serde(default)]
    root: String,
    #[serde(default)]
    systemd_cgroup: bool,
}

fn of_containerd(node: &Path, id: &str) -> Option<Runtime> {
    let namespaces = TASKS
        .iter()
        .flat_map(|state| fs::read_dir(node.join(state).join(TASKS_OF)))
        .flatten()
        .flatten();
    let (namespace, bundle) = namespaces
        .map(|namespace| (namespace.file_name(), namespace.path().join(id)))
        .find(|(_, bundle)| bundle.join("config.json").exists())?;
    let text = |file: &str| fs::read_to_string(bundle.join(file)).unwrap_or_default();
    let options: ShimOptions = serde_json::from_str(&text("options.json")).unwrap_or_default();
    // The file `runtime` is older than the options.
    let names = [options.binary_name.as_str(), text("runtime").trim()].map(str::to_owned);
    let name = names.into_iter().find(|name| !name.is_empty());
    let root = match options.root.as_str() {
        "" => SHIM_ROOT,
        root => root,
    };
    let root = Path::new(root).join(namespace);
    let shim = text("shim-binary-path");
    Some(Runtime {
        manager: Manager::Containerd,
        kind: kind(node, &root, id)?,
        binary: binary::find(node, name.as_deref().unwrap_or(SHIM_BINARY), Path::new(shim.trim()))?,
        root,
        systemd_cgroup: options.systemd_cgroup,
    })
}

/// CRI-O's configuration may have changed since the container was made; what its conmon was started with did not.
fn of_crio(node: &Path, id: &str) -> Option<Runtime> {
    let pid = fs::read_to_string(node.join(CONMON).join(id).join("userdata/conmon-pidfile")).ok()?;
    let pid: u32 = pid.trim().parse().ok()?;
    let line = fs::read_to_string(node.join(format!("proc/{pid}/cmdline"))).ok()?;
    let words: Vec<&str> = line.split('\0').collect();
    let after = |option: &str| {
        let place = words.iter().position(|word| *word == option)?;
        words.get(place + 1).copied()
    };
    // A number that is another process's by now has no such container.
    if after("-c")? != id {
        return None;
    }
    let root = PathBuf::from(after("--runtime-arg")?.strip_prefix("--root=")?);
    Some(Runtime {
        manager: Manager::CriO,
        kind: kind(node, &root, id)?,
        binary: binary::find(node, after("-r")?, Path::new(""))?,
        root,
        systemd_cgroup: words.contains(&"-s"),
    })
}

fn kind(node: &Path, root: &Path, id: &str) -> Option<Kind> {
    let has = |kind: &Kind| binary::at(node, &root.join(id).join(kind.file())).exists();
    [Kind::Runc, Kind::Crun].into_iter().find(has)
}

#[cfg(test)]
mod tests;
