//! plan: the allocator's answers. On the simulated node kubelet chooses the CPUs.

use super::*;

#[test]
fn everybody_on_the_bus_may_ask_no_pod_may_and_each_refusal_is_named() {
    let simulation = Simulation::start(&scenario(""));
    let call = [OBJECT, MANAGER, "EvaluatePlacement", "aa{sv}a{sv}"];
    let ask = |words: &[&str]| simulation.as_nobody(&[&call[..], words].concat());
    for (words, says) in [
        (
            &["1", "1", "cpus", "u", "2", "0"][..],
            "kubelet chooses the CPUs on this node",
        ),
        (
            &["2", "0", "1", "memory", "u", "2", "0"],
            "request 1: option \"memory\" is not known",
        ),
        (&["1", "1", "qos", "s", "lse", "0"], "LSE, LSR, LS, BE"),
        (&["0", "1", "surprise", "s", "x"], "option \"surprise\" is not known"),
    ] {
        let (done, text) = ask(words);
        assert!(!done && text.contains(says), "{words:?}: {text}");
    }
    let evaluate = |words: &[&str]| {
        let out = simulation.run(
            env!("CARGO_BIN_EXE_steliactl-simulated"),
            &[&["plan", "--cpus", "2"], words].concat(),
        );
        assert_eq!((out.status.code(), out.stdout.is_empty()), (Some(1), true), "{out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let told = evaluate(&[]);
    assert!(told.contains("kubelet chooses the CPUs on this node"), "{told}");
    let socket = format!("--address=unix:path={}/{WAITING}.socket", simulation.sockets.display());
    let told = evaluate(&[&socket]);
    assert!(!told.contains("kubelet chooses"), "{told}");
    // A description of the node gives the same answer without the daemon.
    let file = simulation.sockets.join("node.yaml");
    fs::write(
        &file,
        simulation.ctl(&["export", "topology", "--node-name", "worker-1"]),
    )
    .expect("write");
    let told = evaluate(&[
        "--node",
        &file.display().to_string(),
        "--address=unix:path=/nonexistent",
    ]);
    assert!(
        told.contains("node.yaml: kubelet chooses the CPUs on this node"),
        "{told}"
    );
}
