//! The examples that the packages install (`packaging/kubernetes/`) run as they are but for what `REPLACED` lists, and
//! `docs/first-vm.md` shows what `steliactl` says of them.

mod adopted;
#[cfg(target_arch = "aarch64")]
mod arm64;
mod disk;
mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::*;
use page::Page;

/// Nothing else of a manifest is changed. The node has no registry: an init container of `localhost/NAME` has that folder of
/// `IMAGES` for its root, one of `localhost/node` the node's own files, as the main container has.
const REPLACED: [(&str, &str); 6] = [
    ("docker.io/library/busybox:1.37.0-musl", "localhost/node"),
    ("docker.io/tianon/qemu:10.0-native", "localhost/node"),
    ("quay.io/kubevirt/virt-launcher:v1.9.0", "localhost/node"),
    // Debian's name for the program.
    ("/usr/libexec/qemu-kvm", "qemu-system-x86_64"),
    ("quay.io/kubevirt/cirros-container-disk-demo:v1.9.0", "localhost/disk"),
    ("steliad.example/stelia-runner:0.1.0", "localhost/runner"),
];

/// Those that are started side by side: three leave two CPUs of the node's eight to be shared.
const ROUNDS: [&[&str]; 3] = [
    &["vm", "vm-virtiofsd", "vm-userns"],
    &["vm-hugepages", "vm-privileged", "vm-emulated"],
    &["vm-hostpath"],
];
/// Where steliad chooses the CPUs: `allocator/` has that node.
const OF_STELIAD: [&str; 1] = ["vm-koordinator"];
/// `adopted` has a node with their rules.
const ADOPTED: [&str; 2] = ["vm-libvirt", "vm-qemu"];

/// Made as in a cluster, by containerd and runc, which takes longer: what has no privileges.
const OF_RUNC: [&str; 4] = ["vm", "vm-userns", "vm-libvirt", "vm-qemu"];
/// Objects that are no VMs, and the pod of `vm` with what the API server alone reads (`cluster/publish/tests/manifests/objects.rs`).
const NOT_RUN: [&str; 5] = [
    "kubelet-config",
    "kubelet-config-best-effort",
    "quota",
    "vm-policy",
    "vm-readiness-gate",
];

const IMAGES: &str = "/run/kubelet-standin/images";
/// Of the NUMA node whose CPUs the first of a round is given: no memory manager looks at that here.
const PAGES: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
/// The runner's --grace: a guest that heeds its power button needs less.
const GRACE: Duration = Duration::from_secs(25);
/// For a guest to say that it is up. A Linux took 39 s on an emulated node, and more than 60 s beside a second one.
const UP: Duration = Duration::from_secs(240);

/// A manifest with what is replaced.
fn text(name: &str) -> String {
    let text = read(beside(&format!("{name}.yaml")));
    let replaced = |text: String, (image, ours): &(&str, &str)| text.replace(image, ours);
    REPLACED.iter().fold(text, replaced)
}

/// Its containers, `kind` being `containers` or `initContainers`.
fn containers(name: &str, kind: &str) -> Vec<Value> {
    let manifest: Value = serde_saphyr::from_str(&text(name)).unwrap_or_else(|e| panic!("{name}.yaml: {e}"));
    manifest["spec"][kind].as_array().cloned().unwrap_or_default()
}

/// The images that the node has instead of those that are pulled.
fn make_images(disk: &[u8]) {
    for image in ["disk/disk", "runner"] {
        fs::create_dir_all(Path::new(IMAGES).join(image)).expect("an image");
    }
    // Under a name that nothing depends on.
    disk::write_qcow2(&Path::new(IMAGES).join("disk/disk/downloaded"), disk);
    fs::copy("/usr/bin/stelia-runner", Path::new(IMAGES).join("runner/stelia-runner")).expect("the runner");
}

/// The pod of an example whose guest says that it runs.
pub fn start(name: &str) -> Pod {
    make_images(&disk::button());
    apply_text(name, &text(name))
}

