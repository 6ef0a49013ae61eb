//! Where container runtimes keep what they wrote down of their containers. Everything that reads a runtime's files finds them here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// The folders in which containerd keeps its state (`state` of its config.toml), below the node's root: that of kubeadm and most
/// others; of k3s, RKE2 and Harvester; of k0s; of MicroK8s.
const CONTAINERD: [&str; 4] = [
    "run/containerd",
    "run/k3s/containerd",
    "run/k0s/containerd",
    "var/snap/microk8s/common/run/containerd",
];
/// In such a folder: its containers by namespace, each with a folder of its own, the bundle.
const TASKS: &str = "io.containerd.runtime.v2.task";
/// The namespace of Kubernetes' containers. Others may be beside it, as Docker's `moby`.
const KUBERNETES: &str = "k8s.io";
/// Where CRI-O keeps its containers (`runroot` of its storage), below the node's root.
const CRIO: &str = "run/containers/storage";
/// What the folder of containers in it ends with; the storage's driver is before that.
const CRIO_CONTAINERS: &str = "-containers";

/// Further folders, by the setting `runtime-state`: of this process, as the settings are.
static ALSO: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());

/// Sets the folders that are read too, absolute paths of the node: containerd's `state`, or the `runroot` of CRI-O's storage. They
/// replace those of an earlier call.
pub fn set_runtime_state_folders(folders: Vec<PathBuf>) {
    *ALSO.write().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// What a runtime's manager keeps of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bundle {
    Containerd {
        /// containerd's namespace.
        namespace: OsString,
        path: PathBuf,
    },
    CriO {
        /// The container's `userdata`.
        path: PathBuf,
    },
}

impl Bundle {
    fn path(&self) -> &Path {
        match self {
            Self::Containerd { path, .. } | Self::CriO { path } => path,
        }
    }

    /// The container's configuration (OCI runtime specification).
    pub(crate) fn config(&self) -> PathBuf {
        self.path().join("config.json")
    }

    /// For a container of CRI-O the process id of its conmon is enough to find its runtime.
    fn is_there(&self) -> bool {
        match self {
            Self::Containerd { .. } => self.config().exists(),
            Self::CriO { path } => path.exists(),
        }
    }

    fn is_of_kubernetes(&self) -> bool {
        match self {
            Self::Containerd { namespace, .. } => namespace == OsStr::new(KUBERNETES),
            Self::CriO { .. } => true,
        }
    }
}

/// The bundles of a container, those of Kubernetes first. `node` is `/`. Two managers on one node do not
/// make the same id, but what is left of a former one may be there.
pub(crate) fn bundles(node: &Path, id: &str) -> Vec<Bundle> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    // It becomes a part of paths.
    if id.is_empty() || id.starts_with('.') || !id.bytes().all(is_name) {
        return Vec::new();
    }
    let also = ALSO.read().unwrap_or_else(PoisonError::into_inner);
    let also = also.iter().map(|folder| folder.strip_prefix("/").unwrap_or(folder));
    let also: Vec<PathBuf> = also.map(|folder| node.join(folder)).collect();
    let containerd = CONTAINERD.iter().map(|state| node.join(state));
    let containerd = containerd.chain(also.iter().cloned()).flat_map(|state| {
        let namespaces = folders(&state.join(TASKS));
        namespaces.map(|(namespace, path)| Bundle::Containerd {
            namespace,
            path: path.join(id),
        })
    });
    let crio = std::iter::once(node.join(CRIO)).chain(also.iter().cloned());
    let crio = crio.flat_map(|storage| {
        let is_of_containers = |name: &OsStr| name.to_str().is_some_and(|name| name.ends_with(CRIO_CONTAINERS));
        let drivers = folders(&storage).filter(move |(name, _)| is_of_containers(name));
        drivers.map(|(_, path)| Bundle::CriO {
            path: path.join(id).join("userdata"),
        })
    });
    let mut found: Vec<Bundle> = containerd.chain(crio).filter(Bundle::is_there).collect();
    found.sort_by_key(|bundle| !bundle.is_of_kubernetes());
    found
}

/// What is in a folder, by name; nothing where it is not there.
fn folders(folder: &Path) -> impl Iterator<Item = (OsString, PathBuf)> + use<> {
    let mut found: Vec<(OsString, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| (entry.file_name(), entry.path()))
        .collect();
    found.sort();
    found.into_iter()
}
