//! Finds kubelet: its root directory, and the process that is or contains it. Distributions of Kubernetes
//! differ in both, so kubelet is identified by what it does (it listens on `pod-resources/kubelet.sock` in its root
//! directory and writes `cpu_manager_state` there), and only then by a process's name.

mod argv;
mod process;

use std::fs;
use std::path::{Path, PathBuf};

pub(super) use argv::argv;
pub use process::{Host, Process, Search, find};

use super::cpu_manager_state::CPU_MANAGER_STATE;

/// The setting's value for "find the root directory".
pub const AUTO: &str = "auto";

/// The root directories of distributions: kubelet's own default (kubeadm, k3s, RKE2, MicroShift and most others), k0s's
/// and MicroK8s's.
pub const ROOTS: [&str; 3] = [
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
];

/// The socket in its root directory on which kubelet serves pods' resources (on by default since Kubernetes 1.15).
const SOCKET: &str = "pod-resources/kubelet.sock";

/// A directory that may be kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Home {
    root: PathBuf,
    /// Whether it holds `cpu_manager_state`.
    has_state: bool,
    /// The process that listens on kubelet's socket in it, if it runs as root and outside of pods.
    listener: Option<i32>,
}

/// More than one directory could be kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("which is kubelet's root directory is not clear ({}): set kubelet-root", list(.0))]
pub struct Unclear(Vec<Home>);

fn list(homes: &[Home]) -> String {
    let one = |home: &Home| {
        let why = match home.listener {
            Some(pid) => format!("process {pid} answers on its socket"),
            None => format!("holds {CPU_MANAGER_STATE}"),
        };
        format!("{}: {why}", home.root.display())
    };
    homes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Chooses kubelet's directory: the one in which it answers, else the only one that holds its state; `None` where there
/// is neither. `before` is the directory found while kubelet answered, and is kept while kubelet is down.
fn choose<'a>(homes: &'a [Home], before: Option<&Path>) -> Result<Option<&'a Path>, Unclear> {
    let answering = || homes.iter().filter(|home| home.listener.is_some());
    let holding = || homes.iter().filter(|home| home.has_state);
    let found: Vec<&Home> = match answering().next() {
        Some(_) => answering().collect(),
        None => holding().collect(),
    };
    let known = |home: &&&Home| home.listener.is_none() && Some(home.root.as_path()) == before;
    match found.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(&only.root)),
        several => match several.iter().find(known) {
            Some(known) => Ok(Some(&known.root)),
            None => Err(Unclear(several.iter().map(|home| (*home).clone()).collect())),
        },
    }
}

/// Looks at the known root directories below `root` (`/`); of two that are the same through a link the first counts.
/// The listener is determined only where there is more than one directory, because that connects to kubelet.
fn inspect(root: &Path) -> Vec<Home> {
    let mut homes: Vec<(PathBuf, Home)> = Vec::new();
    for known in ROOTS {
        let place = root.join(known.trim_start_matches('/'));
        let Ok(real) = fs::canonicalize(&place) else { continue };
        if !real.is_dir() || homes.iter().any(|(other, _)| *other == real) {
            continue;
        }
        let home = Home {
            has_state: place.join(CPU_MANAGER_STATE).exists(),
            root: place,
            listener: None,
        };
        homes.push((real, home));
    }
    let mut homes: Vec<Home> = homes.into_iter().map(|(_, home)| home).collect();
    if homes.len() > 1 {
        for home in &mut homes {
            let listener = process::listener(&home.root.join(SOCKET));
            home.listener = listener.filter(|pid| process::inspect(&root.join("proc"), *pid).is_some());
        }
    }
    homes
}

/// kubelet's root directory below `root` (`/`): the setting's value, or with [`AUTO`] the one that is found.
///
/// # Errors
/// [`Unclear`].
pub fn by_setting(setting: &Path, root: &Path, before: Option<&Path>) -> Result<PathBuf, Unclear> {
    if setting != Path::new(AUTO) {
        return Ok(setting.to_owned());
    }
    let homes = inspect(root);
    let default = || root.join(ROOTS[0].trim_start_matches('/'));
    Ok(choose(&homes, before)?.map_or_else(default, Path::to_owned))
}

#[cfg(test)]
mod tests;
