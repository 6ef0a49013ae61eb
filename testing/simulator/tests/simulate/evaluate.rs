//! EvaluatePlacement and plan. On the simulated node kubelet chooses the CPUs.

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
    // Of a described node kubelet's answer is predicted, without the daemon.
    let file = simulation.sockets.join("node.yaml").display().to_string();
    let described = simulation.ctl(&["export", "topology", "--node-name", "worker-1"]);
    fs::write(&file, described).expect("write");
    let words = ["plan", "--cpus", "2", "--node", &file];
    let told = simulation.ctl(&words);
    assert!(
        told.contains("worker-1") && told.contains("assigned by kubelet"),
        "{told}"
    );
    let (code, _, why) = simulation.told(&[&words[..], &["--qos", "LS"]].concat());
    assert!(code == Some(2) && why.contains("kubelet assigns the CPUs"), "{why}");
}
