//! What an operator sees: every command against a daemon that answers from this file, and a `/proc` made of files.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use clap::Parser;
use serde_json::json;
use stelia_api::client::{InstanceRow, OwnedDict};
use stelia_api::{Error, ErrorKind, MANAGER_PATH};
use tempfile::TempDir;
use zbus::{Connection, Guid, OwnedObjectPath, Variant, connection, interface};

use crate::cli::Cli;
use crate::client::{Client, Failure};
use crate::run;
use crate::threads::Roots;

const UID: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
const OBJECT: &str = "/io/stelia/Isolation1/instance/_3ceda12c";
const SCOPE: &str = "/stelia.slice/stelia-instance-3ceda12c.scope";
const ORIGIN: &str = "/kubepods.slice/cri-containerd-1.scope";

struct Manager;

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    fn list_instances(&self) -> Vec<InstanceRow> {
        let row = |uid: &str, object: &str, state: &str, cpus: &str| {
            let object = OwnedObjectPath::try_from(object.to_owned()).unwrap();
            (
                uid.to_owned(),
                "compute".to_owned(),
                object,
                state.to_owned(),
                cpus.to_owned(),
            )
        };
        // The second one has no object any more: it was deregistered between two calls.
        vec![
            row(UID, OBJECT, "isolated", "2-3"),
            row("fff", "/io/stelia/Isolation1/instance/fff", "leaving", "4"),
        ]
    }

    fn deregister(&self, pod_uid: &str, _options: OwnedDict) -> Result<(), Error> {
        match pod_uid {
            UID => Ok(()),
            other => Err(ErrorKind::NoSuchInstance.because(format!("no instance {other}"))),
        }
    }

    fn reconcile(&self, _options: OwnedDict) -> OwnedDict {
        let numbers = [
            ("pass", 7u32),
            ("steps", 0),
            ("writes", 0),
            ("moves", 0),
            ("repaired", 0),
        ];
        let mut report: OwnedDict = numbers
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Variant::from(value).try_into().unwrap()))
            .collect();
        report.insert("degraded".to_owned(), Variant::from(vec!["a", "b"]).try_into().unwrap());
        report
    }

    fn describe(&self) -> String {
        r#"{"version":"0.1.0"}"#.to_owned()
    }

    fn ledger(&self, pod_uid: &str, since: u64, until: u64, _options: OwnedDict) -> String {
        let account = |vm: &str, name: &str| json!({"vm": vm, "name": name, "since_us": since, "until_us": until, "promised_us": 4, "covered_us": 2});
        match pod_uid {
            "" => json!([account(UID, "team-a/web"), account("gone", "team-a/gone")]).to_string(),
            uid => account(uid, "").to_string(),
        }
    }

    fn verify_ledger(&self, _options: OwnedDict) -> String {
        let heads = [("2026-10-30", true), ("2026-10-31", false)];
        let heads = heads.map(|(day, good)| json!({"day": day, "good": good}));
        json!({"segments": 1, "entries": 5, "heads": heads}).to_string()
    }

    #[zbus(property)]
    fn ledger_key(&self) -> &str {
        "q1w2e3r4"
    }

    fn reload(&self) -> Result<(), Error> {
        Err(ErrorKind::NotPermitted.because("only an administrator reloads"))
    }
}

struct Instance;

#[interface(name = "io.stelia.Isolation1.Instance")]
impl Instance {
    fn ledger(&self, since: u64, until: u64, _options: OwnedDict) -> String {
        json!({"vm": UID, "since_us": since, "until_us": until, "promised_us": 8, "covered_us": 8}).to_string()
    }

    fn attribute(&self, options: OwnedDict) -> String {
        let seconds = crate::view::json(&options["seconds"]);
        json!({"cpus": "2-3", "until_us": seconds, "tasks": [{"cpu": 2, "name": "stress", "count": 7, "ns": 5}]})
            .to_string()
    }

