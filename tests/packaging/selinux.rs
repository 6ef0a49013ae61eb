//! The module, linked with Debian's reference policy and a small container policy. Decisions are those of libsepol's security
//! server, which is what the kernel decides by: rules, constraints and categories together.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::{given, run, text};

const CONTAINER: &str = "system_u:system_r:container_t:s0:c1,c2";
const DAEMON: &str = "system_u:system_r:steliad_t:s0";
const SYSTEMD: &str = "system_u:system_r:init_t:s0";
const DIRECTORY: &str = "system_u:object_r:stelia_runner_var_run_t:s0";
const PUBLISHED: &str = "system_u:object_r:stelia_publish_var_run_t:s0";
const PROGRAM: &str = "system_u:object_r:steliad_exec_t:s0";
const QUIET: &str = "system_u:system_r:steliad_quiet_t:s0";
const QUIETS_PROGRAM: &str = "system_u:object_r:steliad_quiet_exec_t:s0";
const PLUGIN: &str = "system_u:system_r:stelia_device_plugin_t:s0";
const PLUGINS_PROGRAM: &str = "system_u:object_r:stelia_device_plugin_exec_t:s0";
const PUBLISH: &str = "system_u:system_r:stelia_publish_t:s0";
const PUBLISHS_PROGRAM: &str = "system_u:object_r:stelia_publish_exec_t:s0";
const PUBLISHS_KUBECONFIG: &str = "system_u:object_r:stelia_publish_etc_t:s0";
const PLACEMENT: &str = "system_u:system_r:stelia_placement_t:s0";
const PLACEMENTS_PROGRAM: &str = "system_u:object_r:stelia_placement_exec_t:s0";
const PLACEMENTS_KUBECONFIG: &str = "system_u:object_r:stelia_placement_etc_t:s0";
const LEDGER: &str = "system_u:object_r:steliad_var_lib_t:s0";
const OTHER_SERVICE: &str = "system_u:system_r:other_service_t:s0";

/// A service that has nothing to do with containers.
const OTHER: &str = "(type other_service_t)(roletype object_r other_service_t)(roletype system_r other_service_t)
(typeattributeset domain (other_service_t))";
/// What container-selinux declares, as far as it matters here.
const CONTAINERS: &str = "(type container_t)(roletype object_r container_t)(roletype system_r container_t)
(typeattributeset domain (container_t))";
const ATTRIBUTE: &str = "(typeattribute container_domain)(typeattributeset container_domain (container_t))";

/// The package as CIL, by the tool that semodule uses.
fn cil(package: &str) -> String {
    let unpacked = tempfile::NamedTempFile::new().expect("file");
    let packed = given("STELIA_SELINUX").join(package);
    let out = unpacked.reopen().expect("file");
    let status = Command::new("bzip2")
        .args(["-dc", text(&packed)])
        .stdout(out)
        .status()
        .expect("bzip2");
    assert!(status.success(), "bzip2 -dc {}", packed.display());
    run(&["/usr/libexec/selinux/hll/pp", text(unpacked.path())])
}

fn module() -> &'static str {
    static MODULE: OnceLock<String> = OnceLock::new();
    MODULE.get_or_init(|| cil("steliad.pp.bz2"))
}

/// The reference policy's base, without the mapping of users, which names modules beyond it.
fn base() -> &'static str {
    static BASE: OnceLock<String> = OnceLock::new();
    BASE.get_or_init(|| {
        let all = cil("base.pp.bz2");
        all.lines()
            .filter(|line| !line.starts_with("(selinuxuser"))
            .fold(String::new(), |kept, line| kept + line + "\n")
    })
}

struct Policy {
    directory: TempDir,
}

impl Policy {
    /// The base, a container policy and the module, linked. Never-allow rules are checked on the way.
    fn link(others: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        for (name, cil) in [("base.cil", base()), ("others.cil", others), ("steliad.cil", module())] {
            fs::write(at(name), cil).expect("write");
        }
        let (kernel, contexts) = (at("policy"), at("file_contexts"));
        let sources = [at("base.cil"), at("others.cil"), at("steliad.cil")];
        let mut command = vec!["secilc", "-c", "31", "-o", text(&kernel), "-f", text(&contexts)];
        command.extend(sources.iter().map(|source| text(source)));
        run(&command);
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("policy")
    }

