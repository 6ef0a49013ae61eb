//! The running kubelet's configuration, for the tasks that follow the audits. Calls on D-Bus read it themselves, at most once a second
//! (`dbus/cached_readings.rs`).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stelia_kubelet::KubeletConfig;
use stelia_kubelet::config::{self, ConfigError};
use stelia_kubelet::home::Search;

/// The shortest time between two searches of `/proc`. A search costs three system calls for each process of the node, and is needed only for a
/// kubelet that answers on no known socket.
const SEARCH_INTERVAL: Duration = Duration::from_secs(20);

/// kubelet's configuration. `None`: no kubelet is known. The error says why the configuration cannot be read.
pub(crate) type Read = Result<Option<KubeletConfig>, String>;

/// Reads kubelet's configuration, and keeps the last reading.
pub(crate) struct KubeletConfigReader {
    root: PathBuf,
    state: Mutex<State>,
}

struct State {
    last: Read,
    /// No search of `/proc` before this time.
    next_search: Option<Instant>,
}

impl KubeletConfigReader {
    /// `root` is `/`, or a folder in its form.
    pub(crate) fn new(root: PathBuf) -> Arc<Self> {
        let state = State {
            last: Ok(None),
            next_search: None,
        };
        Arc::new(Self {
            root,
            state: Mutex::new(state),
        })
    }

    /// As [`Self::read_blocking`], now and on a thread that may block.
    pub(crate) async fn read(self: &Arc<Self>) -> Read {
        let reader = self.clone();
        let reading = tokio::task::spawn_blocking(move || reader.read_blocking(Instant::now()));
        reading
            .await
            .unwrap_or_else(|panicked| Err(format!("read kubelet's configuration: {panicked}")))
    }

    /// The running kubelet's configuration. While no kubelet runs: the last one that was read, or else what kubeadm's file says. The last reading
    /// stays because a kubelet that cannot start runs only for moments. Blocks.
    fn read_blocking(&self, now: Instant) -> Read {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let proc = self.root.join("proc");
        let mut found = config::read(&proc, &self.root, Search::Sockets);
        let may_search = state.next_search.is_none_or(|next| next <= now);
        if matches!(found, Err(ConfigError::NotRunning)) && may_search {
            found = config::read(&proc, &self.root, Search::SocketsThenNames);
            // A mistake in a file may be mended before the next audit.
            let is_certain = matches!(found, Ok(_) | Err(ConfigError::NotRunning));
            state.next_search = is_certain.then(|| now + SEARCH_INTERVAL);
        }
        match found {
            Ok(config) => state.last = Ok(Some(config)),
            Err(ConfigError::NotRunning) => {
                if let (Ok(None), Some((_, read))) = (&state.last, config::kubeadm(&self.root)) {
                    state.last = read.map(Some).map_err(|cause| cause.in_full());
                }
            }
            Err(cause) => state.last = Err(cause.in_full()),
        }
        state.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn reserved(read: &Read) -> String {
        let config = read.as_ref().unwrap().as_ref().unwrap();
        config.reserved_system_cpus.to_string()
    }

    #[test]
    fn kubelets_configuration_is_read_kept_or_a_problem() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let run_kubelet = || {
            write("proc/70/comm", "kubelet\n");
            write("proc/70/status", "Uid:\t0\t0\t0\t0\n");
            write("proc/70/cgroup", "0::/system.slice/kubelet.service\n");
            write("proc/70/cmdline", "kubelet\0--config=/etc/k.yaml\0");
        };
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let reader = KubeletConfigReader::new(root.path().to_owned());
        let mut now = Instant::now();
        let mut later = || {
            now += SEARCH_INTERVAL;
            now
        };
        let first = later();
        assert_eq!(reader.read_blocking(first), Ok(None));
        run_kubelet();
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: \"0-1\"\n"));
        // It answers on no socket, and all processes were looked at just now.
        assert_eq!(reader.read_blocking(first), Ok(None));
        assert_eq!(reserved(&reader.read_blocking(later())), "0-1");
        // Between two starts nothing runs.
        std::fs::remove_dir_all(root.path().join("proc/70")).unwrap();
        assert_eq!(reserved(&reader.read_blocking(later())), "0-1");

        run_kubelet();
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: 0\n"));
        let problem = reader.read_blocking(later()).unwrap_err();
        assert!(problem.contains("/etc/k.yaml: reservedSystemCPUs"), "{problem}");
        // An error is read again at once.
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: \"2\"\n"));
        let mended = later();
        assert_eq!(reserved(&reader.read_blocking(mended)), "2");
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: 0\n"));
        let broken = later();
        assert_eq!(reader.read_blocking(broken), Err(problem.clone()));
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: \"2\"\n"));
        assert_eq!(reserved(&reader.read_blocking(broken)), "2");
        write("etc/k.yaml", &format!("{HEAD}reservedSystemCPUs: 0\n"));
        assert_eq!(reader.read_blocking(later()), Err(problem.clone()));
        std::fs::remove_dir_all(root.path().join("proc/70")).unwrap();
        write(
            "var/lib/kubelet/config.yaml",
            &format!("{HEAD}reservedSystemCPUs: \"7\"\n"),
        );
        assert_eq!(reader.read_blocking(later()), Err(problem));
        assert_eq!(
            reserved(&KubeletConfigReader::new(root.path().to_owned()).read_blocking(later())),
            "7"
        );
    }
}