    #[zbus(property, name = "PodUID")]
    fn pod_uid(&self) -> &str {
        UID
    }
    #[zbus(property)]
    fn pod_namespace(&self) -> &str {
        "team-a"
    }
    #[zbus(property)]
    fn pod_name(&self) -> &str {
        "web"
    }
    #[zbus(property)]
    fn state(&self) -> &str {
        "isolated"
    }
    #[zbus(property)]
    fn degraded(&self) -> Vec<String> {
        vec!["anchor is gone".to_owned()]
    }
    #[zbus(property, name = "FloatCPUs")]
    fn float_cpus(&self) -> &str {
        "0-1,4-7"
    }
    #[zbus(property)]
    fn memory_nodes(&self) -> &str {
        ""
    }
    #[zbus(property)]
    fn control_group(&self) -> &str {
        SCOPE
    }
    #[zbus(property)]
    fn origin_control_group(&self) -> &str {
        ORIGIN
    }
    #[zbus(property)]
    fn registered_timestamp(&self) -> u64 {
        1_735_689_599_000_000
    }
}

/// Runs a command line against the daemon above; `/proc` and the cgroup tree are in `root`.
fn steliactl(root: &Path, line: &[&str]) -> Result<String, Failure> {
    let cli = Cli::try_parse_from([&["steliactl"], line].concat()).unwrap();
    let roots = Roots {
        proc: root.join("proc"),
        cgroup: root.join("cgroup"),
        sys: root.join("sys"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_daemon, connection) = daemon().await;
        run(&cli, &roots, async || Ok(connection)).await
    })
}

async fn daemon() -> (Connection, Connection) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = connection::Builder::unix_stream(ours)
        .server(Guid::generate())
        .p2p()
        .serve_at(MANAGER_PATH, Manager)
        .serve_at(OBJECT, Instance)
        .build();
    let client = connection::Builder::unix_stream(theirs).p2p().build();
    let (server, client) = tokio::join!(server, client);
    (server.unwrap(), client.unwrap())
}

