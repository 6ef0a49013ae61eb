//! An instance of the program, that is killed between any two of its steps: before one of its requests, or after one whose answer it
//! does not live to see. Or it is frozen: what it sent arrives when the next leader has long begun, and afterwards it may lead again.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use serde_json::json;
use test_apiserver::Server;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::delayed_watch::DelayedFollower;
use super::random::Random;
use crate::apiserver::Api;
use crate::apiserver::lease::LeaseClaim;
use crate::placer::{Feed, Placer, PlacerOptions, feeds};
use crate::run::start_tasks;

/// One instance, alive or dead.
pub(crate) struct Instance {
    pub(crate) placer: Arc<Placer>,
    pub(crate) dead: CancellationToken,
    frozen: watch::Receiver<bool>,
}

impl Instance {
    /// Whether it answers.
    pub(crate) fn runs(&self) -> bool {
        !self.dead.is_cancelled() && !*self.frozen.borrow()
    }
}

/// What becomes of the last write of an instance, and with it of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastWrite {
    /// It is not sent.
    Before,
    /// It is carried out, and nobody hears the answer.
    After,
    /// The instance is frozen for so long, and the binding arrives when it wakes up.
    Frozen(Duration),
}

/// Counts down with each write; at 0 the simulated instance is killed.
struct WriteBudget {
    left: AtomicI64,
    last: LastWrite,
    blown: AtomicBool,
    dead: CancellationToken,
    frozen: watch::Sender<bool>,
}

/// The Lease, given back by a former leader.
pub(crate) fn release_lease(server: &Server) {
    let metadata = json!({"namespace": "stelia-system", "name": "stelia-placement"});
    let lease = json!({"metadata": metadata, "spec": {"holderIdentity": ""}});
    server.put("coordination.k8s.io", "leases", lease);
}

/// What the instance of this number asks for.
pub(crate) fn lease_claim(number: u64) -> LeaseClaim {
    LeaseClaim {
        namespace: "stelia-system".to_owned(),
        name: "stelia-placement".to_owned(),
        identity: format!("instance-{number}"),
    }
}

/// Starts an instance. `lives`: how many writes it makes, and what becomes of the last one; `None`: it is not killed. `arrived`: is called when a binding of a
/// frozen instance has arrived.
pub(crate) fn start(
    server: &Server,
    number: u64,
    lives: Option<(i64, LastWrite)>,
    late: Option<Random>,
    arrived: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> Instance {
    let dead = CancellationToken::new();
    let (writes, last) = lives.unwrap_or((i64::MAX, LastWrite::Before));
    let (frozen, is_frozen) = watch::channel(false);
    let write_budget = Arc::new(WriteBudget {
        left: AtomicI64::new(writes),
        last,
        blown: AtomicBool::new(false),
        dead: dead.clone(),
        frozen,
    });
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (server, write_budget, arrived) = (server.clone(), write_budget.clone(), arrived.clone());
        async move {
            // The Lease is renewed every 2 s: what counts are the steps of binds.
            let step = request.method() != http::Method::GET && !request.uri().path().contains("/leases");
            let path = request.uri().path().to_owned();
            // Only bindings matter long afterwards.
            let counts = step && (path.ends_with("/binding") || !matches!(write_budget.last, LastWrite::Frozen(_)));
            let last = counts && write_budget.left.fetch_sub(1, Ordering::SeqCst) <= 1;
            if let LastWrite::Frozen(time) = write_budget.last {
                if last && !write_budget.frozen.send_replace(true) {
                    let write_budget = write_budget.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(time).await;
                        write_budget.left.store(writes, Ordering::SeqCst);
                        write_budget.frozen.send_replace(false);
                    });
                }
                let mut frozen = write_budget.frozen.subscribe();
                if *frozen.borrow() {
                    // It arrives, whether somebody still waits for the answer or not.
                    let sent = tokio::spawn(async move {
                        let _ = frozen.wait_for(|frozen| !frozen).await;
                        let answer = server.answer(request).await;
                        if path.ends_with("/binding")
                            && answer.as_ref().is_ok_and(|answer| answer.status().is_success())
                        {
                            arrived(&path);
                        }
                        answer
                    });
                    return sent.await.unwrap();
                }
                return server.answer(request).await;
            }
            if last && write_budget.last == LastWrite::Before && !write_budget.blown.swap(true, Ordering::SeqCst) {
                write_budget.dead.cancel();
            }
            if write_budget.blown.load(Ordering::SeqCst) {
                return std::future::pending().await;
            }
            let answer = server.answer(request).await;
            if last {
                write_budget.blown.store(true, Ordering::SeqCst);
                write_budget.dead.cancel();
                return std::future::pending().await;
            }
            answer
        }
    });
    let api = Api::new(Client::new(service, "default"));
    let placer = Placer::new(api, PlacerOptions::default());
    run(&placer, lease_claim(number), &dead, late);
    Instance {
        placer,
        dead,
        frozen: is_frozen,
    }
}

pub(crate) fn run(placer: &Arc<Placer>, lease_claim: LeaseClaim, dead: &CancellationToken, mut late: Option<Random>) {
    let feeds = feeds(placer)
        .into_iter()
        .enumerate()
        .map(|(place, feed)| match &mut late {
            // Pods and nodes' objects, each with a delay of its own.
            Some(random) => Feed {
                follower: Arc::new(DelayedFollower {
                    inner: feed.follower,
                    random: Mutex::new(random.fork()),
                    most: [400, 3000][place],
                    listing: Mutex::new(false),
                }),
                ..feed
            },
            None => feed,
        });
    start_tasks(placer, lease_claim, feeds, dead, dead);
}
