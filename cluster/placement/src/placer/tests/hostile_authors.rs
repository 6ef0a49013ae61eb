//! What the authors of pods and of nodes' objects do to others.

use rstest::rstest;
use stelia_cpus::CpuSet;

use super::*;

impl Cluster {
    /// A pod that its own `spec.nodeName` binds, and that calls itself the mirror of another.
    fn add_mirror_pod(&self, name: &str, number: u64, of: &str, on: &str) {
        let mut forged = pod(name, &uid(number, 0), 1, false);
        forged["metadata"]["namespace"] = "tenant".into();
        forged["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": of.replace('-', "")});
        forged["spec"]["nodeName"] = on.into();
        self.server.put("", "pods", forged);
    }

    /// The pod of another scheduler on a node, that has more containers than are planned for.
    fn add_unreadable_pod(&self, on: &str, change: impl FnOnce(&mut Value)) {
        let mut document = pod("unreadable", &uid(1, 0), 14, false);
        document["spec"]["nodeName"] = on.into();
        with_init_containers(&mut document);
        change(&mut document);
        self.server.put("", "pods", document);
    }
}

fn with_init_containers(document: &mut Value) {
    let init = |number| json!({"name": format!("init-{number}"), "image": "x"});
    document["spec"]["initContainers"] = (0..100).map(init).collect();
}

/// A VM whose class is in a label, which may be changed at any time.
fn by_label(name: &str, number: u64) -> Value {
    let mut document = pod(name, &uid(number, 0), 14, true);
    document["metadata"]["labels"] = json!({"qos": "LSE"});
    let container = &mut document["spec"]["containers"][0];
    container["command"] = json!([
        "stelia-runner",
        "run",
        "--qos=$(QOS)",
        "--resource-status",
        "/x",
        "--",
        "qemu"
    ]);
    container["env"] = json!([{"name": "QOS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['qos']"}}}]);
    document
}

/// A VM of two CPUs that does not read the annotation, and never registers.
fn sleeper(number: u64, memory: u64) -> Value {
    let mut document = pod(&format!("sleeper-{number}"), &uid(number, 0), 2, true);
    let container = &mut document["spec"]["containers"][0];
    container["command"] = json!(["sleep", "infinity"]);
    for list in ["limits", "requests"] {
        container["resources"][list]["memory"] = format!("{memory}Mi").into();
    }
    document
}

/// A pod that calls itself the mirror of another, bound elsewhere and deleted again, neither releases what that one holds nor ends it.
#[tokio::test(start_paused = true)]
async fn a_forged_mirror_annotation_changes_nothing_of_another_pod() {
    let (cluster, instance) = ready().await;
    let [victim, waiting] = [cluster.make("victim", 1, 14), cluster.make("waiting", 4, 14)];
    instance.placer.bind(&victim).await.unwrap();
    cluster.add_mirror_pod("forged", 2, &victim.uid, "elsewhere");
    cluster.add_mirror_pod("second", 3, &waiting.uid, "elsewhere");
    a_second().await;
    cluster.server.remove("", "pods", "tenant", "second");
    a_second().await;
    assert_eq!(instance.placer.bind(&waiting).await, Ok(()));
    assert_ne!(cluster.told("victim"), cluster.told("waiting"));
}

