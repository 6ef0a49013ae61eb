//! Binds against an API server in memory: what fails, whose answers are lost, and a leader that stops and wakes up.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use test_apiserver::{Answer as Fault, Server};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::apiserver::lease::LeaseClaim;
use crate::simulation::crash;
use crate::simulation::load::{pod, uid};
use crate::simulation::machine::Kind;
use crate::simulation::node::Machine;

const OBJECTS: &str = "topology.node.k8s.io";

/// An API server with a node of each kind.
struct Cluster {
    server: Server,
    machines: Vec<Machine>,
}

/// An instance whose requests wait for as long as it is stopped.
struct Instance {
    placer: Arc<Placer>,
    stopped: watch::Sender<bool>,
    dead: CancellationToken,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.dead.cancel();
    }
}

impl Cluster {
    fn new() -> Self {
        let server = Server::with_topologies().unwrap();
        let claims = include_str!("../../../../packaging/kubernetes/cluster/placement/base/crd.yaml");
        server.define_yaml(claims).unwrap();
        let machines = [("steliad", Kind::Steliad), ("kubelet", Kind::Single)];
        let cluster = Self {
            server,
            machines: machines.map(|(name, kind)| Machine::new(name.to_owned(), kind)).into(),
        };
        for machine in &cluster.machines {
            cluster.server.put(OBJECTS, "noderesourcetopologies", machine.object());
        }
        cluster
    }

    /// A pod that is pending.
    fn make(&self, name: &str, number: u64, cpus: u32) -> ToBind {
        self.server.put("", "pods", pod(name, &uid(number, 0), cpus, true));
        ToBind {
            namespace: "vms".to_owned(),
            name: name.to_owned(),
            uid: uid(number, 0),
            node: "steliad".into(),
        }
    }

    fn start(&self, number: u64) -> Instance {
        let (stopped, stop) = watch::channel(false);
        let (server, dead) = (self.server.clone(), CancellationToken::new());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (server, mut stop) = (server.clone(), stop.clone());
            // What was sent arrives, whether somebody still waits for the answer or not.
            let sent = tokio::spawn(async move {
                let _ = stop.wait_for(|stopped| !stopped).await;
                server.answer(request).await
            });
            async move { sent.await.unwrap() }
        });
        let identity = format!("instance-{number}");
        let placer = Placer::new(
            Api::new(Client::new(service, "default")),
            identity.clone(),
            number,
            Options::default(),
        );
        let seat = LeaseClaim {
            namespace: "stelia-system".to_owned(),
            name: "stelia-placement".to_owned(),
            identity,
        };
        crash::run(&placer, seat, &dead, None);
        Instance { placer, stopped, dead }
    }

    async fn ready(&self, number: u64) -> Instance {
        let instance = self.start(number);
        instance.becomes_ready().await;
        instance
    }

    fn node_of(&self, name: &str) -> Option<String> {
        let pod = self.server.object("", "pods", "vms", name).unwrap();
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    fn claims(&self, node: &str) -> Vec<String> {
        let object = self
            .server
            .object("stelia.io", "nodeclaims", "", node)
            .unwrap_or_default();
        let claims = object["spec"]["claims"].as_array().cloned().unwrap_or_default();
        claims
            .iter()
            .map(|claim| claim["pod"].as_str().unwrap().to_owned())
            .collect()
    }

    fn fail(&self, verb: &str, resource: &str, times: u32, answer: Fault) {
        self.server
            .fail(test_apiserver::Fault::of(verb, resource, times, answer));
    }
}

