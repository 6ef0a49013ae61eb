//! `kubectl stelia` (packaging/cluster/cli/kubectl-stelia) with a kubectl that records how it is called.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use k8s_openapi::api::core::v1::Pod;
use tempfile::TempDir;

const PLUGIN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/cluster/cli/kubectl-stelia"
);
const UID: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";

/// Records its arguments, a line each and an empty line behind them, and what `create` reads. FAIL is the command that fails, POD
/// what the first `get` prints; `exec` exits with CODE, after it has said so where it has to HANG.
const KUBECTL: &str = r#"#!/bin/sh
for word; do printf '%s\n' "$word"; done >> "$RECORD/calls"
printf '\n' >> "$RECORD/calls"
for word; do
    case $word in
        get | create | wait | exec | delete) command=$word; break ;;
    esac
done
if [ "$command" = "${FAIL-}" ]; then echo "error from kubectl $command" >&2; exit 7; fi
case $command in
    get) case "$*" in
        *containerStatuses*) printf ' ImagePullBackOff' ;;
        *) printf '%s' "$POD" ;;
    esac ;;
    create) cat > "$RECORD/manifest"; echo "pod/x created" ;;
    wait) echo "pod/x condition met" ;;
    delete) echo "pod x deleted" ;;
    exec) echo "shown"
        if [ -n "${HANG-}" ]; then touch "$RECORD/hangs"; exec sleep 600; fi
        exit "${CODE:-0}" ;;
esac
"#;

