//! kubelet's home: its process, and whether the daemon reads the directory that kubelet writes to.

use std::fs;
use std::path::{Path, PathBuf};

use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::home::{Host, Search};
use stelia_kubelet::{KubeletConfig, home};
use stelia_settings::Settings;

use super::Facts;
use super::checks::{Finding, failed, ok, unknown};
use crate::shared::files::{below, without_root};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KubeletHome {
    /// The process, or why it was not identified.
    pub process: Result<home::Process, String>,
    /// The root directory that the daemon reads by its setting, or why it cannot be determined.
    pub read: Result<PathBuf, String>,
    /// Whether kubelet writes to that directory, possibly through a link.
    pub is_kubelets: bool,
}

impl KubeletHome {
    /// Looks for the process and the directory; `root` is `/`.
    pub(super) fn find(root: &Path, settings: &Settings, kubelet: Option<&KubeletConfig>) -> Self {
        let process = home::find(&root.join("proc"), root, Search::SocketsThenNames).map_err(|error| error.to_string());
        let read = home::by_setting(&settings.kubelet_root, root, None).map_err(|error| error.to_string());
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let read = read.map(|path| below(root, &path));
        let is_kubelets = match (&read, kubelet) {
            (Ok(read), Some(kubelet)) => real(read) == real(&below(root, &kubelet.root_dir)),
            _ => true,
        };
        Self {
            process,
            read: read.map(|path| without_root(root, &path)),
            is_kubelets,
        }
    }
}

/// Reports the kubelet that was found, and where the daemon reads.
pub(super) fn check(facts: &Facts) -> Finding {
    let KubeletHome {
        process,
        read,
        is_kubelets,
    } = &facts.home;
    let read = match read {
        Ok(read) => read.display(),
        Err(unclear) => {
            let cure = "set kubelet-root in /etc/stelia/steliad.toml, or remove the files of an earlier kubelet; until then no VM is admitted";
            return failed(unclear, cure);
        }
    };
    let process = match process {
        Ok(process) => process,
        // The check `kubelet-policy` says why, and whether that matters.
        Err(_) => {
            let found = format!("no kubelet process found; {read} is read");
            return if facts.allocator.source == CpuSource::Steliad {
                ok(found)
            } else {
                unknown(found)
            };
        }
    };
    let how_found = match (process.host, &process.root) {
        (Host::K3s, _) => "; its flags in /etc/rancher/k3s are read, its command line is hidden",
        (_, Some(_)) => ", which answers on kubelet's socket",
        (_, None) => ", by its name",
    };
    let found = format!("process {} ({}){how_found}; {read} is read", process.pid, process.name);
    if *is_kubelets {
        return ok(found);
    }
    let its = facts
        .kubelet
        .as_ref()
        .map(|kubelet| kubelet.root_dir.display().to_string());
    failed(
        format!("{found}, and kubelet's is {}", its.unwrap_or_default()),
        "set kubelet-root to it in /etc/stelia/steliad.toml, give steliad-kubelet.path a drop-in (install.md), systemctl reload steliad",
    )
}
