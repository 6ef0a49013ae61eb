//! What only a node of Debian unstable shows: the QMP of its QEMU, newer than what qapi's types were made from; and containerd 2 makes a pod's user namespace itself, on the cgroupfs driver. (What
//! asks CRI for pods is not packaged; `ctr` knows no other driver for such a container.)

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use stelia_runner::qmp::Qmp;

use crate::runner::{OTHER, qmp, start_on};
use crate::support::guest::Accel;
use crate::support::host::{CGROUP, output, read, run, wait_until};
use crate::support::pods::{Pod, on_node, on_node_undoing};
use crate::support::promise::{assert_given_back, assert_isolated, is_isolated};

const UID: &str = "7d5ae8f6-0c1e-4b52-9f3a-2f6f3f0f8a11";
const CPUS: &str = "4-5";
const IMAGE: &str = "localhost/nothing:1";
/// The first of the host's users that the container's are mapped to.
const FIRST: u32 = 131_072;

/// An image of a root file system that has its folders and nothing in them: the node's programs are mounted.
const IMPORT: &str = r#"
    cd "$(mktemp -d)"
    mkdir -p root/usr root/proc root/dev root/sys root/run root/tmp root/etc
    for name in bin sbin lib lib64; do ln -s usr/$name root/$name; done
    tar -C root --owner=0 --group=0 -cf layer.tar .
    digest=$(sha256sum < layer.tar | cut -d' ' -f1)
    echo '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:'$digest'"]}}' > config.json
    echo '[{"Config":"config.json","RepoTags":["'$1'"],"Layers":["layer.tar"]}]' > manifest.json
    tar -cf image.tar manifest.json config.json layer.tar
    ctr -n k8s.io images import image.tar
"#;

fn ctr(argv: &[&str]) -> String {
    run(&[&["ctr", "-n", "k8s.io"], argv].concat())
}

/// The container of the pod, with a VM in it, made without the stand-in.
fn start(id: &str) -> Pod {
    run(&["sh", "-ec", IMPORT, "sh", IMAGE]);
    let (mapping, cgroup) = (format!("0:{FIRST}:65536"), format!("/kubepods/pod{UID}/{id}"));
    let (log, runner) = ("/tmp/mapped.log", "/run/stelia/runner");
    let options = [
        &[
            "run", "-d", "--uidmap", &mapping, "--gidmap", &mapping, "--cgroup", &cgroup,
        ][..],
        &["--cpuset-cpus", CPUS, "--memory-limit", "419430400"],
        &["--annotation", "io.kubernetes.cri.container-name=instance"],
        &["--mount", "type=bind,src=/usr,dst=/usr,options=rbind:ro"],
        &[
            "--mount",
            &format!("type=bind,src={runner},dst={runner},options=rbind:ro"),
        ],
        &["--log-uri", &format!("file://{log}"), IMAGE, id],
        &["stelia-runner", "run", "--qmp", "/run/qmp", "--", "qemu-system-x86_64"],
        &[
            "-accel",
            "tcg,thread=multi",
            "-smp",
            "2",
            "-m",
            "64",
            "-display",
            "none",
            "-nodefaults",
        ],
        &["-name", "vm,debug-threads=on"],
    ];
    ctr(&options.concat());
    let tasks = ctr(&["task", "ls"]);
    let task = tasks.lines().find(|line| line.starts_with(id)).expect("the task");
    let pid = task.split_whitespace().nth(1).and_then(|pid| pid.parse().ok());
    Pod {
        name: "mapped".to_owned(),
        uid: UID.to_owned(),
        cgroup,
        pid: pid.expect("its process"),
        cpus: Some(CPUS.to_owned()),
        log: log.into(),
    }
}

/// As kubelet and containerd end a container: the process, what containerd has of it, kubelet's entry.
fn end(id: &str) {
    output(&["ctr", "-n", "k8s.io", "task", "kill", "-s", "KILL", id]);
    wait_until("the task is deleted", || {
        output(&["ctr", "-n", "k8s.io", "task", "rm", id]);
        (!ctr(&["task", "ls", "-q"]).contains(id)).then_some(())
    });
    ctr(&["container", "rm", id]);
    let _ = fs::remove_dir(format!("{CGROUP}/kubepods/pod{UID}"));
    let _ = fs::remove_dir(format!("{CGROUP}/kubepods"));
    run(&["kubelet-standin", "entry", "remove", UID]);
}

