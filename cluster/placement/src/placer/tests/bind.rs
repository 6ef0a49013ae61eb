//! Binds: what fails, and what of a pod changes meanwhile.

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::reservations::BindNotStarted;

#[tokio::test(start_paused = true)]
async fn a_bind_holds_its_cpus_until_the_node_shows_the_pod() {
    let (mut cluster, instance) = ready().await;
    let to = cluster.make("vm", 1, 4);
    instance.placer.bind(&to).await.unwrap();
    assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    assert_eq!(cluster.told("vm"), r#"{"cpuset":"2-5"}"#);
    a_second().await;
    assert_eq!(instance.held("steliad"), ["2-5"]);

    let told = Some("2-5".parse().unwrap());
    cluster.machines[0].register(&to.uid, 4, told).unwrap();
    cluster.publish(0);
    a_second().await;
    assert_eq!(instance.state(), NOTHING);
    // Again: the scheduler did not hear the answer.
    instance.placer.bind(&to).await.unwrap();
    // Where kubelet chooses, nothing is told.
    let to = cluster.make_on("kubelet", "other", 2, 4);
    instance.placer.bind(&to).await.unwrap();
    assert_eq!(cluster.node_of("other").as_deref(), Some("kubelet"));
    assert_eq!(cluster.told("other"), "");
    assert_eq!(instance.held("kubelet"), ["-"]);
}

#[tokio::test(start_paused = true)]
async fn binds_at_once_get_different_cpus() {
    let (cluster, instance) = ready().await;
    let make = |number: u64| cluster.make(&format!("vm-{number}"), number, 6);
    let tasks = [1, 2, 3, 4, 5].map(|number| instance.bind(&make(number)));
    let mut bound = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => bound += 1,
            Err(BindError::NotStarted(BindNotStarted::Rejected(_))) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Two NUMA nodes of 14 CPUs.
    assert_eq!(bound, 4);
    let told = (1..=5).map(|number| cluster.told(&format!("vm-{number}")));
    let told: BTreeSet<String> = told.filter(|told| !told.is_empty()).collect();
    assert_eq!(told.len(), 4, "{told:?}");
}

/// The scheduler is told after 8 s that it is unknown, and the binding is sent again until it is answered or the pod is another.
#[rstest]
#[case::answered_at_last(false)]
#[case::the_pod_changes(true)]
#[tokio::test(start_paused = true)]
async fn what_stays_unknown_holds_its_cpus_until_it_is_known(#[case] changes: bool) {
    let (cluster, instance, to) = with_vm(14).await;
    cluster.fail("create", "pods/binding", 6, Fault::Status(500));
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Unknown), "{error}");
    assert_eq!(instance.state(), ([1, 0, 0], vec!["2-15".to_owned()]));
    // The binding may still come: the pod is bound nowhere else, and nobody else gets these CPUs.
    for node in ["steliad", "kubelet"] {
        let node = node.into();
        let error = instance.placer.bind(&ToBind { node, ..to.clone() }).await.unwrap_err();
        assert!(
            matches!(error, BindError::NotStarted(BindNotStarted::UnderWay(_))),
            "{error}"
        );
    }
    instance.placer.bind(&cluster.make("other", 2, 14)).await.unwrap();
    let third = cluster.make("third", 3, 14);
    assert!(instance.placer.bind(&third).await.is_err());
    if changes {
        cluster.change_pod("vm", |pod| pod["metadata"]["labels"]["changed"] = "yes".into());
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!((instance.reservation_counts()[0], cluster.node_of("vm")), (0, None));
        instance.placer.bind(&third).await.unwrap();
    } else {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(instance.reservation_counts()[0], 0);
        assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    }
}

/// As behind a webhook that is broken: other pods get the CPUs after half a minute, and nothing that was sent can bind this one any more.
#[tokio::test(start_paused = true)]
async fn what_is_never_answered_is_given_up() {
    let (cluster, instance, to) = with_vm(14).await;
    cluster.fail("create", "pods/binding", 1000, Fault::Status(500));
    instance.placer.bind(&to).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(instance.held("steliad"), ["2-15"]);
    assert_eq!(cluster.retried("vm"), None);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 3], None));
    assert!(cluster.retried("vm").is_some());
}

