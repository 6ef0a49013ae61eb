//! An instance of the program, that is killed between any two of its steps: before one of its requests, or after one whose answer it
//! does not live to see.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use kube::Client;
use test_apiserver::Server;
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
}

/// Counts down with each write; at 0 the simulated instance is killed.
struct WriteBudget {
    left: AtomicI64,
    /// After the request is carried out.
    after: bool,
    blown: AtomicBool,
    dead: CancellationToken,
}

/// Starts an instance. `lives`: it is killed after this many writes, `None`: never.
pub(crate) fn start(server: &Server, number: u64, lives: Option<(i64, bool)>, late: Option<Random>) -> Instance {
    let dead = CancellationToken::new();
    let (left, after) = lives.unwrap_or((i64::MAX, false));
    let write_budget = Arc::new(WriteBudget {
        left: AtomicI64::new(left),
        after,
        blown: AtomicBool::new(false),
        dead: dead.clone(),
    });
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (server, write_budget) = (server.clone(), write_budget.clone());
        async move {
            // The Lease is renewed every 2 s: what counts are the steps of binds.
            let step = request.method() != http::Method::GET && !request.uri().path().contains("/leases");
            let last = step && write_budget.left.fetch_sub(1, Ordering::SeqCst) <= 1;
            if last && !write_budget.after {
                write_budget.blown.store(true, Ordering::SeqCst);
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
    let identity = format!("instance-{number}");
    let placer = Placer::new(api, identity.clone(), number, PlacerOptions::default());
    let lease_claim = LeaseClaim {
        namespace: "stelia-system".to_owned(),
        name: "stelia-placement".to_owned(),
        identity,
    };
    run(&placer, lease_claim, &dead, late);
    Instance { placer, dead }
}

pub(crate) fn run(placer: &Arc<Placer>, lease_claim: LeaseClaim, dead: &CancellationToken, mut late: Option<Random>) {
    let feeds = feeds(placer)
        .into_iter()
        .enumerate()
        .map(|(place, feed)| match &mut late {
            // Pods and nodes' objects, each with a delay of its own.
            Some(random) if place < 2 => Feed {
                follower: Arc::new(DelayedFollower {
                    inner: feed.follower,
                    random: Mutex::new(random.fork()),
                    most: [400, 3000][place],
                    listing: Mutex::new(false),
                }),
                ..feed
            },
            _ => feed,
        });
    start_tasks(placer, lease_claim, feeds, dead, dead);
}