fn apply_text(name: &str, text: &str) -> Pod {
    let file = format!("/run/{name}.yaml");
    put(&file, text);
    let runtime = if OF_RUNC.contains(&name) { "runc" } else { "direct" };
    run(&["kubelet-standin", "pod", "apply", &file, "--runtime", runtime]);
    Pod::show(name)
}

/// The pod of an example, when its guest says these words. One that does not is started once more:
/// once in 30 starts the first guest of a node stood in its BIOS, its vCPUs isolated, and QEMU said that it ran. The cause is not known.
fn up(name: &str, words: &str) -> Pod {
    for _ in 0..2 {
        let pod = apply_text(name, &text(name)).running();
        let started = Instant::now();
        while started.elapsed() < UP {
            if pod.logs().contains(words) || said(&pod).contains(words) {
                println!("  {name} says {words:?}: after {} ms", started.elapsed().as_millis());
                return pod;
            }
            sleep(Duration::from_millis(50));
        }
        let (vcpus, logs) = (pod.threads().vcpus, pod.logs());
        println!("  {name} does not say {words:?}, {vcpus:#?}\n{logs}");
        pod.delete(0);
    }
    panic!("{name} does not say {words:?}");
}

/// The guest is up, isolated, and kubelet would call the pod ready.
fn assert_runs(pod: &Pod) {
    let container = containers(&pod.name, "containers").remove(0);
    let probes = ["startupProbe", "readinessProbe", "livenessProbe"].map(|probe| &container[probe]);
    let probes = probes.into_iter().filter(|probe| !probe.is_null());
    let commands: BTreeSet<Vec<String>> = probes
        .map(|probe| parse(&probe["exec"]["command"].to_string()))
        .collect();
    assert_eq!(commands.len(), if pod.name == "vm-emulated" { 0 } else { 2 });
    for command in &commands {
        pod.exec(command);
    }
    assert_isolated(pod, 2);
}

/// A Linux answers through QEMU's user-mode network, asked as `kubectl port-forward` does it.
fn assert_answers(pod: &Pod) {
    let ask = "ip link set lo up; timeout 20 busybox nc 127.0.0.1 2222 < /dev/null";
    let answer = output(&["nsenter", "-t", &pod.pid.to_string(), "-n", "sh", "-c", ask]);
    assert!(utf8(&answer.stdout).contains("hello from the guest"), "{answer:?}");
}

/// All end by their power button, before the runner would end them otherwise.
fn assert_end(pods: &[Pod]) {
    let started = Instant::now();
    for pod in pods {
        kill("-TERM", pod.pid);
    }
    for pod in pods.iter().filter(|pod| pod.name != "vm-emulated") {
        assert_eq!(pod.wait(), "0", "{}", pod.logs());
        assert!(said(pod).contains("guest: power button"), "{}", pod.logs());
        assert!(!pod.scope().exists(), "{pod:?}");
    }
    assert!(started.elapsed() < GRACE, "after {:?}", started.elapsed());
}