/// Two NUMA nodes have 14 CPUs each: a third VM of 14 finds none, whatever the first one's author wrote.
#[rstest]
#[case::the_annotation_of_a_vm_that_does_not_read_it(|document: &mut Value| {
    document["spec"]["containers"][0]["command"] = json!(["stelia-runner", "run", "--", "qemu"]);
    document["metadata"]["annotations"] = json!({STATUS: r#"{"cpuset":"0-31"}"#});
}, |_: &mut Value| ())]
#[case::the_annotation_after_the_bind(|_: &mut Value| (), |document: &mut Value| {
    document["metadata"]["annotations"][STATUS] = r#"{"cpuset":"0-31"}"#.into();
})]
#[case::the_size_after_the_bind(|_: &mut Value| (), |document: &mut Value| {
    for list in ["limits", "requests"] {
        document["spec"]["containers"][0]["resources"][list]["cpu"] = "2".into();
    }
})]
#[case::a_size_that_no_node_has(|_: &mut Value| (), |document: &mut Value| {
    for list in ["limits", "requests"] {
        document["spec"]["containers"][0]["resources"][list]["cpu"] = "1000".into();
    }
})]
#[case::the_mirror_of_a_pod_that_is_shown(|_: &mut Value| (), |document: &mut Value| {
    document["metadata"]["annotations"]["kubernetes.io/config.mirror"] = uid(7, 1).into();
})]
#[tokio::test(start_paused = true)]
async fn no_change_of_its_authors_hides_a_claim(#[case] before: fn(&mut Value), #[case] after: fn(&mut Value)) {
    let (cluster, instance) = ready().await;
    let mut document = pod("vm-1", &uid(1, 0), 14, true);
    before(&mut document);
    let first = cluster.create_pod("steliad", "vm-1", 1, document);
    instance.placer.bind(&first).await.unwrap();
    a_second().await;
    cluster.change_pod("vm-1", after);
    a_second().await;
    let held = instance.held("steliad");
    instance.placer.bind(&cluster.make("vm-2", 2, 14)).await.unwrap();
    assert!(!cluster.told("vm-2").contains(&format!("{:?}", held[0])), "{held:?}");
    let third = instance.placer.bind(&cluster.make("vm-3", 3, 14)).await;
    assert!(third.is_err(), "42 CPUs are promised of 28");
    // A new leader has only the pod as it is now.
    drop(instance);
    let next = cluster.ready(2).await;
    assert!(next.placer.bind(&cluster.make("vm-4", 4, 14)).await.is_err());
}