/// A kubectl of our own, and what it was asked.
struct Stub {
    folder: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Stub {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let kubectl = folder.path().join("kubectl");
        fs::write(&kubectl, KUBECTL).unwrap();
        fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755)).unwrap();
        let pod = ("POD", format!("{UID}\nworker-7\nRunning\n"));
        Self {
            folder,
            environment: vec![pod],
        }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        // Whoever runs the tests in the background has them ignore some signals, and a shell cannot trap what it was started to ignore.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT,TERM", "sh", PLUGIN])
            .args(words)
            .env("PATH", path)
            .env("RECORD", self.folder.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The calls, each with its arguments; the name of the pod that is made is HELPER.
    fn calls(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.file("calls")).unwrap_or_default();
        let helper = self.helper().unwrap_or_default();
        let named = |word: &str| match helper.as_str() {
            "" => word.to_owned(),
            helper => word.replace(helper, "HELPER"),
        };
        let calls = text.split("\n\n").filter(|call| !call.trim().is_empty());
        calls.map(|call| call.lines().map(named).collect()).collect()
    }

    fn commands(&self) -> Vec<String> {
        let known = ["get", "create", "wait", "exec", "delete"];
        let command = |call: Vec<String>| call.into_iter().find(|word| known.contains(&word.as_str())).unwrap();
        self.calls().into_iter().map(command).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The pod that was made.
    fn made(&self) -> Option<Pod> {
        let text = fs::read_to_string(self.file("manifest")).ok()?;
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        Some(serde_json::from_value(value).unwrap())
    }

    fn helper(&self) -> Option<String> {
        self.made()?.metadata.name
    }

    /// What steliactl was given.
    fn steliactl(&self) -> Vec<String> {
        let calls = self.calls();
        let exec = calls
            .iter()
            .find(|call| call.contains(&"exec".to_owned()))
            .expect("an exec");
        let at = exec.iter().position(|word| word == "steliactl").unwrap();
        exec[at + 1..].to_vec()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_pods_node_is_found_and_steliactl_is_run_there_and_nothing_stays() {
    let stub = Stub::new();
    let output = stub.run(&["web", "-n", "team-a", "--context", "prod", "--kubeconfig=/a b/config"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "shown\n");
    let everywhere = ["--kubeconfig=/a b/config", "--context=prod"];
    let get = "jsonpath={.metadata.uid}{\"\\n\"}{.spec.nodeName}{\"\\n\"}{.status.phase}{\"\\n\"}";
    let there = "--namespace=kube-system";
    let expected = [
        format!("get pod web --namespace=team-a --ignore-not-found -o {get}"),
        "create -f -".to_owned(),
        format!("wait --for=condition=Ready pod/HELPER {there} --timeout=120s"),
        format!("exec {there} HELPER -- chroot /host steliactl show {UID}"),
        format!("delete pod HELPER {there} --ignore-not-found --wait=false"),
    ];
    for (call, expected) in stub.calls().into_iter().zip(&expected) {
        let words = everywhere.into_iter().chain(expected.split(' '));
        assert_eq!(call, words.collect::<Vec<_>>());
    }
    assert_eq!(stub.calls().len(), expected.len());
}

#[test]
fn the_pod_that_is_made_is_bound_to_the_node_and_ends_by_itself() {
    let stub = Stub::new();
    let image = "registry.example/tools:1@sha256:0a";
    stub.run(&["web", "--image", image, "--node-namespace=debug"]);
    let made = stub.made().unwrap();
    let spec = made.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("worker-7"));
    assert_eq!(made.metadata.namespace.as_deref(), Some("debug"));
    assert_eq!(spec.active_deadline_seconds, Some(3600));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!(spec.automount_service_account_token, Some(false));
    let container = &spec.containers[0];
    assert_eq!(container.image.as_deref(), Some(image));
    assert_eq!(container.security_context.as_ref().unwrap().privileged, Some(true));
    assert_eq!(spec.tolerations.unwrap()[0].operator.as_deref(), Some("Exists"));
    assert_eq!(spec.volumes.unwrap()[0].host_path.as_ref().unwrap().path, "/");
    let other = Stub::new();
    other.run(&["web"]);
    assert_ne!(made.metadata.name, other.made().unwrap().metadata.name);
}

#[test]
fn the_uid_stands_where_the_command_takes_a_vm_or_where_it_is_asked_for() {
    let of = |words: &[&str]| {
        let stub = Stub::new();
        let output = stub.run(&[&["team-a/web", "--"], words].concat());
        assert!(output.status.success(), "{}", said(&output));
        stub.steliactl()
    };
    assert_eq!(of(&[]), ["show", UID]);
    for command in ["show", "why", "verify", "noise", "ledger", "rebalance", "release"] {
        assert_eq!(of(&[command, "-o", "json"]), [command, UID, "-o", "json"]);
    }
    assert_eq!(
        of(&["ledger", "{}", "--since", "-7d"]),
        ["ledger", UID, "--since", "-7d"]
    );
    assert_eq!(of(&["--json=short", "show", "{}"]), ["--json=short", "show", UID]);
    assert_eq!(of(&["ledger", "verify"]), ["ledger", "verify"]);
    assert_eq!(of(&["status"]), ["status"]);
    // Words stay words, whatever is in them.
    let words = ["why", "a b", "$HOME", "it's", "`id`", "*", "{} {}", "-n"];
    assert_eq!(of(&words), [&["why", UID], &words[1..]].concat());
}

#[test]
fn steliactls_exit_code_is_passed_on_and_the_pod_is_deleted_all_the_same() {
    let stub = Stub::new().with("CODE", "3");
    let output = stub.run(&["web"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stub.commands(), ["get", "create", "wait", "exec", "delete"]);
}

#[test]
fn whichever_call_fails_what_was_made_is_deleted() {
    for (fails, commands, code, says) in [
        ("get", "get", 1, "error from kubectl get"),
        // It may have been made although the answer was lost.
        ("create", "get create delete", 1, "error from kubectl create"),
        ("wait", "get create wait get delete", 1, "ImagePullBackOff"),
        ("exec", "get create wait exec delete", 7, "error from kubectl exec"),
        ("delete", "get create wait exec delete", 0, "could not be deleted"),
    ] {
        let stub = Stub::new().with("FAIL", fails);
        let output = stub.run(&["web"]);
        assert_eq!(stub.commands().join(" "), commands, "{fails}");
        assert_eq!(output.status.code(), Some(code), "{fails}: {}", said(&output));
        assert!(said(&output).contains(says), "{fails}: {}", said(&output));
    }
}

#[test]
fn a_pod_that_is_gone_or_has_no_node_is_told_and_nothing_is_made() {
    let pending = format!("{UID}\n\nPending\n");
    for (pod, says) in [
        ("", "there is no pod web in namespace team-a"),
        (&pending, "has no node yet (Pending)"),
    ] {
        let stub = Stub::new().with("POD", pod);
        let output = stub.run(&["web", "-nteam-a"]);
        assert_eq!(output.status.code(), Some(3));
        assert!(said(&output).contains(says), "{}", said(&output));
        assert_eq!(stub.commands(), ["get"]);
    }
}

#[test]
fn names_are_checked_before_they_are_arguments_or_yaml() {
    for words in [
        &["-o", "web"][..],
        &["--", "show"],
        &["Web"],
        &["web;id"],
        &["../web/x"],
        &["a/b/c"],
        &["web", "web2"],
        &["web", "-n"],
        &["web", "-n", ""],
        &["web", "--namespace=a b"],
        &["team-a/web", "-n", "team-b"],
        &["web", "--node-namespace=$(id)"],
        &["web", "--image", "a\"\n  hostNetwork: true"],
        &["web", "--unknown=x"],
    ] {
        let stub = Stub::new();
        let output = stub.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert_eq!(stub.commands(), [""; 0], "{words:?}");
    }
    // What the API says is not trusted either.
    for pod in [
        "-rf\nworker-7\nRunning\n",
        "not a uid\nworker-7\n",
        &format!("{UID}\n-worker\nRunning\n"),
        &format!("{UID}\nw\" x\n"),
    ] {
        let stub = Stub::new().with("POD", pod);
        assert_eq!(stub.run(&["web"]).status.code(), Some(1), "{pod:?}");
        assert_eq!(stub.commands(), ["get"]);
    }
}

#[test]
fn an_interrupted_call_deletes_the_pod() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let stub = Stub::new().with("HANG", "yes");
        let mut command = stub.command(&["web"]);
        // A group of its own, which is signalled as a terminal does it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child: Child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !Path::new(&stub.file("hangs")).exists() {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let group = format!("-{}", child.id());
        let killed = Command::new("kill").args(["-s", signal, "--", &group]).status();
        assert!(killed.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(stub.commands().last().map(String::as_str), Some("delete"), "{signal}");
    }
}

#[test]
fn shellcheck_finds_nothing_and_help_needs_no_cluster() {
    let stub = Stub::new();
    let help = stub.run(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Usage: kubectl stelia POD"));
    assert_eq!(stub.commands(), [""; 0]);
    let shellcheck = Command::new("shellcheck").arg(PLUGIN).output();
    let shellcheck = shellcheck.unwrap_or_else(|e| panic!("shellcheck cannot be run (make setup installs it): {e}"));
    assert!(
        shellcheck.status.success(),
        "{}",
        String::from_utf8_lossy(&shellcheck.stdout)
    );
}