    /// One dialogue with the security server. It takes numbers, which it gives the contexts in the order it sees them.
    fn dialogue(&self, contexts: &[&str], questions: &str) -> String {
        let mut server = Command::new("checkpolicy")
            .args(["-b", "-M", "-d", text(&self.path())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("checkpolicy");
        let known: String = contexts.iter().map(|context| format!("2\n{context}\n")).collect();
        let mut input = server.stdin.take().expect("input");
        writeln!(input, "{known}{questions}q").expect("questions");
        drop(input);
        let output = server.wait_with_output().expect("checkpolicy");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn numbers(&self, contexts: &[&str]) -> Vec<u32> {
        let said = self.dialogue(contexts, "");
        let numbers: Vec<u32> = said
            .lines()
            .filter_map(|line| line.strip_prefix("sid ")?.trim().parse().ok())
            .collect();
        assert_eq!(
            numbers.len(),
            contexts.len(),
            "a context of {contexts:?} is not valid:\n{said}"
        );
        numbers
    }

    fn allowed(&self, from: &str, to: &str, class: &str) -> BTreeSet<String> {
        let sids = self.numbers(&[from, to]);
        let said = self.dialogue(&[from, to], &format!("0\n{}\n{}\n{class}\n", sids[0], sids[1]));
        let (_, list) = said
            .split_once("allowed {")
            .unwrap_or_else(|| panic!("no decision on {class}:\n{said}"));
        let (list, _) = list.split_once('}').expect("a list");
        list.split_whitespace().map(str::to_owned).collect()
    }

    fn allows(&self, from: &str, to: &str, class: &str, permissions: &[&str]) -> bool {
        let allowed = self.allowed(from, to, class);
        permissions.iter().all(|permission| allowed.contains(*permission))
    }

    /// The context of what `from` makes of `to`.
    fn becomes(&self, from: &str, to: &str, class: &str, expected: &str) -> bool {
        let contexts = [from, to, expected];
        let sids = self.numbers(&contexts);
        let said = self.dialogue(&contexts, &format!("3\n{}\n{}\n{class}\n", sids[0], sids[1]));
        let last = said
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("sid "))
            .expect("sid");
        last.trim().parse() == Ok(sids[2])
    }

    fn label(&self, kind: &str, path: &str) -> String {
        let contexts = self.directory.path().join("file_contexts");
        run(&["matchpathcon", "-n", "-f", text(&contexts), "-m", kind, path])
            .trim()
            .to_owned()
    }
}

#[test]
fn the_module_needs_only_names_that_fedoras_and_the_reference_policy_both_have() {
    // Optional blocks are indented: what they name may be missing.
    let needed: BTreeSet<&str> = module()
        .lines()
        .filter(|line| line.starts_with('(') && line.contains("cil_gen_require"))
        .filter_map(|line| line.trim_end_matches(')').split_whitespace().last())
        .collect();
    let both = [
        "domain",
        "entry_type",
        "exec_type",
        "file_type",
        "init_t",
        "system_r",
        "tmpfs_t",
    ];
    assert_eq!(needed, BTreeSet::from(both));
}

#[test]
fn a_container_connects_to_the_runner_socket_and_to_no_other_service() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    assert!(policy.allows(CONTAINER, DIRECTORY, "dir", &["search"]));
    assert!(policy.allows(CONTAINER, DIRECTORY, "sock_file", &["write"]));
    assert_eq!(
        policy.allowed(CONTAINER, DAEMON, "unix_stream_socket"),
        BTreeSet::from(["connectto".to_owned()])
    );

    for service in [OTHER_SERVICE, SYSTEMD, QUIET, PLUGIN] {
        assert!(
            !policy.allows(CONTAINER, service, "unix_stream_socket", &["connectto"]),
            "{service}"
        );
    }
    for (class, permission) in [
        ("dir", "write"),
        ("dir", "add_name"),
        ("sock_file", "create"),
        ("sock_file", "unlink"),
    ] {
        assert!(
            !policy.allows(CONTAINER, DIRECTORY, class, &[permission]),
            "{class} {permission}"
        );
    }
    for permission in ["signal", "ptrace", "transition"] {
        assert!(
            !policy.allows(CONTAINER, DAEMON, "process", &[permission]),
            "{permission}"
        );
    }
}

#[test]
fn the_rule_is_found_by_sesearch_for_the_type_and_for_the_attribute() {
    let policy = Policy::link(&[CONTAINERS, ATTRIBUTE].concat());
    let path = policy.path();
    let rules = run(&[
        "sesearch",
        "-A",
        "-s",
        "container_t",
        "-t",
        "steliad_t",
        "-c",
        "unix_stream_socket",
        text(&path),
    ]);
    let rules: BTreeSet<&str> = rules.lines().collect();
    assert!(
        rules.contains("allow container_t steliad_t:unix_stream_socket connectto;"),
        "{rules:?}"
    );
    assert!(
        rules.contains("allow container_domain steliad_t:unix_stream_socket connectto;"),
        "{rules:?}"
    );
}

#[test]
fn a_container_policy_without_the_attribute_or_none_at_all_is_no_obstacle() {
    let named = Policy::link(CONTAINERS);
    assert!(named.allows(CONTAINER, DAEMON, "unix_stream_socket", &["connectto"]));
    let none = Policy::link("");
    assert!(none.becomes(SYSTEMD, PROGRAM, "process", DAEMON));
}

#[test]
fn systemd_makes_the_socket_and_starts_the_daemon_in_its_domain() {
    let policy = Policy::link(CONTAINERS);
    assert!(policy.becomes(SYSTEMD, PROGRAM, "process", DAEMON));
    assert!(policy.allows(SYSTEMD, PROGRAM, "file", &["read", "open", "execute", "map"]));
    assert!(policy.allows(
        SYSTEMD,
        DAEMON,
        "process",
        &["transition", "rlimitinh", "signal", "sigkill"]
    ));
    // The unit has NoNewPrivileges=yes.
    assert!(policy.allows(SYSTEMD, DAEMON, "process2", &["nnp_transition"]));
    assert!(policy.allows(DAEMON, PROGRAM, "file", &["entrypoint"]));
    assert!(policy.allows(
        SYSTEMD,
        DAEMON,
        "unix_stream_socket",
        &["create", "bind", "listen", "setopt"]
    ));
    assert!(policy.allows(SYSTEMD, DIRECTORY, "dir", &["create", "search", "write", "add_name"]));
    assert!(policy.allows(SYSTEMD, DIRECTORY, "sock_file", &["create", "setattr"]));
    let tmpfs = "system_u:object_r:tmpfs_t:s0";
    assert!(policy.allows(DIRECTORY, tmpfs, "filesystem", &["associate"]));
}

#[test]
fn a_container_reads_what_the_cluster_is_told_and_the_daemon_alone_writes_it() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    let reads = ["getattr", "lock", "open", "read", "watch"];
    assert!(policy.allows(CONTAINER, PUBLISHED, "file", &reads));
    assert!(policy.allows(
        CONTAINER,
        PUBLISHED,
        "dir",
        &["getattr", "open", "read", "search", "watch"]
    ));
    for may_not in ["write", "append", "create", "unlink", "setattr"] {
        assert!(!policy.allows(CONTAINER, PUBLISHED, "file", &[may_not]), "{may_not}");
    }
    assert!(!policy.allows(CONTAINER, PUBLISHED, "dir", &["add_name"]));
    assert!(policy.allows(
        DAEMON,
        PUBLISHED,
        "file",
        &["create", "write", "rename", "unlink", "lock"]
    ));
    assert!(policy.allows(DAEMON, PUBLISHED, "dir", &["add_name", "remove_name", "write"]));
    assert!(policy.allows(SYSTEMD, PUBLISHED, "dir", &["create", "relabelto", "search"]));
    assert!(policy.allows(PUBLISHED, "system_u:object_r:tmpfs_t:s0", "filesystem", &["associate"]));
}

