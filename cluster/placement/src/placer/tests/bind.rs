//! Binds: what fails, and what of a pod changes meanwhile.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_bind_is_claimed_then_bound_and_ends_when_the_node_shows_it() {
    let mut cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    instance.placer.bind(&to).await.unwrap();
    assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    assert_eq!(cluster.claims("steliad"), ["vms/vm"]);
    let bound = cluster.server.object("", "pods", "vms", "vm").unwrap();
    assert_eq!(annotation(&bound), r#"{"cpuset":"2-5"}"#);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(instance.held("steliad"), ["2-5"]);

    cluster.machines[0]
        .register(&to.uid, 4, Some("2-5".parse().unwrap()))
        .unwrap();
    cluster
        .server
        .put(OBJECTS, "noderesourcetopologies", cluster.machines[0].object());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (instance.reservation_counts(), instance.held("steliad").len()),
        ([0; 4], 0)
    );
    // Again: the scheduler did not hear the answer.
    instance.placer.bind(&to).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn where_kubelet_chooses_nothing_is_told() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = ToBind {
        node: "kubelet".into(),
        ..cluster.make("vm", 1, 4)
    };
    instance.placer.bind(&to).await.unwrap();
    let bound = cluster.server.object("", "pods", "vms", "vm").unwrap();
    assert_eq!(
        (bound["spec"]["nodeName"].as_str(), annotation(&bound)),
        (Some("kubelet"), "")
    );
    assert_eq!(instance.held("kubelet"), ["-"]);
}

#[tokio::test(start_paused = true)]
async fn binds_at_once_get_different_cpus() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let all: Vec<ToBind> = (1..=5)
        .map(|number| cluster.make(&format!("vm-{number}"), number, 6))
        .collect();
    let tasks: Vec<_> = all
        .iter()
        .cloned()
        .map(|to| tokio::spawn(bind_detached(instance.placer.clone(), to)))
        .collect();
    let mut bound = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => bound += 1,
            Err(BindError::Rejected(..)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Two NUMA nodes of 14 CPUs.
    assert_eq!(bound, 4);
    let mut told: Vec<String> = cluster
        .server
        .objects("", "pods")
        .iter()
        .map(|pod| annotation(pod).to_owned())
        .collect();
    told.retain(|told| !told.is_empty());
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 4, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_is_asked_for_again() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    cluster.fail("create", "pods/binding", 1, Fault::Lost);
    instance.placer.bind(&to).await.unwrap();
    assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    assert_eq!(instance.held("steliad"), ["2-5"]);
}

#[tokio::test(start_paused = true)]
async fn what_stays_unknown_holds_its_cpus_until_it_is_given_up() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    cluster.fail("create", "pods/binding", 1000, Fault::Status(500));
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Unknown(..)), "{error}");
    assert_eq!(
        (instance.reservation_counts(), instance.held("steliad")),
        ([0, 1, 0, 0], vec!["2-5".to_owned()])
    );
    // The binding may still come: to the same node it is refused, and nobody else gets these CPUs.
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::UnderWay(..)), "{error}");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(
        (instance.reservation_counts(), instance.held("steliad").len()),
        ([0; 4], 0)
    );
    let pod = cluster.server.object("", "pods", "vms", "vm").unwrap();
    assert_eq!(pod["status"]["conditions"][0]["reason"], "Released");
}

#[tokio::test(start_paused = true)]
async fn what_fails_before_the_binding_is_released() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    for code in [403, 422, 500, 503] {
        cluster.fail("create", "nodeclaims", 1, Fault::Status(code));
        let error = instance.placer.bind(&to).await.unwrap_err();
        assert!(matches!(error, BindError::Claim(..)), "{error}");
        assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 4], None));
    }
    cluster.fail("create", "pods/binding", 1, Fault::Status(403));
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Bind(..)), "{error}");
    assert_eq!(instance.reservation_counts(), [0; 4]);
    instance.placer.bind(&to).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_or_made_anew_while_it_is_bound() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.server.remove("", "pods", "vms", "vm");
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Gone(_) | BindError::Bind(..)), "{error}");
    // Another pod of that name.
    cluster.make("vm", 2, 4);
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Gone(_)), "{error}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 4], None));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_its_binding_is_on_the_way_holds_nothing_afterwards() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.fail("create", "pods/binding", 1, Fault::Delay(Duration::from_secs(2)));
    let bind = tokio::spawn(bind_detached(instance.placer.clone(), to));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(instance.held("steliad"), ["2-5"]);
    // Another pod of that name: the binding names the first one's UID.
    cluster.server.remove("", "pods", "vms", "vm");
    let again = cluster.make("vm", 2, 4);
    let error = bind.await.unwrap().unwrap_err();
    assert!(matches!(error, BindError::Gone(_) | BindError::Bind(..)), "{error}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        (instance.reservation_counts(), instance.held("steliad").len()),
        ([0; 4], 0)
    );
    assert_eq!(cluster.node_of("vm"), None);
    instance.placer.bind(&again).await.unwrap();
    assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    assert_eq!(instance.held("steliad"), ["2-5"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_is_not_bound() {
    let cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    let to = cluster.make("vm", 1, 4);
    let mut pod = cluster.server.object("", "pods", "vms", "vm").unwrap();
    pod["metadata"]["deletionTimestamp"] = "2026-05-04T09:12:33Z".into();
    cluster.server.put("", "pods", pod);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Gone(_)), "{error}");
    assert_eq!((cluster.node_of("vm"), instance.held("steliad").len()), (None, 0));
}
