//! Which of several instances places pods: the one whose name is in the Lease.
//!
//! A Lease cannot stop what a leader has sent. So an instance that takes the Lease over, and was not given it, waits for [`TAKEOVER_PAUSE`] before it places
//! pods: what the former leader sent has usually arrived by then, and the API server ends each request after [`REQUEST_TIMEOUT`]. A binding of a leader that
//! was frozen or cut off may come later still, and take CPUs that are promised to another pod; the node gives no CPU twice, and refuses one of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Api, JSON, REQUEST_TIMEOUT, ServerFailure, escape};

/// How long a Lease is valid after its last observed change.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the leader considers itself the leader after it sent its last renewal that was answered: the rest of [`LEASE_DURATION`] is for clocks
/// that run differently, and for what it sent meanwhile.
pub const RENEWAL_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_PERIOD: Duration = Duration::from_secs(2);
/// How long the next leader places no pods, unless the former one gave the Lease back.
pub const TAKEOVER_PAUSE: Duration = LEASE_DURATION.saturating_add(REQUEST_TIMEOUT);

/// The Lease and the identity of the instance that claims it.
#[derive(Debug, Clone)]
pub struct LeaseClaim {
    pub namespace: String,
    pub name: String,
    /// Unique: no other instance has it, now or before.
    pub identity: String,
}

/// The content of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    holder: String,
    renewed: String,
    transitions: i64,
}

/// What an instance that wants the Lease knows of it.
#[derive(Debug, Default)]
struct Candidate {
    /// The Lease's content, and when it was first read so.
    observed: Option<(Record, Instant)>,
    /// When it may place pods, if the Lease is its own.
    acts_from: Option<Instant>,
}

/// Whether this instance is the leader.
#[derive(Debug, Default)]
pub struct Leadership {
    until: Mutex<Option<Instant>>,
    /// How often it became the leader.
    terms: watch::Sender<u64>,
}

impl Leadership {
    /// Decided by the clock, so that a process that was stopped does not act as the leader once it runs again. The clock stops with the machine: after a pause
    /// of all of it, this instance leads for the rest of [`RENEWAL_DEADLINE`], or until its next renewal.
    pub fn is_held(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// How often this instance became the leader. Each time, all watches list again.
    pub fn terms(&self) -> watch::Receiver<u64> {
        self.terms.subscribe()
    }

    fn held_until(&self, until: Option<Instant>) {
        let (was, is) = (self.is_held(), until.is_some_and(|until| Instant::now() < until));
        if is && !was {
            // Before it is held: lists of a former term do not count.
            self.terms.send_modify(|terms| *terms += 1);
        }
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        match (was, is) {
            (false, true) => info!("this instance places pods from now on"),
            (true, false) => info!("this instance does not place pods any more"),
            _ => {}
        }
    }
}

fn record(lease: &Value) -> Record {
    let text = |name: &str| lease["spec"][name].as_str().unwrap_or_default().to_owned();
    Record {
        holder: text("holderIdentity"),
        renewed: text("renewTime"),
        transitions: lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0),
    }
}

impl LeaseClaim {
    fn path(&self) -> String {
        let namespace = escape(&self.namespace);
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    fn lease(&self, version: Option<&str>, before: Option<&Record>) -> Value {
        // `MicroTime`.
        let now = format!("{:.6}", Timestamp::now());
        let kept = before.filter(|before| before.holder == self.identity);
        let transitions = before.map_or(0, |before| before.transitions + i64::from(kept.is_none()));
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        });
        if let Some(version) = version {
            lease["metadata"]["resourceVersion"] = version.into();
        }
        lease
    }

    /// Reads the Lease, and writes it if it may be taken. Returns when this instance may place pods; `None` if the Lease is another's.
    async fn attempt(&self, api: &Api, candidate: &mut Candidate) -> Result<Option<Instant>, ServerFailure> {
        let own = format!("{}/{}", self.path(), escape(&self.name));
        let current = match api.call(Method::GET, &own, None).await {
            Ok(current) => current,
            Err(ServerFailure::Missing(_)) => {
                // Whoever deleted it may have left a leader without it.
                candidate.acts_from = Some(Instant::now() + TAKEOVER_PAUSE);
                let lease = self.lease(None, None);
                let made = api.call(Method::POST, &self.path(), Some((JSON, &lease))).await;
                return made.map(|_| candidate.acts_from);
            }
            Err(failure) => return Err(failure),
        };
        let (now, read) = (Instant::now(), record(&current));
        let before = candidate.observed.take().filter(|(before, _)| *before == read);
        let (before, since) = &*candidate.observed.insert(before.unwrap_or((read, now)));
        let holder = before.holder.as_str();
        // It is this instance's or nobody's, or did not change for so long.
        let free = holder == self.identity || holder.is_empty() || now >= *since + LEASE_DURATION;
        candidate.acts_from = match candidate.acts_from {
            _ if !free => None,
            _ if holder.is_empty() => Some(now),
            Some(at) if holder == self.identity => Some(at),
            _ => Some(now + TAKEOVER_PAUSE),
        };
        if !free {
            return Ok(None);
        }
        let version = current["metadata"]["resourceVersion"].as_str();
        let mut lease = self.lease(version, Some(before));
        if before.holder == self.identity {
            lease["spec"]["acquireTime"] = current["spec"]["acquireTime"].clone();
        }
        let written = api.call(Method::PUT, &own, Some((JSON, &lease))).await;
        written.map(|_| candidate.acts_from)
    }

    /// Never ends: takes the Lease when it is free, and renews it.
    pub async fn hold(&self, api: &Api, leadership: &Leadership) {
        let mut candidate = Candidate::default();
        loop {
            // The renewal counts from before the request was sent.
            let sent = Instant::now();
            match self.attempt(api, &mut candidate).await {
                Ok(from) => {
                    let acts = from.is_some_and(|from| Instant::now() >= from);
                    leadership.held_until(acts.then_some(sent + RENEWAL_DEADLINE));
                }
                // Another instance wrote it: the next attempt reads by whom.
                Err(ServerFailure::Conflict(_)) => {}
                Err(failure) => warn!("the Lease {}/{}: {failure}", self.namespace, self.name),
            }
            tokio::time::sleep(RENEW_PERIOD).await;
        }
    }

    /// Gives the Lease back, so that another instance need not wait. No bind may be under way any more.
    ///
    /// # Errors
    /// The Lease is not given back, and expires.
    pub async fn release(&self, api: &Api, leadership: &Leadership) -> Result<(), ServerFailure> {
        if !leadership.is_held() {
            return Ok(());
        }
        leadership.held_until(None);
        let own = format!("{}/{}", self.path(), escape(&self.name));
        let mut lease = api.call(Method::GET, &own, None).await?;
        if record(&lease).holder != self.identity {
            return Ok(());
        }
        lease["spec"]["holderIdentity"] = "".into();
        api.call(Method::PUT, &own, Some((JSON, &lease))).await.map(drop)
    }
}
