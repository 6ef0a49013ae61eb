//! The scriptlets, run by rpm itself in a small root whose systemctl, busctl and SELinux tools only write down how they are called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{given, run, text};

const SCRIPTLETS: [(&str, &str); 3] = [("POSTIN", "post"), ("PREUN", "preun"), ("POSTUN", "postun")];
const TOOLS: [&str; 7] = [
    "systemctl",
    "journalctl",
    "busctl",
    "semodule",
    "selinuxenabled",
    "load_policy",
    "restorecon",
];

fn scriptlet(tag: &str) -> String {
    run(&[
        "rpm",
        "-qp",
        "--nosignature",
        "--qf",
        &format!("%{{{tag}}}"),
        text(&given("STELIA_RPM")),
    ])
}

struct Root {
    directory: TempDir,
}

impl Root {
    /// A root with a shell, rmdir, and a systemd that runs.
    fn new() -> Self {
        let root = Self {
            directory: tempfile::tempdir().expect("root"),
        };
        for directory in ["usr/bin", "usr/sbin", "dev", "run/systemd/system", "usr/libexec/stelia"] {
            fs::create_dir_all(root.at(directory)).expect("directory");
        }
        for link in ["bin", "sbin"] {
            std::os::unix::fs::symlink(format!("usr/{link}"), root.at(link)).expect("link");
        }
        for program in ["/bin/sh", "/bin/rmdir"] {
            root.copy(program);
        }
        for tool in TOOLS {
            root.pretend(&format!("usr/bin/{tool}"), tool, 0);
        }
        root
    }

    /// The same with SELinux and a policy of its own.
    fn with_selinux() -> Self {
        let root = Self::new();
        fs::create_dir_all(root.at("etc/selinux/targeted/policy")).expect("directory");
        fs::write(
            root.at("etc/selinux/config"),
            "SELINUX=enforcing\nSELINUXTYPE=targeted\n",
        )
        .expect("config");
        root
    }

