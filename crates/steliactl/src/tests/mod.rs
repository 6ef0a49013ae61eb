//! What an operator sees: every command against a daemon that answers from this file, and a `/proc` made of files.

mod change;
mod columns;
mod failures;
pub(crate) mod fixtures;
mod forms;
mod ledger;
mod view;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use stelia_api::attribution::Attribution;
use stelia_api::client::OwnedDict;
use stelia_api::{Error, ErrorKind, MANAGER_PATH, Reason, ReasonCode, State};
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::{PodName, PodUid};
use stelia_ledger::account::Account;
use stelia_ledger::verdict::{SignedHead, Verdict};
use tempfile::TempDir;
use zbus::{Connection, Guid, Variant, connection, interface};

use crate::cli::Cli;
use crate::run;
use crate::shared::daemon::Failure;
use crate::shared::kernel::Roots;
use fixtures::{block_on, cli, is_refused, write};

const UID: &str = "3ceda12c-3ee9-40fa-9f42-61428fe654a6";
/// A VM that is none any more and whose pod still has CPUs.
const RELEASED: &str = "416de7c2-21de-472d-817c-fa9d4306cb7d";
const OBJECT: &str = "/io/stelia/Isolation1/instance/_33ceda12c_2d3ee9_2d40fa_2d9f42_2d61428fe654a6";
const SCOPE: &str = "/stelia.slice/stelia-instance-3ceda12c.scope";
const ORIGIN: &str = "/kubepods.slice/cri-containerd-1.scope";

struct Manager;

#[interface(name = "io.stelia.Isolation1.Manager")]
impl Manager {
    fn deregister(&self, pod_uid: &str, _options: OwnedDict) -> Result<(), Error> {
        match pod_uid {
            UID => Ok(()),
            other => Err(ErrorKind::NoSuchInstance.because(format!("no instance {other}"))),
        }
    }

    fn reconcile(&self, _options: OwnedDict) -> OwnedDict {
        let member = |name: &str| {
            (
                name.to_owned(),
                Variant::from(if name == "pass" { 7u32 } else { 0 }).try_into().unwrap(),
            )
        };
        ["pass", "steps", "writes", "moves", "repaired"].map(member).into()
    }

    fn describe(&self) -> String {
        let uid = PodUid::parse(UID).unwrap();
        let path = |path| CgroupPath::parse(path).unwrap();
        let instance = stelia_model::Instance {
            pod: uid.clone(),
            pod_name: PodName::new("team-a", "web"),
            container: "compute".to_owned(),
            state: State::Isolated,
            degraded: vec![Reason::of(
                &uid,
                ReasonCode::PlaceholderEnded,
                "the placeholder process ended",
            )],
            exclusive: "2-3".parse().unwrap(),
            float: "0-1,4-7".parse().unwrap(),
            scope: path(SCOPE),
            origin: path(ORIGIN),
            registered_us: 1_735_689_599_000_000,
            ..Default::default()
        };
        let mut description = stelia_model::Description {
            version: "0.1.0".to_owned(),
            ..Default::default()
        };
        description.node.instances.insert(uid, Arc::new(instance));
        let former = stelia_model::FormerVm {
            pod: PodUid::parse(RELEASED).unwrap(),
            pod_name: PodName::new("team-a", "released"),
            ..Default::default()
        };
        description.node.entries = Arc::new([(former.pod.clone(), Default::default())].into());
        description.node.former = vec![former].into();
        serde_json::to_string(&description).unwrap()
    }

    fn ledger(&self, pod_uid: &str, since: u64, until: u64, _options: OwnedDict) -> String {
        let account = |vm: &str, name: &str| Account {
            vm: vm.to_owned(),
            name: name.to_owned(),
            since_us: since,
            until_us: until,
            promised_us: 4,
            covered_us: 2,
            ..Account::default()
        };
        match pod_uid {
            "" => json!([account(UID, "team-a/web"), account("gone", "team-a/gone")]).to_string(),
            uid => json!(account(uid, "")).to_string(),
        }
    }