/// What the guest wrote to its serial line. The runner writes to the same file, in the middle of the guest's lines too.
fn said(pod: &Pod) -> String {
    let mut text = pod.logs();
    let level = |text: &str| [" INFO ", " WARN "].iter().filter_map(|level| text.find(level)).min();
    let stamp = "2026-01-01T00:00:00.000000Z ".len();
    while let Some(start) = level(&text)
        .and_then(|at| at.checked_sub(stamp))
        .filter(|at| text.is_char_boundary(*at))
    {
        let end = text[start..].find('\n').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    text
}

/// What each is an example of.
fn assert_special(pod: &Pod) {
    let status = |name: &str| field(&status(pod.pid), name);
    // A device of the plugin's, or none.
    let container = containers(&pod.name, "containers").remove(0);
    let limits = container["resources"]["limits"].as_object().expect("limits");
    let asked = usize::from(limits.contains_key(device_plugin::RESOURCE));
    let devices = device_plugin::given(&pod.uid);
    assert_eq!(devices.len(), asked, "{devices:?}");
    match pod.name.as_str() {
        "vm" => assert_eq!(status("CapBnd:"), "0000000000000000"),
        "vm-userns" => {
            assert_eq!(status("CapBnd:"), "0000000000000000");
            let map = read(format!("/proc/{}/uid_map", pod.pid));
            assert_ne!(map.split_whitespace().nth(1), Some("0"), "{map}");
            let mounts = read(format!("/proc/{}/mounts", pod.pid));
            let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/"));
            let options = root.and_then(|root| root.split(' ').nth(3));
            assert!(options.is_some_and(|options| options.starts_with("ro")), "{mounts}");
        }
        // The guest's memory, counted on the scope: QEMU touched it after the move.
        "vm-hugepages" => assert_eq!(pod.scope_file("hugetlb.2MB.current"), (256 << 20).to_string()),
        "vm-privileged" => assert_ne!(status("CapBnd:"), "00000000a80425fb"),
        "vm-virtiofsd" => {
            pod.threads().one("virtiofsd");
        }
        "vm-emulated" => assert!(pod.threads().vcpus.iter().all(|vcpu| vcpu.name.ends_with("/TCG"))),
        _ => {}
    }
}

#[test]
fn every_example_runs_as_it_is_and_ends_by_its_power_button() {
    needs_kvm();
    let undo = || {
        device_plugin::stop();
        put(PAGES, "0");
    };
    on_node_undoing(undo, || {
        begin_ledger();
        device_plugin::start();
        make_images(&disk::button());
        let mut page = Page::read();
        for round in ROUNDS {
            if round.contains(&"vm-hugepages") {
                keep_huge_pages(PAGES, 128);
            }
            let mut pods = Vec::new();
            for name in round {
                // The one without a disk has nothing to say.
                let is_silent = *name == "vm-emulated";
                let pod = up(name, if is_silent { "guest running" } else { "guest: up" });
                assert_runs(&pod);
                assert_special(&pod);
                // While it is the newest of its round: what the page shows of it.
                page.hold(&pod);
                pods.push(pod);
            }
            run("steliactl verify --now");
            pods.iter().for_each(|pod| drop(assert_isolated(pod, 2)));
            assert_end(&pods);
            for pod in &pods {
                pod.delete(0);
            }
        }
        assert_eq!(scopes().len(), 0);
        page.assert_as_seen();
    });
}

#[test]
fn every_example_is_run_and_names_no_image_but_those_that_are_replaced() {
    let files = names_in(beside(".")).into_iter();
    let names = files.filter_map(|file| Some(file.strip_suffix(".yaml")?.to_owned()));
    let names: Vec<String> = names.filter(|name| !NOT_RUN.contains(&&**name)).collect();
    let elsewhere = OF_STELIAD.into_iter().chain(ADOPTED);
    let run: Vec<&str> = ROUNDS.concat().into_iter().chain(elsewhere).collect();
    assert_eq!(names.len(), run.len(), "{names:?}");
    for name in &names {
        assert!(run.contains(&name.as_str()), "{name}.yaml is not run");
        let (init, main) = (containers(name, "initContainers"), containers(name, "containers"));
        assert!(!main.is_empty(), "{name}.yaml");
        for container in init.iter().chain(&main) {
            let image = container["image"].as_str().expect("an image");
            assert!(image.starts_with("localhost/"), "{name}.yaml: {image}");
            assert!(container["resources"]["limits"].is_object(), "{name}.yaml: {image}");
        }
    }
}

/// A Linux boots from those disks, too: longer than `make check` has time for.
#[test]
fn a_linux_in_the_examples_has_its_cpus_its_network_and_its_share() {
    needs_kvm();
    on_node_undoing(device_plugin::stop, || {
        device_plugin::start();
        make_images(&disk::linux());
        let data = Path::new("/run/kubelet-standin/volumes/vm-virtiofsd-data");
        fs::create_dir_all(data).expect("a volume");
        put(data.join("said"), "hello");
        let pods = ["vm", "vm-virtiofsd"].map(|name| up(name, "guest: up with 2 CPUs"));
        pods.iter().for_each(|pod| drop(assert_isolated(pod, 2)));
        assert_answers(&pods[0]);
        assert_says(&pods[1].logs(), &["guest: the share says hello"]);
        assert_eq!(read(data.join("answered")), "from the guest");
        assert_end(&pods);
    });
}