#[test]
fn the_daemon_reads_everybodys_state_and_writes_the_cgroups() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    assert!(policy.allows(DAEMON, OTHER_SERVICE, "file", &["open", "read"]));
    assert!(policy.allows(DAEMON, CONTAINER, "process", &["setsched", "getsched"]));
    assert!(!policy.allows(DAEMON, OTHER_SERVICE, "process", &["setsched"]));
    let cgroup = "system_u:object_r:cgroup_t:s0";
    assert!(policy.allows(DAEMON, cgroup, "file", &["open", "read", "write"]));
    assert!(policy.allows(DAEMON, cgroup, "dir", &["create", "rmdir", "setattr", "watch"]));
    let bus = "system_u:system_r:system_dbusd_t:s0";
    assert!(policy.allows(DAEMON, bus, "dbus", &["acquire_svc", "send_msg"]));
    assert!(policy.allows(OTHER_SERVICE, DAEMON, "dbus", &["send_msg"]));
}

#[test]
fn systemd_starts_steliad_quiet_in_a_domain_that_the_daemon_reaches_and_no_container() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    assert!(policy.becomes(SYSTEMD, QUIETS_PROGRAM, "process", QUIET));
    assert!(policy.allows(SYSTEMD, QUIET, "process2", &["nnp_transition"]));
    assert!(policy.allows(QUIET, QUIETS_PROGRAM, "file", &["entrypoint"]));
    assert!(policy.allows(
        SYSTEMD,
        QUIET,
        "unix_stream_socket",
        &["create", "bind", "listen", "setopt"]
    ));
    assert!(policy.allows(DAEMON, QUIET, "unix_stream_socket", &["connectto"]));
    let run = "system_u:object_r:var_run_t:s0";
    assert!(policy.allows(DAEMON, run, "sock_file", &["write"]));
    assert!(!policy.allows(CONTAINER, run, "sock_file", &["write"]));
}

