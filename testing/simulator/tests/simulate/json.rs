//! What the commands print as JSON has the members of `docs/json.md`, all of them and no others.

use stelia_table::testing::Documented;

use super::*;

fn documented() -> Documented {
    Documented::of(include_str!("../../../../docs/json.md"))
}

#[test]
fn every_member_that_is_printed_is_documented() {
    let simulation = Simulation::start(&scenario("").replacen("vcpus = 2", "vcpus = 2\nname = \"team-a/web\"", 1));
    let files = simulation.files();
    let root = format!("--root={}", files.path().display());
    let node = simulation.sockets.join("node.json");
    fs::write(
        &node,
        simulation.ctl(&["export", "topology", "--node-name", "w", "-o", "json"]),
    )
    .expect("write");
    let node = node.to_str().expect("UTF-8");
    let cpus = simulation
        .sockets
        .join("kubelet/cpu_manager_state")
        .display()
        .to_string();
    let documented = documented();
    let mut wrong = Vec::new();
    for (name, words) in [
        ("list", &["list"][..]),
        ("show", &[&root, "show", "web"]),
        ("verify", &["verify"]),
        ("noise", &[&root, "noise"]),
        ("reconcile", &["reconcile"]),
        ("reconcile", &["reconcile", "--dry-run"]),
        ("top", &[&root, "top", "--count", "1", "-d", "0.2"]),
        ("why VM", &["why", "web"]),
        ("why CPU", &["why", "2"]),
        ("why node", &["why", "node"]),
        ("doctor --kubelet-state", &["doctor", "--kubelet-state", &cpus]),
        ("doctor --kubelet-state", &["doctor", "--kubelet-state", "/nonexistent"]),
        (
            "plan",
            &["plan", "--node", node, "-c", "cpus=2,memory=1Gi", "--until-full"],
        ),
        ("plan", &["plan", "--node", node, "-c", "cpus=64,memory=1Gi"]),
        ("doctor", &["doctor"]),
        ("list --unmanaged", &["list", "--unmanaged"]),
        ("release", &["release", WAITING]),
    ] {
        let out = simulation.steliactl(&[words, &["--json=short"]].concat());
        let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|cause| panic!("{words:?}: {cause}: {out:?}"));
        let here = documented.wrong(name, &value);
        wrong.extend(here.into_iter().map(|what| format!("{name}: {what}")));
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