#[test]
fn a_user_namespace_of_containerds_own_is_isolated_like_any_other() {
    let id = "5a".repeat(32);
    on_node_undoing(
        || end(&id),
        || {
            assert!(run(&["ctr", "--version"]).contains(" 2."), "this is for another image");
            Pod::start(
                "bystander",
                &["--runtime", "runc", "--qos", "burstable"],
                &["sleep", "1000"],
            );
            run(&["kubelet-standin", "entry", "add", UID, "instance", CPUS]);
            let pod = start(&id);
            pod.wait_running();
            let map = read(format!("/proc/{}/uid_map", pod.pid));
            let map: Vec<&str> = map.split_whitespace().collect();
            assert_eq!(map, ["0", &FIRST.to_string(), "65536"]);
            let threads = assert_isolated(&pod, 2);
            let scope = format!("stelia-instance-{UID}.scope");
            assert_eq!(run(&["systemctl", "show", "-P", "DevicePolicy", &scope]), "strict");
            assert_eq!(read(pod.scope().join("memory.max")), "419430400");
            run(&["steliactl", "verify"]);
            run(&["steliactl", "deregister", UID]);
            assert_given_back(&pod, threads);
        },
    );
}

const PLUG: &str = r#"{"execute":"device_add","arguments":{"driver":"qemu64-x86_64-cpu","id":"c1","socket-id":1,"core-id":0,"thread-id":0}}"#;

/// What a monitor of the pod says to all that the runner asks: the vCPUs' indices, the I/O threads, whether a vCPU could be
/// plugged, and the run state.
fn asked(pod: &Pod) -> (Vec<u32>, Vec<String>, bool, String) {
    let socket = PathBuf::from(format!("/proc/{}/root/run/other", pod.pid));
    let answers = async {
        let mut qmp = Qmp::connect(&socket).await?;
        let vcpus = qmp.vcpus().await?;
        let iothreads = qmp.iothreads().await?;
        assert!(
            vcpus
                .iter()
                .all(|vcpu| vcpu.thread_id > 1 && vcpu.props.contains_key("socket-id")),
            "{vcpus:?}"
        );
        let slot = qmp.has_free_cpu_slot().await?;
        let indices = vcpus.iter().map(|vcpu| vcpu.cpu_index).collect();
        let names = iothreads.into_iter().map(|thread| thread.id).collect();
        Ok::<_, Box<dyn std::error::Error>>((indices, names, slot, qmp.status().await?.status))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(answers).expect("QEMU's answers")
}

/// The events of this QEMU that the types which qapi generates do not know.
fn unknown_events(pod: &Pod) -> Vec<String> {
    let schema: Value = serde_json::from_str(&qmp(pod, r#"{"execute":"query-qmp-schema"}"#)).expect("JSON");
    let entities = schema["return"].as_array().expect("a schema").iter();
    let events = entities.filter(|entity| entity["meta-type"] == "event");
    let names = events.map(|event| event["name"].as_str().expect("a name").to_owned());
    let is_unknown = |name: &String| {
        let event = serde_json::json!({"event": name, "data": {}, "timestamp": {"seconds": 1, "microseconds": 1}});
        serde_json::from_value::<qapi::qmp::Event>(event)
            .is_err_and(|error| error.to_string().contains("unknown variant"))
    };
    names.filter(is_unknown).collect()
}

#[test]
fn qemu_11_is_understood_by_the_slim_types_where_the_generated_ones_lack_events() {
    on_node(|| {
        let machine = [
            "-machine",
            "pc",
            "-smp",
            "1,sockets=2,maxcpus=2",
            "-object",
            "iothread,id=disk",
        ];
        let qemu = [&machine, &OTHER[..]].concat();
        // Emulated: a vCPU of this very model is plugged.
        let pod = start_on(Accel::Tcg, "monitored", "2", &[], &qemu);
        pod.wait_running();
        assert_isolated(&pod, 1);
        let version: Value = serde_json::from_str(&qmp(&pod, r#"{"execute":"query-version"}"#)).expect("JSON");
        let version = &version["return"]["qemu"];
        println!("  QEMU {version}");
        assert!(
            version["major"].as_u64() >= Some(11),
            "this is for another image: {version}"
        );
        let running = || "running".to_owned();
        assert_eq!(asked(&pod), (vec![0], vec!["disk".to_owned()], true, running()));
        let answer = qmp(&pod, PLUG);
        assert!(answer.contains("return"), "{answer}");
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2).then_some(()));
        assert_isolated(&pod, 2);
        assert_eq!(asked(&pod), (vec![0, 1], vec!["disk".to_owned()], false, running()));
        let unknown = unknown_events(&pod);
        println!("  events that qapi does not know: {unknown:?}");
        assert!(
            !unknown.is_empty(),
            "qapi's types are of this QEMU: docs/decisions.md can be looked at again"
        );
    });
}
