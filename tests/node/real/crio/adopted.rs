//! What a rule adopts: VMs, in their container where crun copes with what CRI-O asks it, and in `stelia.slice`; a container whose own cgroup,
//! crun's scope, is the partition. Whose VM it is, by what CRI-O writes of its container.

use serde_json::json;

use super::pods::{Manifest, delete, exec, qemu, userdata};
use super::{on_crio, restart_programs};
use crate::real::kubelet::manifest::{INSTANCE, running_again};
use crate::support::*;

/// A shell that starts QEMU and stays.
fn unregistered(name: &str) -> Manifest {
    let script = format!("trap exit TERM; {} & wait; sleep 100000 & wait", qemu().join(" "));
    Manifest::new(name, &["sh", "-c", &script]).with_device()
}

/// Everything that is restarted finds the VM as it was, and CRI-O still runs programs in its container.
fn assert_survives_restarts(pod: &Pod) {
    restart_programs(pod, || {
        wrong_if_adopted(pod, is_qemus_vcpu).is_none() && pod.threads().others.len() >= 3
    });
    assert_eq!(told_of(ADOPTED, pod).len(), 1);
    let shell = exec(pod, "sleep 1000 > /dev/null 2>&1 & echo started");
    assert_eq!(shell, "started\n");
    reconcile();
    run(&["steliactl", "verify", &pod.uid]);
}

#[test]
fn a_vm_is_adopted_in_its_container_and_killed_leaves_nothing() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\n");
        let pod = unregistered("inside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod, is_qemus_vcpu);
        // crun answers what CRI-O asks of a container with threaded cgroups.
        assert!(pod.is_in_place());
        assert_survives_restarts(&pod);

        // kubelet has CRI-O make a container anew, whose VM is adopted too.
        kill("-KILL", pod.pid);
        let again = running_again("inside", 1);
        assert_ne!(again.cgroup, pod.cgroup);
        until_adopted(&again, is_qemus_vcpu);
        wait_until("nothing of the first one is left", || !pod.origin().exists());
        delete(&again);
    });
}

#[test]
fn a_vm_is_adopted_in_the_slice_and_given_back_when_it_ends() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\ntree = \"slice\"\n");
        let pod = unregistered("outside").with_startup_probe(&["true"]).apply();
        until_adopted(&pod, is_qemus_vcpu);
        assert!(!pod.is_in_place());
        let first = pod.file("cgroup.procs");
        assert_eq!(first, pod.pid.to_string(), "what is left in the origin");
        assert_survives_restarts(&pod);

        // The VM ends, its container lives on.
        let vcpus = pod.threads().vcpus;
        let vcpu = vcpus.first().expect("a vCPU").tid;
        kill("-KILL", vcpu);
        until_adoption_ended(&pod);
        let lists = lists_above(&pod.origin());
        assert!(lists.iter().all(String::is_empty), "{lists:?}");
        assert_eq!(running_again("outside", 0).pid, pod.pid);
        delete(&pod);
    });
}

/// It ends when it is told to.
const SERVING: &str = "trap exit TERM; for n in 1 2 3; do { while :; do :; done; } & done; wait";

fn is_whole(pod: &Pod) -> bool {
    is_partition(pod) && moved_thread(pod).is_none()
}

fn until_whole(pod: &Pod) {
    let seen = || format!(": {:?}, {:?}", pod.state(), refused(pod));
    wait_until_or("a partition", seen, || is_whole(pod));
    run(&["steliactl", "verify", &pod.uid]);
}

#[test]
fn a_whole_container_is_a_partition_through_restarts_and_killed_leaves_nothing() {
    on_crio(|| {
        configure(DATABASES);
        let manifest = Manifest::new("database-one", &["sh", "-c", SERVING]).with_startup_probe(&["true"]);
        let pod = manifest.apply();
        until_whole(&pod);
        restart_programs(&pod, || is_whole(&pod));
        kill("-KILL", pod.pid);
        let again = running_again("database-one", 1);
        until_whole(&again);
        delete(&again);
    });
}

fn assert_named(pod: &Pod, namespace: &str) {
    let described = pod.described();
    let words = ["pod_namespace", "pod_name", "pod", "container"].map(|word| &described[word]);
    assert_eq!(words, [namespace, &pod.name, &pod.uid, INSTANCE]);
    assert_says(&run("steliactl list"), &[&format!("{namespace}/{}", pod.name)]);
}

/// The pod says that it is another one, in the keys of CRI-O and of containerd: CRI-O copies a pod's annotations to its containers.
fn forged(manifest: Manifest) -> Manifest {
    manifest.with_metadata(
        "annotations",
        json!({
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
        }),
    )
}

#[test]
fn a_container_is_its_own_pods_whatever_the_pods_annotations_say() {
    on_crio(|| {
        configure("[[adopt]]\nuse = \"qemu\"\nnamespaces = [\"team-a\"]\n");
        // Adopted are the VMs of the namespace, and no other pod's.
        let liar = forged(unregistered("liar")).apply();
        let config = json(&read(userdata(&liar).join("config.json")));
        assert_eq!(config["annotations"]["io.kubernetes.pod.namespace"], "default");
        let honest = unregistered("honest").with_metadata("namespace", "team-a").apply();
        until_adopted(&honest, is_qemus_vcpu);
        assert_named(&honest, "team-a");
        reconcile();
        assert_eq!((liar.state(), refused(&liar)), (None, None), "no rule is of it");
        delete(&liar);

        // A container that refuses is left alone, and it is said by its own name.
        let mut refuses = unregistered("refuses").with_metadata("namespace", "team-a");
        refuses.container()["env"] = json!([{"name": "STELIA_ADOPT", "value": "no"}]);
        let refuses = refuses.apply();
        let (reason, text) = wait_until("it is refused", || refused(&refuses));
        assert_eq!(reason, "ContainerRefuses", "{text}");
        delete(&refuses);

        // One that registers has its own name too.
        let runner = forged(Manifest::of_runner("registers")).apply().running();
        assert_named(&runner, "default");
    });
}
