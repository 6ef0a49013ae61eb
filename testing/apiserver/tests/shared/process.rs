//! The publisher's program beside a folder as the daemon writes it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stelia_api::publication::{FILE, LOCK, Publication};
use tempfile::TempDir;

pub struct Process {
    folder: TempDir,
    /// The daemon's, locked while it lives.
    _lock: File,
    child: Child,
}

impl Process {
    pub fn start(program: &Path, kubeconfig: &str, first: &Publication) -> Self {
        let folder = TempDir::new().unwrap();
        let lock = File::create(folder.path().join(LOCK)).unwrap();
        lock.lock().unwrap();
        let config = folder.path().join("kubeconfig");
        std::fs::write(&config, kubeconfig).unwrap();
        write(folder.path(), first);
        let mut command = Command::new(program);
        command.arg("--directory").arg(folder.path());
        command.arg("--kubeconfig").arg(config).args(["--start-spread", "0"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self {
            folder,
            _lock: lock,
            child,
        }
    }

    pub fn tell(&self, publication: &Publication) {
        write(self.folder.path(), publication);
    }

    /// Resident memory now and at its highest, KiB; prints both and fails above the bar.
    pub fn hold_to(&self, bar: u64, when: &str) -> (u64, u64) {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).unwrap();
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let line = line.expect("a line of the kernel's");
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let (now, highest) = (kib("VmRSS:"), kib("VmHWM:"));
        println!(
            "stelia-publish {when}: {now} KiB resident, {highest} KiB at most (bar {bar}); anonymous {} KiB",
            kib("RssAnon:")
        );
        assert!(highest <= bar, "{highest} KiB, above {bar}");
        (now, highest)
    }
}

fn write(folder: &Path, publication: &Publication) {
    let new = folder.join("node.json.new");
    std::fs::write(&new, serde_json::to_vec(publication).unwrap()).unwrap();
    std::fs::rename(new, folder.join(FILE)).unwrap();
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
