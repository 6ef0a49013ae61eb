//! What `steliactl plan` says before, the stand-in for kubelet does after.

use serde_json::Value;

use crate::support::host::{cpus, output, read, run};
use crate::support::pods::{Pod, list, on_node, on_node_undoing};

/// The answer about a pod of one container with so many CPUs, and the exit code.
fn plan(count: &str, more: &[&str]) -> (Value, Option<i32>) {
    let container = format!("name=instance,cpus={count},memory=64Mi");
    let out = output(&[&["steliactl", "plan", "-o", "json", "-c", &container], more].concat());
    let text = String::from_utf8_lossy(&out.stdout);
    let answer = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    (answer, out.status.code())
}

/// The CPUs of a pod in kubelet's own file.
fn entry(pod: &Pod) -> Value {
    let state: Value = serde_json::from_str(&read("/var/lib/kubelet/cpu_manager_state")).expect("JSON");
    state["entries"][&pod.uid]["instance"].clone()
}

#[test]
fn a_plan_says_which_cpus_a_pod_will_get_and_when_the_node_is_full() {
    on_node(|| {
        let (answer, code) = plan("3", &["--until-full"]);
        assert_eq!((&answer["admitted"], code), (&true.into(), Some(0)), "{answer}");
        let fits = answer["until_full"]["count"].as_u64().expect("a count");
        // With reserved CPUs, as kubelet must have them, some are always left; here the last two.
        assert_eq!(fits, 2);
        // One by one as it said, each asked about again right before.
        for (number, foretold) in answer["until_full"]["cpus"]
            .as_array()
            .expect("a list")
            .iter()
            .enumerate()
        {
            let (now, _) = plan("3", &[]);
            assert_eq!(&now["containers"][0]["cpus"], foretold);
            let pod = Pod::start(&format!("planned-{number}"), &["--cpus", "3"], &["sleep", "10000"]);
            assert_eq!(&entry(&pod), foretold, "{pod:?}");
            assert_eq!(pod.exclusive(), cpus(foretold.as_str().expect("CPUs")));
        }
        let (answer, code) = plan("3", &[]);
        assert_eq!((&answer["admitted"], code), (&false.into(), Some(1)), "{answer}");
        let rejection = &answer["rejection"];
        assert_eq!(rejection["reason"], "UnexpectedAdmissionError");
        let out = output(&["kubelet-standin", "pod", "start", "one-more", "--cpus", "3"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && said.contains("UnexpectedAdmissionError: not enough cpus"),
            "{said}"
        );
        assert_eq!(list().len(), 2);
    });
}

#[test]
fn after_others_a_large_pod_gets_a_whole_socket_as_planned() {
    on_node(|| {
        Pod::start("first", &["--cpus", "2"], &["sleep", "10000"]);
        let (answer, _) = plan("4", &[]);
        let large = Pod::start("large", &["--cpus", "4"], &["sleep", "10000"]);
        assert_eq!(entry(&large), answer["containers"][0]["cpus"]);
        assert_eq!(entry(&large), "4-7");
        assert_eq!(answer["containers"][0]["numa_nodes"], "1");
    });
}

#[test]
fn a_described_node_rejects_what_its_kubelet_would() {
    let undo = || {
        run(&["kubelet-standin", "init"]);
    };
    on_node_undoing(undo, || {
        run(&[
            "kubelet-standin",
            "init",
            "--reserved",
            "0",
            "--option",
            "full-pcpus-only=true",
        ]);
        // No kubelet runs here to be asked for its options, so the description says them.
        let text = run(&["steliactl", "node-topology", "-o", "json"]);
        let mut node: Value = serde_json::from_str(&text).expect("JSON");
        let policy = r#"{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0"}"#;
        node["metadata"]["annotations"]["kubelet.koordinator.sh/cpu-manager-policy"] = policy.into();
        for zone in node["zones"].as_array_mut().expect("zones").iter_mut().take(1) {
            for resource in zone["resources"].as_array_mut().expect("resources") {
                if resource["name"] == "cpu" {
                    resource["allocatable"] = "3".into();
                    resource["available"] = "3".into();
                }
            }
        }
        let file = "/run/described.json";
        std::fs::write(file, node.to_string()).expect(file);
        let (answer, code) = plan("3", &["--node", file]);
        assert_eq!(
            (&answer["rejection"]["reason"], code),
            (&"SMTAlignmentError".into(), Some(1)),
            "{answer}"
        );
        let out = output(&["kubelet-standin", "pod", "start", "odd", "--cpus", "3"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let message = answer["rejection"]["message"].as_str().expect("a message");
        assert!(!out.status.success() && said.contains(message), "{said}\n{message}");
        let (answer, _) = plan("2", &["--node", file]);
        let pod = Pod::start("even", &["--cpus", "2"], &["sleep", "10000"]);
        assert_eq!(entry(&pod), answer["containers"][0]["cpus"]);
    });
}
