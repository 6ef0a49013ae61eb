//! What the commands print as JSON has the members of `docs/json.md`, all of them and no others.

use stelia_table::testing::Documented;

use super::*;

fn documented() -> Documented {
    Documented::of(include_str!("../../../../docs/json.md"))
}

/// The files of a VM that did not register, without kubelet's.
fn add_vm(root: &Path) {
    let scope = "kubepods.slice/kubepods-podb9e40000_21de_472d_817c_fa9d4306cb7d.slice/cri-containerd-a1.scope";
    let task = |id: i32, name: &str| {
        let folders = [
            format!("proc/{id}"),
            format!("proc/{id}/task/{id}"),
            format!("proc/7/task/{id}"),
        ];
        let stat = format!("{id} ({name}) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 9 0\n");
        let status = format!("Tgid:\t7\nNSpid:\t{id}\t1\nCpus_allowed_list:\t6\n");
        folders.map(|folder| {
            [
                (format!("{folder}/comm"), format!("{name}\n")),
                (format!("{folder}/stat"), stat.clone()),
                (format!("{folder}/status"), status.clone()),
                (format!("{folder}/cgroup"), format!("0::/{scope}\n")),
                (format!("{folder}/cmdline"), "/usr/bin/firecracker\0".to_owned()),
            ]
        })
    };
    let tasks = [task(7, "firecracker"), task(8, "fc_vcpu 0")]
        .into_iter()
        .flatten()
        .flatten();
    let cgroup = [
        ("cgroup.procs", "7\n"),
        ("cgroup.events", "populated 1\n"),
        ("cpuset.cpus", "6\n"),
    ];
    let cgroup = cgroup.map(|(file, text)| (format!("sys/fs/cgroup/{scope}/{file}"), text.to_owned()));
    for (path, text) in tasks.chain(cgroup) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("write");
    }
}

#[test]
fn every_member_that_is_printed_is_documented() {
    let simulation = Simulation::start(&scenario("").replacen("vcpus = 2", "vcpus = 2\nname = \"team-a/web\"", 1));
    let files = simulation.files();
    add_vm(files.path());
    let root = format!("--root={}", files.path().display());
    let node = simulation.sockets.join("node.json");
    fs::write(
        &node,
        simulation.ctl(&["node-topology", "--node-name", "w", "-o", "json"]),
    )
    .expect("write");
    let node = node.to_str().expect("UTF-8");
    let kubelet = simulation.sockets.join("kubelet");
    let kubelet = kubelet.to_str().expect("UTF-8");
    let documented = documented();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, words) in [
        ("list", &["list"][..]),
        ("show", &[&root, "show", "web"]),
        ("status", &["status"]),
        ("verify", &["verify"]),
        ("quiet", &[&root, "quiet"]),
        ("reconcile", &["reconcile"]),
        ("reconcile", &["reconcile", "--dry-run"]),
        ("top", &[&root, "top", "-n", "1", "-d", "0.2"]),
        ("explain", &["explain"]),
        ("explain VM", &["explain", "web"]),
        ("explain CPU", &["explain", "2"]),
        ("kubelet-state", &["kubelet-state", kubelet]),
        ("kubelet-state", &["kubelet-state", "/nonexistent"]),
        (
            "plan",
            &[
                "plan",
                "-n",
                node,
                "-c",
                "cpus=2,memory=1Gi",
                "--what-if",
                "--until-full",
            ],
        ),
        ("plan", &["plan", "-n", node, "-c", "cpus=64,memory=1Gi"]),
        ("metrics", &["metrics"]),
        ("doctor", &["doctor"]),
        ("adopt", &[&root, "adopt", "--dry-run"]),
        ("reload", &["reload"]),
        ("deregister", &["deregister", WAITING]),
    ] {
        let out = simulation.run(
            env!("CARGO_BIN_EXE_steliactl-simulated"),
            &[words, &["--json=short"]].concat(),
        );
        let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|cause| panic!("{words:?}: {cause}: {out:?}"));
        let here = documented.wrong(name, &value);
        wrong.extend(here.into_iter().map(|what| format!("{name}: {what}")));
        seen += 1;
    }
    assert!(seen >= 20);
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