/// The first one is another scheduler's, and late when its author writes CPUs of the second one into its annotation. If it counted first, the second one would
/// be chosen other CPUs, and a third one told its.
#[tokio::test(start_paused = true)]
async fn a_rewritten_annotation_displaces_no_promise() {
    let (cluster, instance) = ready().await;
    let mut foreign = pod("vm-1", &uid(1, 0), 2, true);
    foreign["spec"]["nodeName"] = "steliad".into();
    cluster.create_pod("steliad", "vm-1", 1, foreign);
    tokio::time::sleep(Duration::from_secs(40)).await;
    instance.placer.bind(&cluster.make("vm-2", 2, 14)).await.unwrap();
    let second = instance.held("steliad")[1].parse::<CpuSet>().unwrap();
    let wanted: CpuSet = second.iter().take(2).collect();
    cluster.change_pod("vm-1", |document| {
        document["metadata"]["annotations"] = json!({STATUS: format!(r#"{{"cpuset":"{wanted}"}}"#)});
    });
    a_second().await;
    let _ = instance.placer.bind(&cluster.make("vm-3", 3, 12)).await;
    let held = instance.held("steliad");
    for third in held.iter().skip(2).map(|cpus| cpus.parse::<CpuSet>().unwrap()) {
        assert!(second.is_disjoint(&third), "{held:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_never_registers_does_not_close_the_node() {
    let (cluster, instance) = ready().await;
    instance.placer.bind(&cluster.make("sleeper", 1, 2)).await.unwrap();
    cluster.change_pod("sleeper", |document| document["status"]["phase"] = "Running".into());
    for hours in [1u64, 2] {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let other = cluster.make(&format!("other-{hours}"), 1 + hours, 4);
        assert_eq!(instance.placer.bind(&other).await, Ok(()), "after {hours} h");
    }
}

/// Equal ones, which cost one order; and different ones, whose orders are too many, once they are late.
#[rstest]
#[case(6, |_| 1024, 1)]
#[case(11, |number| 1024 + number, 40)]
#[tokio::test(start_paused = true)]
async fn vms_that_never_register_do_not_close_the_node(
    #[case] vms: u64,
    #[case] memory: fn(u64) -> u64,
    #[case] seconds: u64,
) {
    let (cluster, instance) = ready().await;
    for number in 1..=vms {
        let (name, pod) = (format!("sleeper-{number}"), sleeper(number, memory(number)));
        let to = cluster.create_pod("steliad", &name, number, pod);
        while let Err(cause) = instance.placer.bind(&to).await {
            assert!(cause.to_string().contains("depends on the order"), "{cause}");
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(instance.placer.bind(&cluster.make("honest", 90, 2)).await, Ok(()));
    let held = instance.held("steliad");
    let still = held.iter().filter(|cpus| *cpus == "-").count() as u64;
    assert_eq!(still, vms);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_becomes_unreadable_is_decided() {
    let (cluster, instance) = ready().await;
    let to = cluster.create_pod("steliad", "vm", 1, by_label("vm", 1));
    cluster.fail("create", "pods/binding", 1000, Fault::Status(500));
    instance.placer.bind(&to).await.unwrap_err();
    cluster.change_pod("vm", |pod| pod["metadata"]["labels"]["qos"] = "nonsense".into());
    a_second().await;
    assert_eq!(instance.reservation_counts(), [0; 3]);
    cluster.server.asked();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = cluster.server.asked();
    let of_pods = |asked: &&test_apiserver::LoggedRequest| asked.resource.starts_with("pods") && asked.verb != "watch";
    assert_eq!(asked.iter().filter(of_pods).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_becomes_unreadable_holds_what_it_was_promised() {
    let (cluster, instance) = ready().await;
    let to = cluster.create_pod("steliad", "vm", 1, by_label("vm", 1));
    // It is carried out, and the answer is lost.
    cluster.fail("create", "pods/binding", 1, Fault::Lost);
    let bind = instance.bind(&to);
    while cluster.node_of("vm").is_none() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    cluster.change_pod("vm", |pod| pod["metadata"]["labels"]["qos"] = "nonsense".into());
    let _ = bind.await.unwrap();
    a_second().await;
    assert_eq!(instance.held("steliad"), ["2-15"]);
    // A new leader has nothing readable of it, and counts its CPUs.
    drop(instance);
    let next = cluster.ready(2).await;
    assert_eq!(next.held("steliad").len(), 1);
    next.placer.bind(&cluster.make("second", 2, 14)).await.unwrap();
    assert!(next.placer.bind(&cluster.make("third", 3, 14)).await.is_err());
}

/// Of another scheduler, with options that nobody understands, and with more containers than are planned for.
#[rstest]
#[case(|document: &mut Value| document["spec"]["containers"][0]["command"] = json!(["x", "--qos=nonsense"]))]
#[case(with_init_containers)]
#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_of_another_scheduler_counts_by_its_cpus(#[case] change: fn(&mut Value)) {
    let (cluster, instance) = ready().await;
    let mut document = pod("foreign", &uid(1, 0), 14, true);
    change(&mut document);
    document["spec"]["nodeName"] = "steliad".into();
    cluster.server.put("", "pods", document);
    a_second().await;
    instance.placer.bind(&cluster.make("second", 2, 14)).await.unwrap();
    assert!(instance.placer.bind(&cluster.make("third", 3, 14)).await.is_err());
}

/// kubelet gives a Burstable pod no CPUs of its own, so it holds none, and no object will show it.
#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_without_cpus_of_its_own_closes_no_node() {
    let (cluster, instance) = ready().await;
    cluster.add_unreadable_pod("kubelet", |document| {
        document["status"]["qosClass"] = "Burstable".into()
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    let silent = instance.placer.reservation_counts().silent_nodes;
    assert_eq!((instance.held("kubelet").len(), silent), (0, 0));
}

/// Whether kubelet gives it CPUs of its own is not known, so it holds them, and the object need not show it.
#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_silences_no_node() {
    let (cluster, instance) = ready().await;
    cluster.add_unreadable_pod("kubelet", |_| ());
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(instance.held("kubelet"), ["-"]);
    let honest = cluster.make_on("kubelet", "honest", 2, 14);
    assert_eq!(instance.placer.bind(&honest).await, Ok(()));
    let third = cluster.make_on("kubelet", "third", 3, 14);
    assert!(instance.placer.bind(&third).await.is_err(), "its CPUs count");
}

/// The newest of a node's objects counts, and those between are not read.
#[tokio::test(start_paused = true)]
async fn a_node_that_writes_without_end_is_read_once_a_second() {
    let (cluster, instance) = ready().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut broken = cluster.machines[0].object();
    broken["zones"] = json!([]);
    let unreadable = || instance.placer.counts().unreadable.load(Ordering::Relaxed);
    for _ in 0..1000 {
        cluster.server.put(OBJECTS, "noderesourcetopologies", broken.clone());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(unreadable(), 1);
    cluster.publish(0);
    a_second().await;
    assert_eq!(unreadable(), 1);
    assert_eq!(instance.placer.bind(&cluster.make("vm", 1, 4)).await, Ok(()));
}