#[test]
fn steliad_quiet_writes_masks_and_the_cpus_files_and_only_reads_the_cgroups() {
    let policy = Policy::link(OTHER);
    let irq = "system_u:object_r:sysctl_irq_t:s0";
    assert!(policy.allows(QUIET, irq, "file", &["open", "read", "write"]));
    assert!(policy.allows(QUIET, "system_u:object_r:sysfs_t:s0", "file", &["open", "write"]));
    assert!(policy.allows(QUIET, OTHER_SERVICE, "file", &["open", "read"]));
    assert!(policy.allows(DAEMON, "system_u:system_r:kernel_t:s0", "process", &["setsched"]));
    assert!(!policy.allows(QUIET, OTHER_SERVICE, "process", &["setsched"]));
    let cgroup = "system_u:object_r:cgroup_t:s0";
    assert!(policy.allows(QUIET, cgroup, "file", &["open", "read"]));
    assert!(!policy.allows(QUIET, cgroup, "file", &["write"]));
    assert!(policy.allowed(QUIET, QUIET, "capability").is_empty());
}

#[test]
fn the_device_plugin_makes_its_socket_in_kubelets_folder_and_reaches_kubelet_and_no_container() {
    let kubelet = "(type kubelet_t)(roletype object_r kubelet_t)(roletype system_r kubelet_t)
(typeattributeset domain (kubelet_t))
(type container_file_t)(roletype object_r container_file_t)(typeattributeset file_type (container_file_t))";
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE, kubelet].concat());
    assert!(policy.becomes(SYSTEMD, PLUGINS_PROGRAM, "process", PLUGIN));
    assert!(policy.allows(SYSTEMD, PLUGIN, "process2", &["nnp_transition"]));
    assert!(policy.allows(PLUGIN, PLUGINS_PROGRAM, "file", &["entrypoint"]));
    let folder = "system_u:object_r:container_file_t:s0";
    assert!(policy.allows(PLUGIN, folder, "sock_file", &["create", "setattr", "unlink", "write"]));
    assert!(policy.allows(PLUGIN, folder, "dir", &["add_name", "remove_name", "search", "watch"]));
    assert!(policy.allows(PLUGIN, folder, "file", &["open", "read"]));
    assert!(!policy.allows(PLUGIN, folder, "file", &["write"]));
    let kubelet = "system_u:system_r:kubelet_t:s0";
    for (from, to) in [(PLUGIN, kubelet), (kubelet, PLUGIN)] {
        assert!(policy.allows(from, to, "unix_stream_socket", &["connectto"]), "{from}");
    }
    assert!(policy.allows(PLUGIN, DAEMON, "dbus", &["send_msg"]));
    assert!(!policy.allows(PLUGIN, CONTAINER, "unix_stream_socket", &["connectto"]));
    assert!(!policy.allows(PLUGIN, DIRECTORY, "sock_file", &["write"]));
    assert!(!policy.allows(PLUGIN, "system_u:object_r:kvm_device_t:s0", "chr_file", &["open"]));
    assert!(policy.allowed(PLUGIN, PLUGIN, "capability").is_empty());
}