/// The API server answers 409 also if it does not know what etcd did. The binding that it answered so takes effect later, or never.
#[rstest]
#[case::it_comes_late(2)]
#[case::it_never_comes(1000)]
#[tokio::test(start_paused = true)]
async fn a_conflict_over_an_unchanged_pod_decides_nothing(#[case] conflicts: u32) {
    let (cluster, instance, to) = with_vm(14).await;
    a_second().await;
    let pod = cluster.pod("vm");
    cluster.fail("create", "pods/binding", conflicts, Fault::Status(409));
    let bind = instance.bind(&to);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(instance.state(), ([1, 0, 0], vec!["2-15".to_owned()]));
    if conflicts < 1000 {
        let mut bound = pod;
        bound["spec"]["nodeName"] = "steliad".into();
        bound["metadata"]["annotations"] = json!({STATUS: r#"{"cpuset":"2-15"}"#});
        cluster.server.put("", "pods", bound);
        bind.await.unwrap().unwrap();
        assert_eq!(instance.held("steliad"), ["2-15"]);
        return;
    }
    let error = bind.await.unwrap().unwrap_err();
    assert!(matches!(error, BindError::Unknown), "{error}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 3], None));
    // Nothing that was sent can bind it any more.
    assert!(cluster.retried("vm").is_some());
}

/// Only a pod that is missing, or another one of its name, is gone.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_pod_ends_none() {
    let (cluster, instance, to) = with_vm(4).await;
    a_second().await;
    let pod = cluster.pod("vm");
    let mut nonsense = pod.clone();
    nonsense["spec"]["containers"] = 7.into();
    cluster.fail("create", "pods/binding", 1, Fault::Status(409));
    cluster.server.put("", "pods", nonsense);
    let bind = instance.bind(&to);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(instance.held("steliad"), ["2-5"]);
    cluster.server.put("", "pods", pod);
    bind.await.unwrap().unwrap_err();
    instance.placer.bind(&to).await.unwrap();
}

/// The answer is lost before leadership is, and another leader may promise the same CPUs: the binding is made impossible, and not sent again.
#[tokio::test(start_paused = true)]
async fn what_a_former_term_left_is_given_up() {
    let (cluster, instance, to) = with_vm(14).await;
    cluster.fail("create", "pods/binding", 1000, Fault::Status(500));
    let _unknown = instance.placer.bind(&to).await.unwrap_err();
    cluster.server.down(Duration::from_secs(20));
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(instance.placer.ready(), Err(NotReady::NotLeader));
    assert_eq!(instance.held("steliad").len(), 1);
    instance.becomes_ready().await;
    cluster.server.asked();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let asked = cluster.server.asked();
    assert!(asked.iter().all(|asked| asked.resource != "pods/binding"));
    assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 3], None));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_released() {
    let (cluster, instance, to) = with_vm(4).await;
    for code in [403, 422, 429] {
        let times = if code == 429 { 100 } else { 1 };
        cluster.fail("create", "pods/binding", times, Fault::Status(code));
        let error = instance.placer.bind(&to).await.unwrap_err();
        assert!(matches!(error, BindError::Failed(_) | BindError::Unknown), "{error}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 3], None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_or_made_anew_while_it_is_bound() {
    let (cluster, instance, to) = with_vm(4).await;
    a_second().await;
    cluster.server.remove("", "pods", "vms", "vm");
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(
        matches!(
            error,
            BindError::NotStarted(BindNotStarted::Gone) | BindError::Failed(_)
        ),
        "{error}"
    );
    // Another pod of that name.
    cluster.make("vm", 2, 4);
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::NotStarted(BindNotStarted::Gone)), "{error}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 3], None));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_its_binding_is_on_the_way_holds_nothing_afterwards() {
    let (cluster, instance, to) = with_vm(4).await;
    a_second().await;
    cluster.fail("create", "pods/binding", 1, Fault::Delay(Duration::from_secs(2)));
    let bind = instance.bind(&to);
    a_second().await;
    assert_eq!(instance.held("steliad"), ["2-5"]);
    // Another pod of that name: the binding names the first one's UID.
    cluster.server.remove("", "pods", "vms", "vm");
    let again = cluster.make("vm", 2, 4);
    let error = bind.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            BindError::NotStarted(BindNotStarted::Gone) | BindError::Failed(_)
        ),
        "{error}"
    );
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((instance.state(), cluster.node_of("vm")), (NOTHING, None));
    instance.placer.bind(&again).await.unwrap();
    assert_eq!(cluster.node_of("vm").as_deref(), Some("steliad"));
    assert_eq!(instance.held("steliad"), ["2-5"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_being_deleted_is_not_bound() {
    let (cluster, instance, to) = with_vm(4).await;
    let now = "2026-05-04T09:12:33Z";
    cluster.change_pod("vm", |pod| pod["metadata"]["deletionTimestamp"] = now.into());
    a_second().await;
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::NotStarted(BindNotStarted::Gone)), "{error}");
    assert_eq!((cluster.node_of("vm"), instance.held("steliad").len()), (None, 0));
}
