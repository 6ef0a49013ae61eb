//! The process that is kubelet, or that contains it.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use stelia_cpus::files;

use super::{ROOTS, SOCKET};
use crate::HostProcess;
use crate::config::ConfigError;

/// The program that a kubelet runs in, which decides where its flags are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// kubelet itself: the flags are on its command line (kubeadm, RKE2, k0s, OpenShift and most others).
    Kubelet,
    /// k3s, which contains kubelet and hides its command line.
    K3s,
    /// MicroK8s's kubelite.
    Kubelite,
    /// MicroShift.
    MicroShift,
    /// Another program that answers on kubelet's socket.
    Unknown,
}

impl Host {
    /// The host that a process's name (`comm`) stands for.
    fn of(name: &str) -> Self {
        match name {
            "kubelet" => Self::Kubelet,
            // k3s executes itself again under the name of its role.
            "k3s-server" | "k3s-agent" => Self::K3s,
            "kubelite" => Self::Kubelite,
            "microshift" => Self::MicroShift,
            _ => Self::Unknown,
        }
    }
}

/// The kubelet that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// The process's name (`comm`).
    pub name: String,
    /// The program that the name stands for.
    pub host: Host,
    /// The root directory in which it answers on its socket, relative to `root`; `None` where it was found by its name.
    pub root: Option<PathBuf>,
}

/// The process that listens on a socket (`SO_PEERCRED`). This connects, and closes the connection at once.
pub(super) fn listener(path: &Path) -> Option<i32> {
    let address = UnixAddr::new(path).ok()?;
    // A listener that does not accept must not block this.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(stream.as_raw_fd(), &address).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).ok()?.pid();
    // 0: its PID namespace is not visible from here.
    (pid > 0).then_some(pid)
}

/// Where the running kubelet is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// On its sockets in the known root directories.
    Sockets,
    /// On these sockets; if no kubelet answers there, among all processes by name.
    SocketsThenNames,
}

/// Finds the running kubelet. `proc` is `/proc`, `root` is `/`.
///
/// # Errors
/// No kubelet runs, or more than one does.
pub fn find(proc: &Path, root: &Path, search: Search) -> Result<Process, ConfigError> {
    let mut found: Vec<Process> = Vec::new();
    for known in ROOTS {
        let socket = root.join(known.trim_start_matches('/')).join(SOCKET);
        let Some(pid) = listener(&socket) else { continue };
        // Two of the directories may be the same through a link.
        if found.iter().any(|process| process.pid == pid) {
            continue;
        }
        let answers = inspect(proc, pid).map(|process| Process {
            root: Some(PathBuf::from(known)),
            ..process
        });
        found.extend(answers);
    }
    if found.is_empty() && search == Search::SocketsThenNames {
        for entry in fs::read_dir(proc).map_err(ConfigError::of_process(proc))? {
            let entry = entry.map_err(ConfigError::read(proc))?;
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // `inspect` reads three files. Only processes with a kubelet's name are worth that.
            let pid = pid.filter(|pid| is_named_as_kubelet(proc, *pid));
            let process = pid.and_then(|pid| inspect(proc, pid));
            // It may have another name by now.
            found.extend(process.filter(|process| process.host != Host::Unknown));
        }
    }
    found.sort_by_key(|process| process.pid);
    match found.len() {
        0 => Err(ConfigError::NotRunning),
        1 => Ok(found.remove(0)),
        _ => Err(ConfigError::Several(found.iter().map(|process| process.pid).collect())),
    }
}

/// Whether the process has a name under which kubelet runs. Not a proof: any process can take a name.
fn is_named_as_kubelet(proc: &Path, pid: i32) -> bool {
    let name = files::read(&proc.join(pid.to_string()).join("comm")).unwrap_or_default();
    Host::of(String::from_utf8_lossy(&name).trim_end()) != Host::Unknown
}

/// The process, if it is the node's own: any process can take a name, and a pod may mount kubelet's directory. `None` also for one
/// that ends meanwhile.
pub(super) fn inspect(proc: &Path, pid: i32) -> Option<Process> {
    let name = HostProcess::open(proc, pid)?.name().to_owned();
    Some(Process {
        pid,
        host: Host::of(&name),
        name,
        root: None,
    })
}