#[test]
fn the_publisher_reads_what_it_is_told_and_its_key_connects_to_the_api_server_and_to_nothing_of_the_daemon() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    assert!(policy.becomes(SYSTEMD, PUBLISHS_PROGRAM, "process", PUBLISH));
    assert!(policy.allows(SYSTEMD, PUBLISH, "process2", &["nnp_transition"]));
    assert!(policy.allows(PUBLISH, PUBLISHS_PROGRAM, "file", &["entrypoint"]));
    for file in [PUBLISHED, PUBLISHS_KUBECONFIG] {
        assert!(
            policy.allows(PUBLISH, file, "file", &["open", "read", "watch"]),
            "{file}"
        );
        assert!(policy.allows(PUBLISH, file, "dir", &["search", "watch"]), "{file}");
        for permission in ["write", "append", "unlink", "create"] {
            assert!(
                !policy.allows(PUBLISH, file, "file", &[permission]),
                "{file}: {permission}"
            );
        }
    }
    let port = "system_u:object_r:http_port_t:s0";
    assert!(policy.allows(PUBLISH, port, "tcp_socket", &["name_connect"]));
    for socket in [DAEMON, QUIET, OTHER_SERVICE] {
        assert!(
            !policy.allows(PUBLISH, socket, "unix_stream_socket", &["connectto"]),
            "{socket}"
        );
    }
    assert!(!policy.allows(PUBLISH, DIRECTORY, "sock_file", &["write"]));
    assert!(!policy.allows(PUBLISH, OTHER_SERVICE, "file", &["open"]));
    assert!(policy.allowed(PUBLISH, PUBLISH, "capability").is_empty());
    // Its key is its own.
    for reader in [CONTAINER, OTHER_SERVICE, QUIET] {
        assert!(
            !policy.allows(reader, PUBLISHS_KUBECONFIG, "file", &["read"]),
            "{reader}"
        );
    }
}

#[test]
fn placement_listens_and_reads_its_keys_and_has_no_way_to_the_daemon() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    assert!(policy.becomes(SYSTEMD, PLACEMENTS_PROGRAM, "process", PLACEMENT));
    assert!(policy.allows(SYSTEMD, PLACEMENT, "process2", &["nnp_transition"]));
    assert!(policy.allows(PLACEMENT, PLACEMENTS_PROGRAM, "file", &["entrypoint"]));
    assert!(policy.allows(PLACEMENT, PLACEMENTS_KUBECONFIG, "file", &["open", "read"]));
    assert!(!policy.allows(PLACEMENT, PLACEMENTS_KUBECONFIG, "file", &["write"]));
    let port = "system_u:object_r:http_port_t:s0";
    assert!(policy.allows(PLACEMENT, port, "tcp_socket", &["name_bind", "name_connect"]));
    for socket in [DAEMON, QUIET, OTHER_SERVICE] {
        let connects = policy.allows(PLACEMENT, socket, "unix_stream_socket", &["connectto"]);
        assert!(!connects, "{socket}");
    }
    assert!(!policy.allows(PLACEMENT, PUBLISHED, "file", &["read"]));
    assert!(policy.allowed(PLACEMENT, PLACEMENT, "capability").is_empty());
    for reader in [CONTAINER, OTHER_SERVICE, QUIET, PUBLISH] {
        assert!(
            !policy.allows(reader, PLACEMENTS_KUBECONFIG, "file", &["read"]),
            "{reader}"
        );
    }
}

