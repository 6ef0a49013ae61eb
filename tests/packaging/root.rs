//! A small root in which rpm itself runs the scriptlets. Its systemctl, busctl and SELinux tools only write down how they are called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::{rpm, run, text};

const TOOLS: [&str; 10] = [
    "systemctl",
    "systemd-run",
    "systemd-sysusers",
    "systemd-tmpfiles",
    "journalctl",
    "busctl",
    "semodule",
    "selinuxenabled",
    "load_policy",
    "restorecon",
];

pub fn scriptlet(package: &str, tag: &str) -> String {
    let format = format!("%{{{tag}}}");
    run(&["rpm", "-qp", "--nosignature", "--qf", &format, text(&rpm(package))])
}

pub struct Root {
    directory: TempDir,
    package: &'static str,
}

impl Root {
    /// A root with a shell, rm, rmdir, find, unlink, and a systemd that runs.
    pub fn new(package: &'static str) -> Self {
        let root = Self {
            directory: tempfile::tempdir().expect("root"),
            package,
        };
        for directory in ["usr/bin", "usr/sbin", "dev", "run/systemd/system", "usr/libexec/stelia"] {
            fs::create_dir_all(root.at(directory)).expect("directory");
        }
        for link in ["bin", "sbin"] {
            std::os::unix::fs::symlink(format!("usr/{link}"), root.at(link)).expect("link");
        }
        for program in ["/bin/sh", "/bin/rm", "/bin/rmdir", "/usr/bin/find", "/usr/bin/unlink"] {
            root.copy(program);
        }
        for tool in TOOLS {
            root.pretend(&format!("usr/bin/{tool}"), tool, 0);
        }
        root
    }

    /// The same with SELinux and a policy of its own.
    pub fn with_selinux(package: &'static str) -> Self {
        let root = Self::new(package);
        fs::create_dir_all(root.at("etc/selinux/targeted/policy")).expect("directory");
        fs::write(
            root.at("etc/selinux/config"),
            "SELINUX=enforcing\nSELINUXTYPE=targeted\n",
        )
        .expect("config");
        root
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A program of this host with the libraries it loads.
    fn copy(&self, program: &str) {
        let libraries = run(&["ldd", program]);
        let needed = libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
            .chain([program]);
        for path in needed {
            let to = self.at(path.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("parent")).expect("directory");
            fs::copy(path, &to).unwrap_or_else(|e| panic!("copy {path}: {e}"));
        }
    }

    /// A program that writes down how it was called, and ends with `code`.
    pub fn pretend(&self, path: &str, name: &str, code: u8) {
        let path = self.at(path);
        fs::write(&path, format!("#!/bin/sh\necho \"{name} $*\" >> /calls\nexit {code}\n")).expect("program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    }

    /// What was called while rpm did this.
    fn rpm(&self, action: &[&str]) -> Vec<String> {
        let _ = fs::remove_file(self.at("calls"));
        let package = [
            "rpm",
            "--root",
            text(self.directory.path()),
            "--force-debian",
            "--nosignature",
            "--nodeps",
        ];
        let output = Command::new(package[0])
            .args(&package[1..])
            .args(action)
            .output()
            .expect("rpm");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rpm {action:?}: {said}");
        let calls = fs::read_to_string(self.at("calls")).unwrap_or_default();
        let calls: Vec<String> = calls.lines().map(str::to_owned).collect();
        // Stopped with the slice, every VM of the node is.
        assert!(!calls.iter().any(|call| call.contains("slice")), "{calls:?}");
        calls
    }

    /// Also a package of another architecture than this host's, of which only data and scripts are looked at.
    pub fn install(&self) -> Vec<String> {
        let calls = self.rpm(&["-i", "--ignorearch", text(&rpm(self.package))]);
        for program in ["steliad", "steliad-quiet"] {
            self.pretend(&format!("usr/libexec/stelia/{program}"), program, 0);
        }
        calls
    }

    pub fn upgrade(&self) -> Vec<String> {
        self.rpm(&["-U", "--ignorearch", "--replacepkgs", text(&rpm(self.package))])
    }

    pub fn remove(&self) -> Vec<String> {
        self.rpm(&["-e", self.package])
    }
}

pub fn place(calls: &[String], call: &str) -> usize {
    let found = calls.iter().position(|made| made == call);
    found.unwrap_or_else(|| panic!("{call} was not called: {calls:#?}"))
}

pub fn called(calls: &[String], start: &str) -> bool {
    calls.iter().any(|call| call.starts_with(start))
}
