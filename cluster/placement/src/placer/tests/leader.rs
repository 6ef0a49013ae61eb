//! Leaders that stop and wake up, and watches that end.

use stelia_kubelet::Uid;

use super::*;

#[tokio::test(start_paused = true)]
async fn without_everything_read_nothing_is_answered() {
    let cluster = Cluster::new();
    cluster.fail("list", "noderesourcetopologies", 20, Fault::Status(503));
    let instance = cluster.start(1);
    let to = cluster.make("vm", 1, 4);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(instance.placer.ready(), Err(NotReady::NotRead));
    assert_eq!(
        instance.placer.bind(&to).await,
        Err(BindError::NotReady(NotReady::NotRead))
    );
    let waiting = cluster.start(2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(waiting.placer.ready(), Err(NotReady::NotLeader));
}

/// A leader is stopped before it writes its claim. The second one takes over and claims the same CPUs; the first one wakes up in the
/// midst of its bind.
#[tokio::test(start_paused = true)]
async fn a_leader_that_wakes_up_is_refused_by_the_claim_objects_version() {
    let cluster = Cluster::new();
    let first = cluster.ready(1).await;
    let second = cluster.start(2);
    // The claim object is there before, so that the write is one of a version.
    first.placer.bind(&cluster.make("before", 9, 2)).await.unwrap();
    let (one, other) = (cluster.make("one", 1, 12), cluster.make("other", 2, 12));
    tokio::time::sleep(Duration::from_secs(1)).await;

    first.stopped.send(true).unwrap();
    let bind = tokio::spawn(bind_detached(first.placer.clone(), one.clone()));
    second.becomes_ready().await;
    assert_eq!(first.placer.ready(), Err(NotReady::NotLeader));
    second.placer.bind(&other).await.unwrap();
    let told = annotation(&cluster.server.object("", "pods", "vms", "other").unwrap()).to_owned();

    cluster.server.asked();
    first.stopped.send(false).unwrap();
    // Its own patience is over meanwhile; what it sent arrives now.
    let error = bind.await.unwrap().unwrap_err();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.node_of("one"), None, "{error}");
    let asked = cluster.server.asked();
    let codes: Vec<u16> = asked
        .iter()
        .filter(|asked| asked.resource == "nodeclaims" && asked.verb == "update")
        .map(|asked| asked.code)
        .collect();
    // It had chosen the same CPUs, as nobody had told it otherwise.
    assert_eq!(codes, [409], "{error}");
    second.placer.bind(&one).await.unwrap();
    let mine = annotation(&cluster.server.object("", "pods", "vms", "one").unwrap()).to_owned();
    assert_ne!(told, mine);
}

/// A leader is stopped after it wrote its claim, before it sends the binding. The second one keeps those CPUs, makes the binding
/// impossible after a while, and only then gives them away.
#[tokio::test(start_paused = true)]
async fn a_leader_that_wakes_up_cannot_bind_what_was_given_up() {
    let cluster = Cluster::new();
    let first = cluster.ready(1).await;
    let second = cluster.start(2);
    let one = cluster.make("one", 1, 14);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The binding is on its way for so long.
    cluster.fail("create", "pods/binding", 1, Fault::Delay(Duration::from_secs(60)));
    let bind = tokio::spawn(bind_detached(first.placer.clone(), one.clone()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.claims("steliad"), ["vms/one"]);
    first.stopped.send(true).unwrap();
    assert_eq!(
        (second.reservation_counts(), second.held("steliad")),
        ([0, 1, 0, 0], vec!["2-15".to_owned()])
    );

    second.becomes_ready().await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(second.reservation_counts(), [0; 4]);
    second.placer.bind(&cluster.make("other", 2, 14)).await.unwrap();
    first.stopped.send(false).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bind.await.unwrap().is_err());
    assert_eq!(
        (cluster.node_of("one"), cluster.node_of("other")),
        (None, Some("steliad".to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_taken_over_after_it_ended_and_given_back_at_the_end() {
    let cluster = Cluster::new();
    let first = cluster.ready(1).await;
    let second = cluster.start(2);
    let begun = Instant::now();
    first.stopped.send(true).unwrap();
    second.becomes_ready().await;
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(13) && waited < Duration::from_secs(22),
        "{waited:?}"
    );
    first.stopped.send(false).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(first.placer.ready(), Err(NotReady::NotLeader));

    let seat = LeaseClaim {
        namespace: "stelia-system".to_owned(),
        name: "stelia-placement".to_owned(),
        identity: "instance-2".to_owned(),
    };
    seat.release(second.placer.api(), second.placer.leadership())
        .await
        .unwrap();
    second.dead.cancel();
    let begun = Instant::now();
    first.becomes_ready().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watches_go_on_after_410_after_outages_and_after_nonsense() {
    let mut cluster = Cluster::new();
    let instance = cluster.ready(1).await;
    cluster.server.down(Duration::from_secs(3));
    cluster.machines[0].register(&uid(7, 0), 4, None).unwrap();
    cluster
        .server
        .put(OBJECTS, "noderesourcetopologies", cluster.machines[0].object());
    cluster.server.compact();
    cluster.server.put(
        OBJECTS,
        "noderesourcetopologies",
        serde_json::json!({"metadata": {"name": "hostile"}, "zones": 7}),
    );
    let endless =
        serde_json::json!({"v": 1, "topology": "0x1000000000:0:0:0", "policy": "static", "free": "0-999999999"});
    let absurd = serde_json::json!({
        "metadata": {"name": "absurd"},
        "attributes": [{"name": "isolation.stelia.io/node", "value": endless.to_string()}],
        "zones": [],
    });
    cluster.server.put(OBJECTS, "noderesourcetopologies", absurd);
    tokio::time::sleep(Duration::from_secs(40)).await;
    instance.becomes_ready().await;
    assert!(
        instance
            .placer
            .state()
            .reservations
            .rules()
            .cluster
            .shows_pod("steliad", Uid::parse(&uid(7, 0)).unwrap())
    );
    let to = ToBind {
        node: "hostile".into(),
        ..cluster.make("vm", 1, 4)
    };
    let error = instance.placer.bind(&to).await.unwrap_err();
    assert!(matches!(error, BindError::Unavailable(..)), "{error}");
}

/// A pod that was deleted before the program started may have CPUs still, and the node's object may not show them yet.
#[tokio::test(start_paused = true)]
async fn what_was_deleted_before_the_start_is_waited_for_and_a_standby_has_seen_it() {
    let cluster = Cluster::new();
    let options = PlacerOptions {
        settle: crate::reservations::SETTLE_TIMEOUT,
        ..PlacerOptions::default()
    };
    let first = cluster.start_with(1, options);
    let begun = Instant::now();
    first.becomes_ready().await;
    assert!(begun.elapsed() >= crate::reservations::SETTLE_TIMEOUT);
    let second = cluster.start_with(2, options);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let seat = LeaseClaim {
        namespace: "stelia-system".to_owned(),
        name: "stelia-placement".to_owned(),
        identity: "instance-1".to_owned(),
    };
    first.dead.cancel();
    seat.release(first.placer.api(), first.placer.leadership())
        .await
        .unwrap();
    let begun = Instant::now();
    second.becomes_ready().await;
    assert!(begun.elapsed() < crate::reservations::SETTLE_TIMEOUT);
}