impl Instance {
    async fn becomes_ready(&self) {
        let mut waited = 0;
        while let Err(cause) = self.placer.ready() {
            assert!(waited < 600, "{cause}");
            waited += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn reservation_counts(&self) -> [usize; 4] {
        let counts = self.placer.reservation_counts();
        [counts.binding, counts.undecided, counts.unseen, counts.leaving]
    }

    fn held(&self, node: &str) -> Vec<String> {
        let state = self.placer.state();
        let held = state.reservations.held(node);
        held.iter()
            .map(|held| held.cpus.map_or("-".to_owned(), ToString::to_string))
            .collect()
    }
}

fn annotation(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"]
        .as_str()
        .unwrap_or_default()
}

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
    cluster.fail("create", "pods/binding", 1000, Fault::status(500));
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
        cluster.fail("create", "nodeclaims", 1, Fault::status(code));
        let error = instance.placer.bind(&to).await.unwrap_err();
        assert!(matches!(error, BindError::Claim(..)), "{error}");
        assert_eq!((instance.reservation_counts(), cluster.node_of("vm")), ([0; 4], None));
    }
    cluster.fail("create", "pods/binding", 1, Fault::status(403));
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
    cluster.fail("create", "pods/binding", 1, Fault::delay(Duration::from_secs(2)));
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

#[tokio::test(start_paused = true)]
async fn without_everything_read_nothing_is_answered() {
    let cluster = Cluster::new();
    cluster.fail("list", "noderesourcetopologies", 20, Fault::status(503));
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
    cluster.fail("create", "pods/binding", 1, Fault::delay(Duration::from_secs(60)));
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

impl Cluster {
    fn publish(&self, machine: usize) {
        self.server
            .put(OBJECTS, "noderesourcetopologies", self.machines[machine].object());
    }

    /// When a pod was told last to be tried again.
    fn retried(&self, name: &str) -> Option<String> {
        let pod = self.server.object("", "pods", "vms", name).unwrap();
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let told = conditions
            .iter()
            .find(|one| one["type"] == "isolation.stelia.io/Retry")?;
        assert_eq!(
            (&told["status"], &told["reason"]),
            (&"True".into(), &"RoomOnNode".into())
        );
        Some(told["message"].as_str().unwrap().to_owned())
    }
}

impl Instance {
    /// As a filter call does. How many nodes would take it.
    fn filter(&self, cluster: &Cluster, name: &str) -> usize {
        let asked = self.placer.now();
        let pod = cluster.server.object("", "pods", "vms", name).unwrap();
        let (uid, request) = self.placer.record_filtered_pod(&pod.to_string()).unwrap();
        let mut fit = 0;
        self.placer
            .evaluate_nodes(&request.unwrap(), &["steliad", "kubelet"], |_, answer| {
                fit += usize::from(matches!(answer, Answer::Fits(_)));
            });
        if fit == 0 {
            self.placer.add_waiting(uid.unwrap(), asked);
        }
        fit
    }

    fn retries(&self) -> u64 {
        self.placer.counts().retried.load(Ordering::Relaxed)
    }
}

/// A cluster whose nodes are full: 12 of 14 CPUs of each NUMA node are a VM's.
fn full() -> Cluster {
    let mut cluster = Cluster::new();
    for number in [901, 902] {
        cluster.machines[0].register(&uid(number, 0), 12, None).unwrap();
        let low = pod("low", &uid(number, 0), 12, true);
        cluster.machines[1].admit(&uid(number, 0), &low).unwrap();
    }
    cluster.publish(0);
    cluster.publish(1);
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_is_told_once_as_soon_as_a_node_has_room_for_it() {
    let mut cluster = full();
    let instance = cluster.ready(1).await;
    let pods = [("fits", 1, 12), ("larger", 2, 20), ("bound", 3, 12)];
    for (name, number, cpus) in pods {
        cluster.make(name, number, cpus);
        assert_eq!(instance.filter(&cluster, name), 0);
    }
    // Another scheduler places one of them.
    let mut bound = cluster.server.object("", "pods", "vms", "bound").unwrap();
    bound["spec"]["nodeName"] = "worker".into();
    cluster.server.put("", "pods", bound);
    assert_eq!(instance.placer.waiting(), 3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((instance.retries(), instance.placer.waiting()), (0, 2));

    // A VM ends, and nothing happens that a scheduler watches.
    cluster.machines[0].end(&uid(901, 0));
    cluster.publish(0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = cluster.retried("fits").expect("told");
    assert!(cluster.retried("larger").is_none() && cluster.retried("bound").is_none());
    // Once a change, also if the scheduler is long in coming back.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((instance.retries(), cluster.retried("fits")), (1, Some(told)));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_has_the_pods_tried_again_that_a_former_one_refused() {
    let mut cluster = full();
    cluster.make("vm", 1, 12);
    let mut waits = cluster.server.object("", "pods", "vms", "vm").unwrap();
    waits["status"]["conditions"] =
        serde_json::json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    cluster.server.put("", "pods", waits);
    cluster.make("new", 2, 12);
    // The room is there before anybody leads.
    cluster.machines[1].end(&uid(902, 0));
    cluster.publish(1);
    let instance = cluster.ready(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((instance.retries(), cluster.retried("vm").is_some()), (1, true));
    assert!(
        cluster.retried("new").is_none(),
        "the scheduler was not asked about it yet"
    );
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_told_is_told_again_and_a_pod_that_is_gone_is_forgotten() {
    let mut cluster = full();
    let instance = cluster.ready(1).await;
    cluster.make("vm", 1, 12);
    assert_eq!(instance.filter(&cluster, "vm"), 0);
    cluster.fail("patch", "pods/status", 3, Fault::status(503));
    cluster.machines[0].end(&uid(901, 0));
    cluster.publish(0);
    // Pauses of 1, 2 and 4 s.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(cluster.retried("vm").is_none(), "it is not told again at once");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(cluster.retried("vm").is_some());
    cluster.server.remove("", "pods", "vms", "vm");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(instance.placer.waiting(), 0);
}
