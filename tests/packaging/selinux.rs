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

/// The types of processes; all others are of files, sockets and the like.
const DOMAINS: [&str; 11] = [
    "container_t",
    "init_t",
    "kernel_t",
    "kubelet_t",
    "other_service_t",
    "stelia_device_plugin_t",
    "stelia_placement_t",
    "stelia_publish_t",
    "steliad_quiet_t",
    "steliad_t",
    "system_dbusd_t",
];

/// A service that has nothing to do with containers.
const OTHER: &str = "(type other_service_t)(roletype object_r other_service_t)(roletype system_r other_service_t)
(typeattributeset domain (other_service_t))";
/// What container-selinux declares, as far as it matters here.
const CONTAINERS: &str = "(type container_t)(roletype object_r container_t)(roletype system_r container_t)
(typeattributeset domain (container_t))";
const ATTRIBUTE: &str = "(typeattribute container_domain)(typeattributeset container_domain (container_t))";
const KUBELET: &str = "(type kubelet_t)(roletype object_r kubelet_t)(roletype system_r kubelet_t)
(typeattributeset domain (kubelet_t))
(type container_file_t)(roletype object_r container_file_t)(typeattributeset file_type (container_file_t))";

/// The context of what has this type. A container has categories of its own.
fn context(kind: &str) -> String {
    let role = if DOMAINS.contains(&kind) {
        "system_r"
    } else {
        "object_r"
    };
    let level = if kind == "container_t" { "s0:c1,c2" } else { "s0" };
    format!("system_u:{role}:{kind}:{level}")
}

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

    /// Lines of two types, a class and permissions, of which `-` begins those that are not granted; behind `only` are all that are. `->`, and a
    /// type: what a process that executes the file becomes.
    fn assert_holds(&self, rules: &str) {
        for rule in rules.lines().map(str::trim).filter(|rule| !rule.is_empty()) {
            let words: Vec<&str> = rule.split_whitespace().collect();
            let [from, to, class, permissions @ ..] = &words[..] else {
                panic!("{rule}")
            };
            let (from, to) = (&context(from), &context(to));
            match permissions {
                ["->", becomes] => assert!(self.becomes(from, to, class, &context(becomes)), "{rule}"),
                ["only", all @ ..] => {
                    let all = all.iter().map(|one| (*one).to_owned()).collect();
                    assert_eq!(self.allowed(from, to, class), all, "{rule}");
                }
                _ => {
                    let allowed = self.allowed(from, to, class);
                    for permission in permissions {
                        let denied = permission.strip_prefix('-');
                        let is_allowed = allowed.contains(denied.unwrap_or(permission));
                        assert_eq!(is_allowed, denied.is_none(), "{rule}: {permission}: {allowed:?}");
                    }
                }
            }
        }
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
    policy.assert_holds(
        "container_t stelia_runner_var_run_t dir       search -write -add_name
         container_t stelia_runner_var_run_t sock_file write -create -unlink
         container_t steliad_t               unix_stream_socket only connectto
         container_t other_service_t         unix_stream_socket -connectto
         container_t init_t                  unix_stream_socket -connectto
         container_t steliad_quiet_t         unix_stream_socket -connectto
         container_t stelia_device_plugin_t  unix_stream_socket -connectto
         container_t steliad_t               process   -signal -ptrace -transition",
    );
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
    Policy::link(CONTAINERS).assert_holds("container_t steliad_t unix_stream_socket connectto");
    Policy::link("").assert_holds("init_t steliad_exec_t process -> steliad_t");
}

/// Their units have NoNewPrivileges=yes.
#[test]
fn systemd_makes_the_socket_and_starts_each_program_in_its_domain() {
    let policy = Policy::link(CONTAINERS);
    policy.assert_holds(
        "init_t steliad_exec_t file               read open execute map
         init_t steliad_t      process            transition rlimitinh signal sigkill
         init_t steliad_t      unix_stream_socket create bind listen setopt
         init_t stelia_runner_var_run_t dir       create search write add_name
         init_t stelia_runner_var_run_t sock_file create setattr
         stelia_runner_var_run_t tmpfs_t filesystem associate",
    );
    for domain in [
        "steliad",
        "steliad_quiet",
        "stelia_device_plugin",
        "stelia_publish",
        "stelia_placement",
    ] {
        policy.assert_holds(&format!(
            "init_t      {domain}_exec_t process  -> {domain}_t
             init_t      {domain}_t      process2 nnp_transition
             {domain}_t  {domain}_exec_t file     entrypoint"
        ));
    }
}

