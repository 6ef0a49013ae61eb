//! The trial of an OCI runtime: its verdict is what the runtime says of a container that is isolated in place.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stelia_kernel::oci::{Identity, Runtime, RuntimeVerdict, open_runtime, verdict_file};

use crate::support::*;

const VERDICTS: &str = "/run/stelia/runtimes";

fn unit(id: &str) -> String {
    format!("steliad-try-runtime@{id}.service")
}

fn verdicts() -> BTreeSet<String> {
    names_in(VERDICTS).into_iter().collect()
}

/// What the trial finds of the runtime of a pod's container: what the runtime says of it. It leaves nothing else.
fn tried(runtime: &str) -> RuntimeVerdict {
    let options = ["--runtime", runtime, "--cpus", "1"];
    let pod = &Pod::start(&format!("tried-{runtime}"), &options, &["sleep", "1000"]);
    let id = container_id(pod);
    let (runtime, _) = open_runtime(Path::new("/"), &id).expect("its runtime");
    let file = verdict_file(Path::new("/run"), &runtime);
    let state = |of: &Pod| (of.file("cgroup.procs"), read(runtime.state_file(&id)));
    let before = state(pod);
    // Of an earlier test.
    let _ = fs::remove_file(&file);
    let others = verdicts();
    run(&["systemctl", "start", &unit(&id)]);
    let verdict = RuntimeVerdict::parse(&read(&file)).expect("a verdict");

    assert!(verdict.is_of(&runtime, Identity::of(&runtime.binary).expect("the program")));
    assert_eq!(verdict.copes, verdict.words.is_empty());
    assert!(verdict.words.len() <= 400 && !verdict.words.contains('\n'));
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(verdicts(), others.into_iter().chain([name]).collect());
    let own = format!("{CGROUP}/system.slice/{}", unit(&id));
    assert!(!Path::new(&own).exists(), "{own} is left");
    assert_eq!(property("ActiveState", &unit(&id)), "inactive");
    assert_eq!(state(pod), before, "the container is as it was");
    assert_eq!(verdict.copes, copes(pod, &runtime));
    verdict
}

/// Whether the runtime lists the processes of this very container when that has threaded cgroups.
fn copes(pod: &Pod, runtime: &Runtime) -> bool {
    let children = ["housekeeping", "vcpu"].map(|name| pod.origin().join(name));
    for child in &children {
        fs::create_dir(child).expect("create");
        put(child.join("cgroup.type"), "threaded");
    }
    let (binary, root) = (runtime.binary.to_string_lossy(), runtime.root.to_string_lossy());
    let asked = output(&[&binary, "--root", &root, "ps", "--format", "json", &container_id(pod)]);
    for child in &children {
        fs::remove_dir(child).expect("remove");
    }
    asked.status.success()
}

#[test]
fn the_verdict_on_runc_is_what_runc_says_of_a_container_with_threaded_cgroups() {
    on_node(|| {
        let verdict = tried("runc");
        // What is known of these two.
        match std::env::var("NODE_IMAGE").as_deref() {
            Ok("trixie") => assert!(verdict.words.contains("operation not supported"), "{verdict:?}"),
            Ok("sid") => assert!(verdict.copes, "{verdict:?}"),
            _ => {}
        }
    });
}

#[test]
fn the_verdict_on_crun_is_what_crun_says_of_a_container_with_threaded_cgroups() {
    on_node(|| {
        tried("crun");
        // The stand-in for kubelet does not ask for a quota of -1, which an old crun makes 1 % of a CPU.
        let (rows, _) = printed("steliactl -o json doctor");
        let mut rows = rows.as_array().expect("rows").iter();
        let row = rows.find(|row| row["check"] == "crun").expect("a row");
        assert_eq!(row["outcome"], "pass", "{row}");
    });
}

#[test]
fn a_container_that_is_not_there_is_no_verdict_and_no_failed_unit() {
    on_node(|| {
        let before = verdicts();
        let id = "0".repeat(64);
        assert!(!output(&["systemctl", "start", &unit(&id)]).status.success());
        let reason = "was not tried: containerd and CRI-O have no container";
        wait_until("the reason is in the journal", || {
            journal(&["-u", &unit(&id)]).contains(reason)
        });
        assert_eq!(verdicts(), before);
        assert_eq!(run("systemctl list-units --failed --plain --no-legend steliad*"), "");
        // By hand, in a cgroup that is nobody's to give.
        let by_hand = output(&["/usr/libexec/stelia/steliad", "--try-runtime", &id]);
        assert_eq!(by_hand.status.code(), Some(3), "{by_hand:?}");
    });
}

const DROP_IN: &str = "/run/systemd/system/steliad-try-runtime@sandbox.service.d";

/// The unit with a program that stays.
#[test]
fn what_is_tried_reaches_neither_the_bus_nor_systemd() {
    let unit = unit("sandbox");
    let undo = || {
        output("systemctl stop steliad-try-runtime@sandbox.service");
        let _ = fs::remove_dir_all(DROP_IN);
        output("systemctl daemon-reload");
    };
    on_node_undoing(undo, || {
        fs::create_dir_all(DROP_IN).expect(DROP_IN);
        let stays = "[Service]\nType=exec\nExecStart=\nExecStart=sleep 100000\n";
        put(format!("{DROP_IN}/stays.conf"), stays);
        run("systemctl daemon-reload");
        run(&["systemctl", "start", &unit]);
        assert_reaches_neither_bus_nor_systemd(&unit);
    });
}