/// A VM: QEMU with its main thread in float and a vCPU thread in vcpu, and the anchor in the container's own cgroup.
fn a_vm() -> TempDir {
    let root = TempDir::new().unwrap();
    let write = |path: String, text: String| {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(format!("cgroup{SCOPE}/instance/cgroup.procs"), "900\n".to_owned());
    write(format!("cgroup{ORIGIN}/cgroup.procs"), "801\n700\n".to_owned());
    let tasks = [
        (
            900,
            900,
            "qemu-system-x86",
            format!("{SCOPE}/instance/float"),
            "0-1,4-7",
            "900 7",
            100,
        ),
        (
            900,
            905,
            "CPU 0/KVM",
            format!("{SCOPE}/instance/vcpu"),
            "2",
            "905 12",
            123_456,
        ),
        (801, 801, "anchor\x1b[2J", ORIGIN.to_owned(), "0-7", "801 2", 0),
    ];
    for (pid, tid, name, cgroup, cpus, ns_pid, utime) in tasks {
        let status = format!(
            "Name:\t{name}\nNSpid:\t{}\nCpus_allowed_list:\t{cpus}\n",
            ns_pid.replace(' ', "\t")
        );
        let task = format!("proc/{pid}/task/{tid}");
        if pid == tid {
            write(format!("proc/{pid}/comm"), format!("{name}\n"));
            write(format!("proc/{pid}/status"), status.clone());
        }
        write(format!("{task}/comm"), format!("{name}\n"));
        write(format!("{task}/status"), status);
        write(
            format!("{task}/stat"),
            format!("{tid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {utime} 1 0 0 20 0\n"),
        );
        write(format!("{task}/cgroup"), format!("0::{cgroup}\n"));
    }
    // 700 is in cgroup.procs, but ended before it could be read.
    root
}

fn no_vm() -> TempDir {
    TempDir::new().unwrap()
}

#[test]
fn list_is_a_table_that_pipes() {
    assert_eq!(
        steliactl(no_vm().path(), &["list"]).unwrap(),
        "\
POD         CONTAINER  STATE     CPUS  FLOAT    DEGRADED
team-a/web  compute    isolated  2-3   0-1,4-7  anchor is gone
"
    );
}

#[test]
fn list_without_legend_is_rows_only() {
    let text = steliactl(no_vm().path(), &["list", "--no-legend"]).unwrap();
    assert_eq!(text, "team-a/web  compute  isolated  2-3  0-1,4-7  anchor is gone\n");
}

#[test]
fn list_as_json_identifies_the_pod() {
    let text = steliactl(no_vm().path(), &["--json", "list"]).unwrap();
    let expected = serde_json::json!([{
        "pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web", "container": "compute", "object": OBJECT,
        "state": "isolated", "exclusive_cpus": "2-3", "float_cpus": "0-1,4-7", "adopted_by": "", "degraded": ["anchor is gone"],
    }]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
}

#[test]
fn show_prints_the_promise_and_then_the_threads() {
    assert_eq!(
        steliactl(a_vm().path(), &["show", "3ce"]).unwrap(),
        "\
PodNamespace:         team-a
PodName:              web
PodUID:               3ceda12c-3ee9-40fa-9f42-61428fe654a6
State:                isolated
Degraded:             anchor is gone
FloatCPUs:            0-1,4-7
MemoryNodes:          -
ControlGroup:         /stelia.slice/stelia-instance-3ceda12c.scope
OriginControlGroup:   /kubepods.slice/cri-containerd-1.scope
RegisteredTimestamp:  2024-12-31T23:59:59.000000Z

qemu-system-x86 (pid 900, 7 in the container)
TID  THREAD_NAME      CGROUP  ALLOWED_CPUS  CPU TIME
900  qemu-system-x86  float   0-1,4-7          1.01s
905  CPU 0/KVM        vcpu    2             1234.57s

anchor?[2J (pid 801, 2 in the container)
TID  THREAD_NAME  CGROUP  ALLOWED_CPUS  CPU TIME
801  anchor?[2J   origin  0-7              0.01s
"
    );
}

#[test]
fn show_as_json_holds_the_threads_too() {
    let text = steliactl(a_vm().path(), &["show", UID, "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["registered_us"], 1_735_689_599_000_000u64);
    assert_eq!(value["degraded"], serde_json::json!(["anchor is gone"]));
    let vcpu = serde_json::json!(
        {"tid": 905, "name": "CPU 0/KVM", "cgroup": "vcpu", "allowed_cpus": "2", "cpu_time_us": 1_234_570_000});
    assert_eq!(value["processes"][0]["threads"][1], vcpu);
}

#[test]
fn show_of_an_instance_without_processes_is_its_properties() {
    let text = steliactl(no_vm().path(), &["show", UID]).unwrap();
    assert_eq!(
        text.lines().last(),
        Some("RegisteredTimestamp:  2024-12-31T23:59:59.000000Z")
    );
}

#[test]
fn what_is_not_there_has_exit_code_3() {
    for line in [
        ["show", "nobody"],
        ["deregister", "nobody"],
        ["deregister", "fff"],
        ["show", "fff"],
    ] {
        let failure = steliactl(no_vm().path(), &line).unwrap_err();
        assert_eq!(failure.exit_code(), 3, "{line:?}: {failure}");
    }
}

#[test]
fn deregister_takes_a_name_or_a_beginning_and_says_nothing() {
    for vm in ["3ced", "team-a/web", "web", UID] {
        assert_eq!(steliactl(no_vm().path(), &["deregister", vm]).unwrap(), "", "{vm}");
    }
    let told = steliactl(no_vm().path(), &["--json=short", "deregister", "3"]).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&told).unwrap(),
        serde_json::json!({"pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web"})
    );
}

#[test]
fn reconcile_prints_the_report() {
    assert_eq!(
        steliactl(no_vm().path(), &["reconcile"]).unwrap(),
        "\
pass:      7
steps:     0
writes:    0
moves:     0
repaired:  0
degraded:  a; b
"
    );
    let json = steliactl(no_vm().path(), &["reconcile", "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["pass"], &value["degraded"]),
        (&serde_json::json!(7), &serde_json::json!(["a", "b"]))
    );
}

#[test]
fn describe_is_pretty_json() {
    assert_eq!(
        steliactl(no_vm().path(), &["describe"]).unwrap(),
        "{\n  \"version\": \"0.1.0\"\n}\n"
    );
}

#[test]
fn json_is_pretty_short_or_off_and_its_value_needs_an_equals_sign() {
    let lines = |line: &[&str]| steliactl(no_vm().path(), line).unwrap().lines().count();
    assert_eq!(lines(&["--json=short", "list"]), 1);
    assert_eq!(lines(&["list", "--json=short"]), 1);
    assert!(lines(&["--json=pretty", "list"]) > 2);
    assert_eq!(lines(&["--json=off", "--no-pager", "list"]), 2);
    // After a blank comes not the value of --json, but the command or its argument.
    assert!(lines(&["show", "--json", "3ced"]) > 2);
    assert!(Cli::try_parse_from(["steliactl", "--json=yaml", "list"]).is_err());
}

#[test]
fn a_form_is_asked_for_by_one_option() {
    let told = |line: &[&str]| steliactl(no_vm().path(), line).unwrap();
    assert_eq!(told(&["list", "-o", "name"]), "team-a/web\n");
    assert_eq!(told(&["show", "web", "-o", "name"]), "team-a/web\n");
    assert_eq!(told(&["-o", "name", "deregister", "web"]), "team-a/web\n");
    assert_eq!(told(&["list", "-o", "json"]), told(&["list", "--json"]));
    assert_eq!(told(&["list", "-o", "table"]), told(&["list"]));
    let wide = told(&["list", "-o", "wide"]);
    assert!(
        wide.starts_with("POD         POD UID ") && wide.contains(UID) && wide.contains(OBJECT),
        "{wide}"
    );
    let yaml = told(&["list", "-o", "yaml"]);
    assert!(
        yaml.contains("pod_name: web\n") && yaml.contains("- anchor is gone\n"),
        "{yaml}"
    );
    let same: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(
        same,
        serde_json::from_str::<serde_json::Value>(&told(&["list", "--json"])).unwrap()
    );
}

#[test]
fn a_form_that_makes_no_sense_is_refused_before_anything_is_done() {
    for line in [
        &["describe", "-o", "table"][..],
        &["node-topology", "-o", "wide"],
        &["metrics", "-o", "name"],
        &["reload", "-o", "name"],
        &["reconcile", "-o", "name"],
        &["completions", "bash", "-o", "json"],
    ] {
        let cli = Cli::try_parse_from([&["steliactl"], line].concat()).unwrap();
        assert_eq!(cli.output_options().unwrap_err().exit_code(), 2, "{line:?}");
    }
}

/// A daemon that has taken a call and does nothing more.
struct Hung;

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Hung {
    async fn list_instances(&self) -> Vec<InstanceRow> {
        std::future::pending().await
    }

    async fn reload(&self) {
        std::future::pending().await
    }
}

#[test]
fn a_silent_daemon_is_not_waited_for_and_the_cure_is_named() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let patience = std::time::Duration::from_millis(200);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = connection::Builder::unix_stream(ours)
            .server(Guid::generate())
            .p2p()
            .serve_at(MANAGER_PATH, Hung)
            .build();
        let client = connection::Builder::unix_stream(theirs).p2p().build();
        let (server, client) = tokio::join!(server, client);
        let client = Client::new(client.unwrap(), patience).await.unwrap();
        let failure = client.instances().await.unwrap_err().to_string();
        assert!(
            failure.starts_with("steliad has not answered for 0.2 s: systemctl status steliad"),
            "{failure}"
        );
        // It lives, and a pass takes its time.
        let waited = tokio::time::timeout(patience * 4, client.reload()).await;
        assert!(waited.is_err(), "{waited:?}");
        drop(server);
    });
}

#[test]
fn what_a_caller_lacks_is_named() {
    let refused = |name: &'static str, text: &str| {
        let name = zbus::names::OwnedErrorName::try_from(name).unwrap();
        let call = zbus::message::Message::method_call("/", "Reload").build(&()).unwrap();
        Failure::from(zbus::Error::MethodError(name, Some(text.to_owned()), call)).to_string()
    };
    let polkit =
        "polkit cannot be asked about io.stelia.Isolation1.maintain: org.freedesktop.DBus.Error.ServiceUnknown: x";
    assert_eq!(
        refused("io.stelia.Isolation1.Error.NotPermitted", polkit),
        "Permission denied: run as root, or grant io.stelia.Isolation1.maintain (polkit)"
    );
    assert!(
        refused("org.freedesktop.DBus.Error.AccessDenied", "Rejected").starts_with("Permission denied: run as root")
    );
}

#[test]
fn a_refusal_is_the_daemons_own_text() {
    let failure = steliactl(no_vm().path(), &["reload"]).unwrap_err();
    assert_eq!(failure, Failure::Other("only an administrator reloads".to_owned()));
    assert_eq!(failure.exit_code(), 1);
}

#[test]
fn the_command_line_is_sound() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn the_ledger_of_a_vm_is_asked_of_its_object_and_of_one_that_ended_of_the_manager() {
    let told = |line: &[&str]| -> serde_json::Value {
        let text = steliactl(no_vm().path(), &[line, &["-o", "json"]].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let own = told(&["ledger", "web", "--month", "2024-10"]);
    assert_eq!((&own["promised_us"], &own["pod_name"]), (&json!(8), &json!("web")));
    // October 2024, as the daemon takes it.
    assert_eq!(
        (&own["since_us"], &own["until_us"]),
        (&json!(1_727_740_800_000_000u64), &json!(1_730_419_200_000_000u64))
    );
    let ended = told(&["ledger", "gone", "--since", "-7d"]);
    assert_eq!((&ended["pod_uid"], &ended["until_us"]), (&json!("gone"), &json!(0)));
    assert_eq!(told(&["ledger"]).as_array().unwrap().len(), 2);
    assert_eq!(told(&["ledger", "key"]), json!({"key": "q1w2e3r4"}));
    assert_eq!(told(&["ledger", "web", "--watch", "2min"])["until_us"], json!(120));
    let names = steliactl(no_vm().path(), &["ledger", "-o", "name"]).unwrap();
    assert_eq!(names, "team-a/gone\nteam-a/web\n");
    let failure = steliactl(no_vm().path(), &["ledger", "nobody"]).unwrap_err();
    assert_eq!(failure.exit_code(), 3, "{failure}");
}

#[test]
fn a_ring_with_a_head_that_is_not_good_fails() {
    let failure = steliactl(no_vm().path(), &["ledger", "verify"]).unwrap_err();
    let Failure::Partial { printed, reason } = &failure else {
        panic!("{failure:?}")
    };
    assert_eq!(failure.exit_code(), 1);
    assert!(
        printed.contains("2026-10-31") && reason.contains("1 head not signed"),
        "{printed}{reason}"
    );
}

#[test]
fn a_report_is_a_page_or_json_and_nothing_else() {
    let page = steliactl(
        no_vm().path(),
        &["ledger", "web", "--report", "html", "--month", "2024-10"],
    )
    .unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("q1w2e3r4"),
        "{page}"
    );
    let report = steliactl(no_vm().path(), &["ledger", "web", "--report", "json"]).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["proof"]["good"], &report["proof"]["key"]),
        (&json!(false), &json!("q1w2e3r4"))
    );
    for line in [
        &["ledger", "web", "--report", "html", "-o", "yaml"][..],
        &["ledger", "--since", "2999-01-01"],
        &["ledger", "--since", "2024-10-02", "--until", "2024-10-01"],
        &["ledger", "key", "-o", "name"],
    ] {
        assert_eq!(steliactl(no_vm().path(), line).unwrap_err().exit_code(), 2, "{line:?}");
    }
    for line in [
        &["ledger", "--report", "html"][..],
        &["ledger", "--watch", "60s"],
        &["ledger", "web", "--watch", "2h"],
        &["ledger", "web", "--since", "noon"],
        &["ledger", "web", "--month", "2024-10", "--since", "-7d"],
        &["ledger", "verify", "--key", "x"],
        &["ledger", "web", "verify"],
    ] {
        let cli = Cli::try_parse_from([&["steliactl"], line].concat());
        assert!(cli.is_err(), "{line:?}");
    }
    /// 32 bytes as `ledger key` prints them.
    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for line in [
        &["ledger", "verify", "--json"][..],
        &["--json", "ledger", "verify"],
        &["ledger", "--json", "verify"],
        &["ledger", "verify", "--directory", "x", "--key", KEY],
        &["ledger", "team-a/web", "--since", "-1h30min", "--until", "now"],
    ] {
        let cli = Cli::try_parse_from([&["steliactl"], line].concat());
        assert!(cli.is_ok(), "{line:?}: {cli:?}");
    }
}
