//! The OCI runtime of a container: which program it is, where it keeps the container's state, and whom it answers.
//!
//! Read from what containerd's shim and CRI-O's conmon leave of a container, so it is the program that they call, by the
//! rules that they find it by.

mod binary;
mod program;
mod verdict;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stelia_cpus::text::named;
use stelia_kubelet::HostProcess;

use crate::runtime_folders::{self, Bundle};

pub use binary::Identity;
pub use program::{Program, ProgramError};
pub use verdict::{RuntimeVerdict, verdict_file};

/// Where the shim has its runtime keep containers, unless its options say otherwise (`RuncRoot` in containerd's runc shim).
const SHIM_ROOT: &str = "/run/containerd/runc";
/// The runtime of a shim whose options name none.
const SHIM_BINARY: &str = "runc";
/// CRI-O's monitor of a container.
const CONMON: &str = "conmon";

named! {
    /// Who asks the runtime about a container.
    pub enum Manager {
        Containerd = "containerd",
        CriO = "cri-o",
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

/// Why the runtime of a container is not known.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("containerd and CRI-O have no container with this ID whose runtime is runc or crun")]
    NotFound,
    /// Its program is missing, or not to be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// The runtime of a running container of containerd, in any namespace, or of CRI-O, and its program. `node` is `/`; the paths of the answer are
/// the node's. What it reads is root's: files of the managers, and the arguments of a process of the node.
///
/// # Errors
/// No such container is found, its runtime is neither runc nor crun, or its program is not the node's.
pub fn open_runtime(node: &Path, container_id: &str) -> Result<(Runtime, Program), RuntimeError> {
    let called = called(node, container_id).ok_or(RuntimeError::NotFound)?;
    let (binary, program) = binary::find(node, &called.name, &called.shim)?;
    let runtime = Runtime {
        manager: called.manager,
        kind: called.kind,
        binary,
        root: called.root,
        systemd_cgroup: called.systemd_cgroup,
    };
    Ok((runtime, program))
}

/// Which runtime made the container, whether or not its program may be run.
pub fn kind_of(node: &Path, container_id: &str) -> Option<Kind> {
    called(node, container_id).map(|called| called.kind)
}

fn called(node: &Path, container_id: &str) -> Option<Called> {
    let mut bundles = runtime_folders::bundles(node, container_id).into_iter();
    bundles.find_map(|bundle| match bundle {
        Bundle::Containerd { namespace, path } => of_containerd(node, container_id, &namespace, &path),
        Bundle::CriO { path } => of_crio(node, container_id, &path),
    })
}

/// What is known of whether a container's runtime copes with threaded cgroups in its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coping {
    Copes,
    /// Why not, or why it cannot be known.
    No(String),
    /// It was not checked yet.
    Unchecked(Runtime),
}

/// What the verdict says of a container's runtime. `node` is `/`, `run` is `/run`.
pub fn coping(node: &Path, run: &Path, container_id: &str) -> Coping {
    let (runtime, program) = match open_runtime(node, container_id) {
        Ok(found) => found,
        Err(unknown) => return Coping::No(unknown.to_string()),
    };
    let verdict = fs::read_to_string(verdict_file(run, &runtime)).ok();
    let verdict = verdict.and_then(|text| RuntimeVerdict::parse(&text));
    match verdict.filter(|verdict| verdict.is_of(&runtime, program.identity())) {
        Some(verdict) if verdict.copes => Coping::Copes,
        Some(verdict) => Coping::No(format!(
            "{} does not cope with threaded cgroups in a container: {}",
            runtime.binary.display(),
            verdict.words
        )),
        None => Coping::Unchecked(runtime),
    }
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

/// How a manager calls the runtime of a container.
struct Called {
    manager: Manager,
    kind: Kind,
    /// A path, or a name that the manager looks for.
    name: String,
    /// The program that calls it, where that decides where it is looked for; else empty.
    shim: PathBuf,
    root: PathBuf,
    systemd_cgroup: bool,
}

fn of_containerd(node: &Path, id: &str, namespace: &OsStr, bundle: &Path) -> Option<Called> {
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
    Some(Called {
        manager: Manager::Containerd,
        kind: kind(node, &root, id)?,
        name: name.unwrap_or_else(|| SHIM_BINARY.to_owned()),
        shim: PathBuf::from(text("shim-binary-path").trim()),
        root,
        systemd_cgroup: options.systemd_cgroup,
    })
}

/// CRI-O's configuration may have changed since the container was made; what its conmon was started with did not. If conmon ended, its
/// number may be any process's.
fn of_crio(node: &Path, id: &str, userdata: &Path) -> Option<Called> {
    let pid = fs::read_to_string(userdata.join("conmon-pidfile")).ok()?;
    let conmon = HostProcess::open(&node.join("proc"), pid.trim().parse().ok()?)?;
    let words = conmon.runs(CONMON).then(|| conmon.arguments().ok()).flatten()?;
    let after = |option: &str| {
        let place = words.iter().position(|word| word == option)?;
        words.get(place + 1).map(String::as_str)
    };
    if after("-c")? != id {
        return None;
    }
    let root = PathBuf::from(after("--runtime-arg")?.strip_prefix("--root=")?);
    Some(Called {
        manager: Manager::CriO,
        kind: kind(node, &root, id)?,
        name: after("-r")?.to_owned(),
        shim: PathBuf::new(),
        root,
        systemd_cgroup: words.iter().any(|word| word == "-s"),
    })
}

fn kind(node: &Path, root: &Path, id: &str) -> Option<Kind> {
    let has = |kind: &Kind| binary::at(node, &root.join(id).join(kind.file())).exists();
    [Kind::Runc, Kind::Crun].into_iter().find(has)
}

#[cfg(test)]
mod tests;
