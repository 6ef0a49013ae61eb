//! What only a node of Debian unstable shows: the QMP of its QEMU, newer than others; and containerd 2 makes a pod's user namespace itself, on the cgroupfs driver. (What
//! asks CRI for pods is not packaged; `ctr` knows no other driver for such a container.)

use std::fs;

use serde_json::json;
use stelia_runner::qmp::Qmp;

use crate::real::image::{IMAGE, make_image};
use crate::support::*;

const UID: &str = "7d5ae8f6-0c1e-4b52-9f3a-2f6f3f0f8a11";
const CPUS: &str = "4-5";
/// The first of the host's users that the container's are mapped to.
const FIRST: u32 = 131_072;

fn ctr(argv: &[&str]) -> String {
    run(&[&["ctr", "-n", "k8s.io"], argv].concat())
}

/// The container of the pod, with a VM in it, made without the stand-in.
fn start(id: &str) -> Pod {
    ctr(&["images", "import", &make_image()]);
    let (mapping, cgroup) = (format!("0:{FIRST}:65536"), format!("/kubepods/pod{UID}/{id}"));
    let (log, runner) = ("/tmp/mapped.log", "/run/stelia/runner");
    let own = format!("run -d --uidmap {mapping} --gidmap {mapping} --cgroup {cgroup} --cpuset-cpus {CPUS}");
    let rest = "--memory-limit 419430400 --annotation io.kubernetes.cri.container-name=instance";
    let usr = "--mount type=bind,src=/usr,dst=/usr,options=rbind:ro";
    let socket =
        format!("--mount type=bind,src={runner},dst={runner},options=rbind:ro --log-uri file://{log} {IMAGE} {id}");
    let vm =
        "stelia-runner run --qmp /run/qmp -- qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 64 -display none";
    let options = [&own, rest, usr, &socket, vm, "-nodefaults -name vm,debug-threads=on"].join(" ");
    ctr(&words(&options));
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
        !ctr(&["task", "ls", "-q"]).contains(id)
    });
    ctr(&["container", "rm", id]);
    let _ = fs::remove_dir(format!("{CGROUP}/kubepods/pod{UID}"));
    let _ = fs::remove_dir(format!("{CGROUP}/kubepods"));
    run(&["kubelet-standin", "entry", "remove", UID]);
}

#[test]
fn a_user_namespace_of_containerds_own_is_isolated_like_any_other() {
    let id = "5a".repeat(32);
    let end_it = || end(&id);
    on_node_undoing(end_it, || {
        assert!(run("ctr --version").contains(" 2."), "this is for another image");
        Pod::idle("bystander", &["--runtime", "runc", "--qos", "burstable"]);
        run(&["kubelet-standin", "entry", "add", UID, "instance", CPUS]);
        let pod = start(&id).running();
        let map = read(format!("/proc/{}/uid_map", pod.pid));
        assert_eq!(words(&map), ["0", &FIRST.to_string(), "65536"]);
        let threads = assert_isolated(&pod, 2);
        assert_eq!(property("DevicePolicy", &pod.unit()), "strict");
        assert_eq!(pod.scope_file("memory.max"), "419430400");
        run(&["steliactl", "verify", UID]);
        run(&["steliactl", "release", UID]);
        assert_given_back(&pod, threads);
    });
}

/// What a monitor answers the runner: the vCPUs' indices, the I/O threads, whether a vCPU could be plugged, and the run state.
fn asked(pod: &Pod) -> (Vec<u32>, Vec<String>, bool, String) {
    let socket = pod.inside("/run/other");
    let answers = async {
        let mut qmp = Qmp::connect(&socket).await?;
        let vcpus = qmp.vcpus().await?;
        let iothreads = qmp.iothreads().await?;
        for vcpu in &vcpus {
            assert!(vcpu.thread_id > 1 && vcpu.props.contains_key("socket-id"), "{vcpus:?}");
        }
        let slot = qmp.has_free_cpu_slot().await?;
        let indices = vcpus.iter().map(|vcpu| vcpu.cpu_index).collect();
        let names = iothreads.into_iter().map(|thread| thread.id).collect();
        Ok::<_, Box<dyn std::error::Error>>((indices, names, slot, qmp.status().await?.status))
    };
    block_on(answers).expect("QEMU's answers")
}

#[test]
fn qemu_11_is_understood() {
    on_node(|| {
        let machine = words("-machine pc -smp 1,sockets=2,maxcpus=2 -object iothread,id=disk");
        let qemu = [&machine[..], &OTHER].concat();
        // Emulated: a vCPU of this very model is plugged.
        let pod = start_on(Accel::Tcg, "monitored", "2", &[], &qemu).running();
        assert_isolated(&pod, 1);
        let version = &execute(&pod, "query-version", &json!({}))["return"]["qemu"];
        println!("  QEMU {version}");
        let is_new = version["major"].as_u64() >= Some(11);
        assert!(is_new, "this is for another image: {version}");
        let running = || "running".to_owned();
        assert_eq!(asked(&pod), (vec![0], vec!["disk".to_owned()], true, running()));
        plug_vcpu(&pod, "qemu64");
        wait_until("the second vCPU is pinned", || is_isolated(&pod, 2));
        assert_isolated(&pod, 2);
        assert_eq!(asked(&pod), (vec![0, 1], vec!["disk".to_owned()], false, running()));
    });
}
