//! Whose VM it is, by what CRI-O writes of its container.

use serde_json::json;

use super::adopted::unregistered;
use super::on_crio;
use super::pods::{Manifest, config};
use crate::real::kubelet::manifest::INSTANCE;
use crate::support::*;

fn assert_named(pod: &Pod, namespace: &str) {
    let described = pod.described();
    let words = ["pod_namespace", "pod_name", "pod", "container"].map(|word| &described[word]);
    assert_eq!(words, [namespace, &pod.name, &pod.uid, INSTANCE]);
    assert_says(&run("steliactl list"), &[&format!("{namespace}/{}", pod.name)]);
}

/// Annotations by which a pod says that it is another one, in the keys of CRI-O and of containerd. CRI-O copies a pod's annotations to its
/// containers.
fn forged(manifest: Manifest) -> Manifest {
    manifest.with_annotations(json!({
        "io.kubernetes.pod.namespace": "team-a",
        "io.kubernetes.pod.name": "victim",
        "io.kubernetes.pod.uid": "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5",
        "io.kubernetes.container.name": "other",
        "io.kubernetes.cri.sandbox-namespace": "team-a",
        "io.kubernetes.cri.sandbox-name": "victim",
        "io.kubernetes.cri.sandbox-uid": "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5",
        "io.kubernetes.cri.container-name": "other",
        "io.kubernetes.cri-o.Namespace": "team-a",
        "io.kubernetes.cri-o.KubeName": "victim",
        "io.kubernetes.cri-o.ContainerName": "other",
    }))
}

#[test]
fn a_container_is_its_own_pods_whatever_the_pods_annotations_say() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\nnamespaces = [\"team-a\"]\n");
        // Adopted are the VMs of the namespace, and no other pod's.
        let liar = forged(unregistered("liar")).apply();
        assert_eq!(config(&liar)["annotations"]["io.kubernetes.pod.namespace"], "default");
        let honest = unregistered("honest").in_namespace("team-a").apply();
        until_adopted(&honest, is_qemus_vcpu);
        assert_named(&honest, "team-a");
        reconcile();
        assert_eq!((liar.state(), refused(&liar)), (None, None), "no rule is of it");
        super::pods::delete(&liar);

        // A container that refuses is left alone, and it is said by its own name.
        let refuses = unregistered("refuses").in_namespace("team-a");
        let refuses = refuses.with_environment("STELIA_ADOPT", "no").apply();
        let (reason, text) = wait_until("it is refused", || refused(&refuses));
        assert_eq!(reason, "ContainerRefuses", "{text}");
        super::pods::delete(&refuses);

        // One that registers has its own name too.
        let runner = forged(Manifest::of_runner("registers")).apply().running();
        assert_named(&runner, "default");
    });
}