#[test]
fn the_ledger_is_the_daemons_alone_and_only_steliad_quiet_may_trace() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    for path in ["/var/lib/stelia", "/var/lib/stelia/ledger"] {
        assert_eq!(policy.label("dir", path), LEDGER, "{path}");
    }
    assert_eq!(policy.label("file", "/var/lib/stelia/ledger/key"), LEDGER);
    assert!(policy.allows(
        SYSTEMD,
        LEDGER,
        "dir",
        &["create", "search", "write", "add_name", "setattr"]
    ));
    assert!(policy.allows(
        DAEMON,
        LEDGER,
        "dir",
        &["search", "read", "open", "write", "add_name", "remove_name"]
    ));
    let all = ["create", "open", "read", "write", "setattr", "lock", "rename", "unlink"];
    assert!(policy.allows(DAEMON, LEDGER, "file", &all));
    for from in [CONTAINER, QUIET] {
        assert!(!policy.allows(from, LEDGER, "dir", &["search"]), "{from}");
        assert!(!policy.allows(from, LEDGER, "file", &["read"]), "{from}");
    }
    let tracefs = "system_u:object_r:tracefs_t:s0";
    assert!(policy.allows(
        QUIET,
        tracefs,
        "dir",
        &["search", "create", "write", "add_name", "remove_name", "rmdir"]
    ));
    assert!(policy.allows(QUIET, tracefs, "file", &["open", "read", "write"]));
    for from in [CONTAINER, DAEMON] {
        assert!(!policy.allows(from, tracefs, "file", &["write"]), "{from}");
    }
}

#[test]
fn only_our_own_domains_are_permissive() {
    let policy = Policy::link(CONTAINERS);
    let said = run(&["seinfo", text(&policy.path()), "--permissive"]);
    let types: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| line.ends_with("_t"))
        .collect();
    assert_eq!(
        types,
        [
            "stelia_device_plugin_t",
            "stelia_placement_t",
            "stelia_publish_t",
            "steliad_quiet_t",
            "steliad_t"
        ],
        "{said}"
    );
}

#[test]
fn the_socket_and_its_directory_are_labelled_below_run_and_below_var_run() {
    let policy = Policy::link("");
    for run in ["/run", "/var/run"] {
        assert_eq!(policy.label("dir", &format!("{run}/stelia/runner")), DIRECTORY);
        assert_eq!(
            policy.label("sock_file", &format!("{run}/stelia/runner/socket")),
            DIRECTORY
        );
        assert_ne!(policy.label("dir", &format!("{run}/stelia")), DIRECTORY);
        assert_eq!(policy.label("dir", &format!("{run}/stelia/publish")), PUBLISHED);
        assert_eq!(
            policy.label("file", &format!("{run}/stelia/publish/node.json")),
            PUBLISHED
        );
    }
    assert_eq!(policy.label("file", "/usr/libexec/stelia/steliad"), PROGRAM);
    assert_eq!(
        policy.label("file", "/usr/libexec/stelia/steliad-quiet"),
        QUIETS_PROGRAM
    );
    assert_eq!(
        policy.label("file", "/usr/libexec/stelia/stelia-publish"),
        PUBLISHS_PROGRAM
    );
    assert_eq!(
        policy.label("file", "/etc/stelia/publish/kubeconfig"),
        PUBLISHS_KUBECONFIG
    );
    assert_ne!(policy.label("file", "/etc/stelia/steliad.toml"), PUBLISHS_KUBECONFIG);
    let label = |path: &str| policy.label("file", path);
    assert_eq!(label("/usr/libexec/stelia/stelia-placement"), PLACEMENTS_PROGRAM);
    assert_eq!(label("/usr/libexec/stelia/stelia-device-plugin"), PLUGINS_PROGRAM);
    assert_eq!(label("/etc/stelia/placement/kubeconfig"), PLACEMENTS_KUBECONFIG);
    assert_ne!(policy.label("file", "/usr/bin/steliactl"), PROGRAM);
}