#[test]
fn a_container_reads_what_the_cluster_is_told_and_the_daemon_alone_writes_it() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    policy.assert_holds(
        "container_t stelia_publish_var_run_t file getattr lock open read watch -write -append -create -unlink -setattr
         container_t stelia_publish_var_run_t dir  getattr open read search watch -add_name
         steliad_t   stelia_publish_var_run_t file create write rename unlink lock
         steliad_t   stelia_publish_var_run_t dir  add_name remove_name write
         init_t      stelia_publish_var_run_t dir  create relabelto search
         stelia_publish_var_run_t tmpfs_t     filesystem associate",
    );
}

#[test]
fn the_daemon_reads_everybodys_state_and_writes_the_cgroups() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    policy.assert_holds(
        "steliad_t other_service_t file    open read
         steliad_t container_t     process setsched getsched
         steliad_t kernel_t        process setsched
         steliad_t other_service_t process -setsched
         steliad_t cgroup_t        file    open read write
         steliad_t cgroup_t        dir     create rmdir setattr watch
         steliad_t system_dbusd_t  dbus    acquire_svc send_msg
         other_service_t steliad_t dbus    send_msg",
    );
}

#[test]
fn steliad_quiet_is_reached_by_the_daemon_alone_writes_masks_and_the_cpus_files_and_only_reads_the_cgroups() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    policy.assert_holds(
        "init_t          steliad_quiet_t unix_stream_socket create bind listen setopt
         steliad_t       steliad_quiet_t unix_stream_socket connectto
         steliad_t       var_run_t       sock_file  write
         container_t     var_run_t       sock_file  -write
         steliad_quiet_t sysctl_irq_t    file       open read write
         steliad_quiet_t sysfs_t         file       open write
         steliad_quiet_t other_service_t file       open read
         steliad_quiet_t other_service_t process    -setsched
         steliad_quiet_t cgroup_t        file       open read -write
         steliad_quiet_t steliad_quiet_t capability only",
    );
}

#[test]
fn the_device_plugin_makes_its_socket_in_kubelets_folder_and_reaches_kubelet_and_no_container() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE, KUBELET].concat());
    policy.assert_holds(
        "stelia_device_plugin_t container_file_t        sock_file create setattr unlink write
         stelia_device_plugin_t container_file_t        dir       add_name remove_name search watch
         stelia_device_plugin_t container_file_t        file      open read -write
         stelia_device_plugin_t kubelet_t               unix_stream_socket connectto
         kubelet_t              stelia_device_plugin_t  unix_stream_socket connectto
         stelia_device_plugin_t steliad_t               dbus      send_msg
         stelia_device_plugin_t container_t             unix_stream_socket -connectto
         stelia_device_plugin_t stelia_runner_var_run_t sock_file -write
         stelia_device_plugin_t kvm_device_t            chr_file  -open
         stelia_device_plugin_t stelia_device_plugin_t  capability only",
    );
}

/// Its key is its own.
#[test]
fn the_publisher_reads_what_it_is_told_and_its_key_connects_to_the_api_server_and_to_nothing_of_the_daemon() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    for file in ["stelia_publish_var_run_t", "stelia_publish_etc_t"] {
        policy.assert_holds(&format!(
            "stelia_publish_t {file} file open read watch -write -append -unlink -create
             stelia_publish_t {file} dir  search watch"
        ));
    }
    policy.assert_holds(
        "stelia_publish_t http_port_t             tcp_socket name_connect
         stelia_publish_t steliad_t               unix_stream_socket -connectto
         stelia_publish_t steliad_quiet_t         unix_stream_socket -connectto
         stelia_publish_t other_service_t         unix_stream_socket -connectto
         stelia_publish_t stelia_runner_var_run_t sock_file  -write
         stelia_publish_t other_service_t         file       -open
         stelia_publish_t stelia_publish_t        capability only
         container_t      stelia_publish_etc_t    file       -read
         other_service_t  stelia_publish_etc_t    file       -read
         steliad_quiet_t  stelia_publish_etc_t    file       -read",
    );
}

