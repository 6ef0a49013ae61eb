//! Leaders that stop and wake up, and watches that end.

use stelia_kubelet::Uid;

use super::*;
use crate::reservations::BindNotStarted;
use crate::reservations::SETTLE_TIMEOUT;

#[tokio::test(start_paused = true)]
async fn without_everything_read_nothing_is_answered() {
    let cluster = Cluster::new();
    cluster.fail("list", "noderesourcetopologies", 20, Fault::Status(503));
    let instance = cluster.start(1);
    let to = cluster.make("vm", 1, 4);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(instance.placer.ready(), Err(NotReady::NotRead));
    assert_eq!(instance.refuses(&to).await, BindError::NotReady(NotReady::NotRead));
    let waiting = cluster.start(2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(waiting.placer.ready(), Err(NotReady::NotLeader));
}

/// A leader is stopped when it has sent a binding, and wakes up before the next one begins, which knows of the pod by its annotation then.
#[tokio::test(start_paused = true)]
async fn what_a_stopped_leader_sent_counts_once_the_next_one_begins() {
    let cluster = Cluster::new();
    let first = cluster.ready(1).await;
    let second = cluster.start(2);
    let [one, other, third] = [1, 2, 3].map(|number| cluster.make(&format!("vm-{number}"), number, 14));
    first.stopped.send(true).unwrap();
    let bind = first.bind(&one);
    // Longer than the Lease lasts, and not for as long as the next leader waits.
    tokio::time::sleep(Duration::from_secs(30)).await;
    for instance in [&first, &second] {
        assert_eq!(instance.placer.ready(), Err(NotReady::NotLeader));
    }
    first.stopped.send(false).unwrap();
    let _unknown = bind.await.unwrap();
    second.becomes_ready().await;
    assert!(cluster.node_of("vm-1").is_some());
    assert_eq!(second.held("steliad"), ["2-15"]);
    second.placer.bind(&other).await.unwrap();
    assert_ne!(cluster.told("vm-1"), cluster.told("vm-2"));
    assert!(second.placer.bind(&third).await.is_err());
    // Awake, it sends nothing.
    assert_eq!(first.refuses(&third).await, BindError::NotReady(NotReady::NotLeader));
}

/// It is stopped for longer: its binding comes when the next leader has promised the CPUs to another pod. The node gives no CPU twice, and refuses one of them;
/// nobody is promised CPUs of either of them afterwards.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_frozen_for_longer_costs_a_refusal() {
    let mut cluster = Cluster::new();
    let first = cluster.ready(1).await;
    let second = cluster.start(2);
    let [one, other, third] = [1, 2, 3].map(|number| cluster.make(&format!("vm-{number}"), number, 14));
    first.stopped.send(true).unwrap();
    let bind = first.bind(&one);
    second.becomes_ready().await;
    second.placer.bind(&other).await.unwrap();
    first.stopped.send(false).unwrap();
    let _unknown = bind.await.unwrap();
    a_second().await;
    let cpus = r#"{"cpuset":"2-15"}"#;
    assert_eq!(["vm-1", "vm-2"].map(|name| cluster.told(name)), [cpus, cpus]);
    // Which CPUs the first one will get is not known.
    assert!(second.placer.bind(&third).await.is_err());

    let machine = &mut cluster.machines[0];
    let told = || Some("2-15".parse().unwrap());
    machine.register(&other.uid, 14, told()).unwrap();
    machine.register(&one.uid, 14, told()).unwrap_err();
    cluster.change_pod("vm-1", |pod| {
        pod["status"] = json!({"phase": "Failed", "reason": "NotAllocated"})
    });
    a_second().await;
    let counts = second.placer.counts();
    let refused = [&counts.refused_own, &counts.refused_foreign].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(refused, [0, 1]);
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    second.placer.bind(&third).await.unwrap();
    assert_ne!(cluster.told("vm-3"), cpus);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_taken_over_after_it_ended_and_given_back_at_the_end() {
    let cluster = Cluster::new();
    // It was given back before; the first answer takes a moment, as every one does.
    cluster.fail("get", "leases", 1, Fault::Delay(Duration::from_millis(10)));
    let begun = Instant::now();
    let first = cluster.ready(1).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    let second = cluster.start(2);
    let begun = Instant::now();
    first.stopped.send(true).unwrap();
    second.becomes_ready().await;
    let waited = begun.elapsed();
    assert!((33..42).contains(&waited.as_secs()), "{waited:?}");
    first.stopped.send(false).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(first.placer.ready(), Err(NotReady::NotLeader));

    second.ends(2).await;
    let begun = Instant::now();
    first.becomes_ready().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watches_go_on_after_410_after_outages_and_after_nonsense() {
    let (mut cluster, instance) = ready().await;
    cluster.server.down(Duration::from_secs(3));
    cluster.machines[0].register(&uid(7, 0), 4, None).unwrap();
    cluster.publish(0);
    cluster.server.compact();
    let hostile = json!({"metadata": {"name": "hostile"}, "zones": 7});
    let endless = json!({"v": 1, "topology": "0x1000000000:0:0:0", "policy": "static", "free": "0-999999999"});
    let endless = json!([{"name": "isolation.stelia.io/node", "value": endless.to_string()}]);
    let absurd = json!({"metadata": {"name": "absurd"}, "attributes": endless, "zones": []});
    for object in [hostile, absurd] {
        cluster.server.put(OBJECTS, "noderesourcetopologies", object);
    }
    tokio::time::sleep(Duration::from_secs(40)).await;
    instance.becomes_ready().await;
    let shown = Uid::parse(&uid(7, 0)).unwrap();
    assert!(
        instance
            .placer
            .state()
            .reservations
            .rules()
            .cluster
            .shows_pod("steliad", shown)
    );
    let to = cluster.make_on("hostile", "vm", 1, 4);
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(
        matches!(error, BindError::NotStarted(BindNotStarted::Unavailable(_))),
        "{error}"
    );
}

/// A pod that was deleted before the list of a new leader may have CPUs still, and the node's object may not show them yet. A standby need not have seen it: its
/// watch may be late, and ends with the list.
#[tokio::test(start_paused = true)]
async fn each_new_leader_waits_for_what_was_deleted_before_its_list() {
    let cluster = Cluster::new();
    let options = PlacerOptions {
        settle: SETTLE_TIMEOUT,
        ..PlacerOptions::default()
    };
    let first = cluster.start_with(1, options);
    let begun = Instant::now();
    first.becomes_ready().await;
    assert!(begun.elapsed() >= SETTLE_TIMEOUT);
    let second = cluster.start_with(2, options);
    tokio::time::sleep(Duration::from_secs(10)).await;
    first.ends(1).await;
    let begun = Instant::now();
    second.becomes_ready().await;
    let waited = begun.elapsed();
    assert!(
        waited >= SETTLE_TIMEOUT && waited < SETTLE_TIMEOUT + Duration::from_secs(3),
        "{waited:?}"
    );
}
