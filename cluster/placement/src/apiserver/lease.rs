//! Which of several instances places pods: the one whose name is in the Lease.
//!
//! A Lease cannot stop a leader that is paused in mid-bind and resumes later: the version of the claim object does, which every bind writes
//! first. The Lease decides only which instance answers while the others wait.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Api, JSON, ServerFailure, escape};

/// How long a Lease is valid after its last observed change.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the leader considers itself the leader after it sent its last renewal that was answered: the rest of [`LEASE_DURATION`] is for clocks
/// that run differently, and for what it sent meanwhile.
pub const RENEWAL_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_PERIOD: Duration = Duration::from_secs(2);

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

/// A Lease's content, and when it was first read so.
#[derive(Debug)]
struct Observed {
    record: Record,
    at: Instant,
}

/// Whether this instance is the leader.
#[derive(Debug)]
pub struct Leadership {
    until: Mutex<Option<Instant>>,
    /// How often it became the leader.
    terms: watch::Sender<u64>,
}

impl Default for Leadership {
    fn default() -> Self {
        Self {
            until: Mutex::new(None),
            terms: watch::Sender::new(0),
        }
    }
}

impl Leadership {
    /// Decided by the clock, so that a process that was stopped does not act as the leader once it runs again.
    pub fn is_held(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// How often this instance became the leader. Each time, all watches list again.
    pub fn terms(&self) -> watch::Receiver<u64> {
        self.terms.subscribe()
    }

    fn held_until(&self, until: Option<Instant>) {
        let was = self.is_held();
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        match (was, self.is_held()) {
            (false, true) => {
                info!("this instance places pods from now on");
                self.terms.send_modify(|terms| *terms += 1);
            }
            (true, false) => info!("this instance does not place pods any more"),
            _ => {}
        }
    }
}

/// Whether the Lease may be taken: it is this instance's or nobody's, or did not change for [`LEASE_DURATION`].
fn may_take(observed: &Observed, identity: &str, now: Instant) -> bool {
    let holder = observed.record.holder.as_str();
    holder == identity || holder.is_empty() || now >= observed.at + LEASE_DURATION
}

fn record(lease: &Value) -> Record {
    let text = |name: &str| lease["spec"][name].as_str().unwrap_or_default().to_owned();
    Record {
        holder: text("holderIdentity"),
        renewed: text("renewTime"),
        transitions: lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0),
    }
}

/// `MicroTime`.
fn now_text() -> String {
    format!("{:.6}", Timestamp::now())
}

impl LeaseClaim {
    fn path(&self) -> String {
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            escape(&self.namespace)
        )
    }

    fn lease(&self, version: Option<&str>, before: Option<&Record>) -> Value {
        let now = now_text();
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

    /// Reads the Lease, and writes it if it may be taken. Returns whether it is this instance's.
    async fn attempt(&self, api: &Api, last: &mut Option<Observed>) -> Result<bool, ServerFailure> {
        let own = format!("{}/{}", self.path(), escape(&self.name));
        let current = match api.call(Method::GET, &own, None).await {
            Ok(current) => current,
            Err(ServerFailure::Missing(_)) => {
                let made = api
                    .call(Method::POST, &self.path(), Some((JSON, &self.lease(None, None))))
                    .await;
                return made.map(|_| true);
            }
            Err(failure) => return Err(failure),
        };
        let (now, read) = (Instant::now(), record(&current));
        let observed = match last.take() {
            Some(before) if before.record == read => before,
            _ => Observed { record: read, at: now },
        };
        let free = may_take(&observed, &self.identity, now);
        let observed = last.insert(observed);
        if !free {
            return Ok(false);
        }
        let version = current["metadata"]["resourceVersion"].as_str();
        let mut lease = self.lease(version, Some(&observed.record));
        if observed.record.holder == self.identity {
            lease["spec"]["acquireTime"] = current["spec"]["acquireTime"].clone();
        }
        api.call(Method::PUT, &own, Some((JSON, &lease))).await.map(|_| true)
    }

    /// Never ends: takes the Lease when it is free, and renews it.
    pub async fn hold(&self, api: &Api, leadership: &Leadership) {
        let mut last = None;
        loop {
            // The renewal counts from before the request was sent.
            let sent = Instant::now();
            match self.attempt(api, &mut last).await {
                Ok(true) => leadership.held_until(Some(sent + RENEWAL_DEADLINE)),
                Ok(false) => leadership.held_until(None),
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