#[test]
fn placement_listens_and_reads_its_keys_and_has_no_way_to_the_daemon() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    policy.assert_holds(
        "stelia_placement_t stelia_placement_etc_t   file       open read -write
         stelia_placement_t http_port_t              tcp_socket name_bind name_connect
         stelia_placement_t steliad_t                unix_stream_socket -connectto
         stelia_placement_t steliad_quiet_t          unix_stream_socket -connectto
         stelia_placement_t other_service_t          unix_stream_socket -connectto
         stelia_placement_t stelia_publish_var_run_t file       -read
         stelia_placement_t stelia_placement_t       capability only
         container_t        stelia_placement_etc_t   file       -read
         other_service_t    stelia_placement_etc_t   file       -read
         steliad_quiet_t    stelia_placement_etc_t   file       -read
         stelia_publish_t   stelia_placement_etc_t   file       -read",
    );
}

#[test]
fn the_ledger_is_the_daemons_alone_and_only_steliad_quiet_may_trace() {
    let policy = Policy::link(&[OTHER, CONTAINERS, ATTRIBUTE].concat());
    policy.assert_holds(
        "init_t          steliad_var_lib_t dir  create search write add_name setattr
         steliad_t       steliad_var_lib_t dir  search read open write add_name remove_name
         steliad_t       steliad_var_lib_t file create open read write setattr lock rename unlink
         container_t     steliad_var_lib_t dir  -search
         container_t     steliad_var_lib_t file -read
         steliad_quiet_t steliad_var_lib_t dir  -search
         steliad_quiet_t steliad_var_lib_t file -read
         steliad_quiet_t tracefs_t         dir  search create write add_name remove_name rmdir
         steliad_quiet_t tracefs_t         file open read write
         container_t     tracefs_t         file -write
         steliad_t       tracefs_t         file -write",
    );
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
fn files_are_labelled_also_below_var_run() {
    let policy = Policy::link("");
    for (kind, path, expected) in [
        ("dir", "/run/stelia/runner", "stelia_runner_var_run_t"),
        ("sock_file", "/run/stelia/runner/socket", "stelia_runner_var_run_t"),
        ("dir", "/run/stelia/publish", "stelia_publish_var_run_t"),
        ("file", "/run/stelia/publish/node.json", "stelia_publish_var_run_t"),
        ("dir", "/var/lib/stelia", "steliad_var_lib_t"),
        ("dir", "/var/lib/stelia/ledger", "steliad_var_lib_t"),
        ("file", "/var/lib/stelia/ledger/key", "steliad_var_lib_t"),
        ("file", "/usr/libexec/stelia/steliad", "steliad_exec_t"),
        ("file", "/usr/libexec/stelia/steliad-quiet", "steliad_quiet_exec_t"),
        ("file", "/usr/libexec/stelia/stelia-publish", "stelia_publish_exec_t"),
        (
            "file",
            "/usr/libexec/stelia/stelia-placement",
            "stelia_placement_exec_t",
        ),
        (
            "file",
            "/usr/libexec/stelia/stelia-device-plugin",
            "stelia_device_plugin_exec_t",
        ),
        ("file", "/etc/stelia/publish/kubeconfig", "stelia_publish_etc_t"),
        ("file", "/etc/stelia/placement/kubeconfig", "stelia_placement_etc_t"),
    ] {
        assert_eq!(policy.label(kind, path), context(expected), "{path}");
        if path.starts_with("/run/") {
            assert_eq!(
                policy.label(kind, &format!("/var{path}")),
                context(expected),
                "/var{path}"
            );
        }
    }
    for (kind, path, other) in [
        ("dir", "/run/stelia", "stelia_runner_var_run_t"),
        ("dir", "/var/run/stelia", "stelia_runner_var_run_t"),
        ("file", "/etc/stelia/steliad.toml", "stelia_publish_etc_t"),
        ("file", "/usr/bin/steliactl", "steliad_exec_t"),
    ] {
        assert_ne!(policy.label(kind, path), context(other), "{path}");
    }
}