    fn verify_ledger(&self, _options: OwnedDict) -> String {
        let heads = [("2026-10-30", true), ("2026-10-31", false)];
        let heads = heads.map(|(day, good)| SignedHead {
            day: day.to_owned(),
            good,
            ..SignedHead::default()
        });
        let verdict = Verdict {
            segments: 1,
            entries: 5,
            heads: heads.into(),
            ..Verdict::default()
        };
        json!(verdict).to_string()
    }

    #[zbus(property)]
    fn ledger_key(&self) -> &str {
        "q1w2e3r4"
    }

    fn evaluate_placement(&self, _requests: Vec<OwnedDict>, _options: OwnedDict) -> Result<Vec<OwnedDict>, Error> {
        Err(ErrorKind::NotPermitted.because("only an administrator asks"))
    }
}

struct Instance;

#[interface(name = "io.stelia.Isolation1.Instance")]
impl Instance {
    fn ledger(&self, since: u64, until: u64, _options: OwnedDict) -> String {
        let account = Account {
            vm: UID.to_owned(),
            since_us: since,
            until_us: until,
            promised_us: 8,
            covered_us: 8,
            ..Account::default()
        };
        json!(account).to_string()
    }

    fn attribute(&self, options: OwnedDict) -> String {
        let seconds = crate::shared::output::json(&options["seconds"]);
        let attribution = Attribution {
            cpus: "2-3".to_owned(),
            until_us: seconds.as_u64().unwrap(),
            ..Attribution::default()
        };
        json!(attribution).to_string()
    }
}

/// The bus itself: there is a daemon on it.
struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn add_match(&self, _rule: &str) {}

    fn get_name_owner(&self, _name: &str) -> &str {
        ":1.7"
    }
}

/// Runs a command line against the daemon above; `/proc` and the cgroup tree are in `root`.
fn steliactl(root: &Path, line: &[&str]) -> Result<String, Failure> {
    let cli = cli(line);
    let roots = Roots {
        proc: root.join("proc"),
        cgroup: root.join("cgroup"),
        sys: root.join("sys"),
    };
    block_on(async {
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
        .serve_at("/org/freedesktop/DBus", Bus)
        .build();
    let client = connection::Builder::unix_stream(theirs).p2p().build();
    let (server, client) = tokio::join!(server, client);
    (server.unwrap(), client.unwrap())
}

/// A VM: QEMU with its main thread in float and a vCPU thread in vcpu, and the anchor in the container's own cgroup.
fn a_vm() -> TempDir {
    let root = TempDir::new().unwrap();
    let write = |path: String, text: String| write(root.path(), &path, text);
    write(format!("cgroup{SCOPE}/instance/cgroup.procs"), "900\n".to_owned());
    write(format!("cgroup{ORIGIN}/cgroup.procs"), "801\n700\n".to_owned());
    let tasks = [
        ([900, 900, 7], "qemu-system-x86", "float", "0-1,4-7", 100),
        ([900, 905, 12], "CPU 0/KVM", "vcpu", "2", 123_456),
        ([801, 801, 2], "anchor\x1b[2J", "", "0-7", 0),
    ];
    for ([pid, tid, inner], name, cgroup, cpus, utime) in tasks {
        let cgroup = match cgroup {
            "" => ORIGIN.to_owned(),
            own => format!("{SCOPE}/instance/{own}"),
        };
        let status = format!("Name:\t{name}\nNSpid:\t{tid}\t{inner}\nCpus_allowed_list:\t{cpus}\n");
        fs::create_dir_all(root.path().join(format!("proc/{pid}/task/{tid}"))).unwrap();
        // /proc/TID exists for each thread, although a listing of /proc shows processes only.
        write(format!("proc/{tid}/comm"), format!("{name}\n"));
        write(format!("proc/{tid}/status"), status);
        let task = format!("proc/{tid}/task/{tid}");
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
fn the_command_line_is_sound() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