    fn at(&self, path: &str) -> PathBuf {
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
    fn pretend(&self, path: &str, name: &str, code: u8) {
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

    fn install(&self) -> Vec<String> {
        let calls = self.rpm(&["-i", text(&given("STELIA_RPM"))]);
        self.pretend("usr/libexec/stelia/steliad", "steliad", 0);
        self.pretend("usr/libexec/stelia/steliad-quiet", "steliad-quiet", 0);
        calls
    }

    fn upgrade(&self) -> Vec<String> {
        self.rpm(&["-U", "--replacepkgs", text(&given("STELIA_RPM"))])
    }

    fn remove(&self) -> Vec<String> {
        self.rpm(&["-e", "steliad"])
    }
}

fn place(calls: &[String], call: &str) -> usize {
    let found = calls.iter().position(|made| made == call);
    found.unwrap_or_else(|| panic!("{call} was not called: {calls:#?}"))
}

fn called(calls: &[String], start: &str) -> bool {
    calls.iter().any(|call| call.starts_with(start))
}

const BUS_RELOADS: &str =
    "busctl --quiet call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus ReloadConfig";
const INSERTS: &str = "semodule -n -s targeted -X 200 -i /usr/share/selinux/packages/steliad.pp.bz2";

#[test]
fn they_are_the_committed_ones_and_right_by_syntax() {
    for (tag, file) in SCRIPTLETS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/rpm").join(file);
        let committed = fs::read_to_string(&path).expect("scriptlet");
        assert_eq!(scriptlet(tag).trim(), committed.trim(), "{file}");
        assert_eq!(scriptlet(&format!("{tag}PROG")), "/bin/sh", "{file}");
        run(&["sh", "-n", text(&path)]);
        let code = committed.lines().filter(|line| !line.trim_start().starts_with('#'));
        assert!(
            !code.into_iter().any(|line| line.contains("slice")),
            "{file} does something to the slice"
        );
    }
    for other in ["PREIN", "PRETRANS", "POSTTRANS", "VERIFYSCRIPT"] {
        assert_eq!(scriptlet(other), "(none)", "{other}");
    }
}

#[test]
fn a_first_install_asks_the_preset_tells_the_bus_and_starts_what_is_enabled() {
    let calls = Root::new().install();
    let preset = "systemctl --no-reload --quiet preset steliad-runner.socket steliad-kubelet.path steliad.service";
    let reload = place(&calls, "systemctl daemon-reload");
    assert!(place(&calls, preset) < reload);
    assert!(reload < place(&calls, BUS_RELOADS));
    for unit in ["steliad-runner.socket", "steliad-kubelet.path", "steliad.service"] {
        assert!(
            place(&calls, BUS_RELOADS) < place(&calls, &format!("systemctl start {unit}")),
            "{unit}"
        );
    }
    assert!(!called(&calls, "systemctl stop"));
    place(&calls, "journalctl --update-catalog");
    // No SELinux here: nothing of it is touched.
    assert!(!called(&calls, "semodule") && !called(&calls, "restorecon") && !called(&calls, "load_policy"));
}

#[test]
fn what_the_preset_left_disabled_is_not_started() {
    let root = Root::new();
    let systemctl = "#!/bin/sh\necho \"systemctl $*\" >> /calls\ncase \"$*\" in *is-enabled*) exit 1 ;; esac\n";
    fs::write(root.at("usr/bin/systemctl"), systemctl).expect("systemctl");
    let calls = root.install();
    assert!(
        called(&calls, "systemctl --quiet is-enabled") && !called(&calls, "systemctl start"),
        "{calls:?}"
    );
}

#[test]
fn an_upgrade_restarts_the_daemon_stops_nothing_and_presets_nothing() {
    let root = Root::with_selinux();
    root.install();
    let calls = root.upgrade();
    let quiet = place(&calls, "systemctl try-restart steliad-quiet.service");
    assert!(place(&calls, "systemctl daemon-reload") < quiet);
    assert!(quiet < place(&calls, "systemctl try-restart steliad.service"));
    place(&calls, INSERTS);
    for never in [
        "systemctl stop",
        "systemctl --no-reload",
        "semodule -n -s targeted -X 200 -r",
        "steliad ",
        "steliad-quiet ",
    ] {
        assert!(!called(&calls, never), "{never}: {calls:?}");
    }
}

#[test]
fn a_removal_stops_what_starts_the_daemon_first_and_gives_the_host_its_cpus_and_interrupts_back() {
    let root = Root::new();
    root.install();
    let calls = root.remove();
    let stops = "systemctl stop steliad-metrics.timer steliad-kubelet.path steliad-runner.socket steliad-kubelet.service steliad.service";
    let release = place(&calls, "steliad --release-host");
    assert!(place(&calls, stops) < release);
    let stops_quiet = place(&calls, "systemctl stop steliad-quiet.socket steliad-quiet.service");
    assert!(release < stops_quiet && stops_quiet < place(&calls, "steliad-quiet --restore"));
    assert_eq!(
        calls.iter().filter(|call| call.starts_with("systemctl stop")).count(),
        2
    );
    let disable = "systemctl --no-reload --quiet disable steliad-metrics.timer steliad-runner.socket steliad-kubelet.path steliad.service";
    let reload = place(&calls, "systemctl daemon-reload");
    assert!(release < place(&calls, disable) && place(&calls, disable) < reload);
    place(
        &calls,
        "systemctl reset-failed steliad.service steliad-quiet.service steliad-kubelet.service",
    );
    place(&calls, "journalctl --update-catalog");
    assert!(reload < place(&calls, BUS_RELOADS));
    for directory in [
        "etc/stelia",
        "usr/libexec/stelia",
        "usr/share/steliad",
        "usr/share/doc/steliad",
    ] {
        assert!(!root.at(directory).exists(), "{directory} is left");
    }
}

#[test]
fn a_removal_leaves_what_the_administrator_wrote() {
    let root = Root::new();
    root.install();
    fs::create_dir_all(root.at("etc/stelia/steliad.toml.d")).expect("directory");
    fs::write(
        root.at("etc/stelia/steliad.toml.d/mine.toml"),
        "placement = \"linear\"\n",
    )
    .expect("drop-in");
    fs::write(root.at("etc/stelia/steliad.toml"), "float-policy = \"node\"\n").expect("configuration");
    root.upgrade();
    assert_eq!(
        fs::read_to_string(root.at("etc/stelia/steliad.toml")).expect("kept"),
        "float-policy = \"node\"\n"
    );
    root.remove();
    assert!(root.at("etc/stelia/steliad.toml.d/mine.toml").exists());
    assert!(root.at("etc/stelia/steliad.toml.rpmsave").exists());
}

#[test]
fn with_selinux_the_module_is_in_and_the_files_labelled_before_anything_starts() {
    let root = Root::with_selinux();
    fs::create_dir_all(root.at("run/stelia/runner")).expect("directory");
    fs::create_dir_all(root.at("run/stelia/publish")).expect("directory");
    let calls = root.install();
    let inserted = place(&calls, INSERTS);
    let loaded = place(&calls, "load_policy ");
    let labelled = place(&calls, "restorecon -R /usr/libexec/stelia");
    let socket = place(&calls, "restorecon -R /run/stelia");
    let started = place(&calls, "systemctl start steliad-runner.socket");
    assert!(
        inserted < loaded && loaded < labelled && labelled < socket && socket < started,
        "{calls:#?}"
    );

    let calls = root.remove();
    let stopped = calls
        .iter()
        .position(|call| call.starts_with("systemctl stop"))
        .expect("stopped");
    assert!(stopped < place(&calls, "semodule -n -s targeted -X 200 -r steliad"));
    // Pods have it mounted.
    assert!(root.at("run/stelia/runner").exists());
    assert!(!root.at("run/stelia/publish").exists());
}

#[test]
fn an_image_that_is_built_without_selinux_in_force_gets_the_module_all_the_same() {
    let root = Root::with_selinux();
    root.pretend("usr/bin/selinuxenabled", "selinuxenabled", 1);
    let calls = root.install();
    place(&calls, INSERTS);
    assert!(!called(&calls, "load_policy") && !called(&calls, "restorecon"));
}

#[test]
fn a_module_that_does_not_load_is_no_reason_to_fail() {
    let root = Root::with_selinux();
    root.pretend("usr/bin/semodule", "semodule", 1);
    place(&root.install(), "systemctl start steliad.service");
    root.remove();
}
