//! What `steliactl plan` says before, the stand-in for kubelet does after.

use serde_json::Value;

use crate::support::*;

/// The answer about a pod of one container with so many CPUs, and the exit code.
fn plan(count: &str, more: &[&str]) -> (Value, Option<i32>) {
    let container = format!("name=instance,cpus={count},memory=64Mi");
    let (answer, out) = printed(&[&["steliactl", "plan", "-o", "json", "-c", &container], more].concat());
    (answer, out.status.code())
}

/// The CPUs of a pod in kubelet's own file.
fn entry(pod: &Pod) -> Value {
    kubelet_state()["entries"][&pod.uid]["instance"].clone()
}

const CONFIGURATION: &str = "/var/lib/kubelet/config.yaml";

/// No kubelet runs here to be asked for its settings, so its file has those of the stand-in.
fn with_configuration(then: impl FnOnce()) {
    let undo = || {
        run(&format!("rm -f {CONFIGURATION}"));
        run("kubelet-standin init");
    };
    on_node_undoing(undo, || {
        let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                        cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
        run("kubelet-standin init --reserved 0");
        put(CONFIGURATION, settings);
        then();
    });
}

#[test]
fn a_plan_says_which_cpus_a_pod_will_get_and_when_the_node_is_full() {
    with_configuration(|| {
        let (answer, code) = plan("3", &["--until-full"]);
        assert_eq!((&answer["admitted"], code), (&true.into(), Some(0)), "{answer}");
        let fits = answer["until_full"]["count"].as_u64().expect("a count");
        // With reserved CPUs, as kubelet must have them, some are always left; here the last two.
        assert_eq!(fits, 2);
        // One by one as it said, each asked about again right before.
        let foretold = answer["until_full"]["cpus"].as_array().expect("a list");
        for (number, foretold) in foretold.iter().enumerate() {
            let (now, _) = plan("3", &[]);
            assert_eq!(&now["containers"][0]["cpus"], foretold);
            let pod = Pod::idle(&format!("planned-{number}"), &["--cpus", "3"]);
            assert_eq!(&entry(&pod), foretold, "{pod:?}");
            assert_eq!(pod.exclusive(), cpus(foretold.as_str().expect("CPUs")));
        }
        let (answer, code) = plan("3", &[]);
        assert_eq!((&answer["admitted"], code), (&false.into(), Some(1)), "{answer}");
        let rejection = &answer["rejection"];
        assert_eq!(rejection["reason"], "UnexpectedAdmissionError");
        let out = output("kubelet-standin pod start one-more --cpus 3");
        assert_fails(&out, "UnexpectedAdmissionError: not enough cpus");
        assert_eq!(pods().len(), 2);
    });
}
