//! Which of several instances places pods: the one whose name is in the Lease.
//!
//! A Lease does not stop a leader that was paused and wakes up. What does is the version of the claim object, which every bind
//! writes first. The Lease is for the order of the day: one instance answers, the others wait.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Api, Failure, JSON, escaped};

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

/// When it was seen to say so first.
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
    /// By the clock, so a process that was stopped knows as soon as it runs again.
    pub fn is_held(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// How often it was gained. Each time everything is read anew.
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

/// Whether the Lease may be taken: it is one's own or nobody's, or did not change for as long as it holds.
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
            escaped(&self.namespace)
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

    /// One look, and a write if the Lease may be taken. Whether it is this instance's.
    async fn attempt(&self, api: &Api, seen: &mut Option<Observed>) -> Result<bool, Failure> {
        let own = format!("{}/{}", self.path(), escaped(&self.name));
        let current = match api.call(Method::GET, &own, None).await {
            Ok(current) => current,
            Err(Failure::Missing(_)) => {
                let made = api
                    .call(Method::POST, &self.path(), Some((JSON, &self.lease(None, None))))
                    .await;
                return made.map(|_| true);
            }
            Err(failure) => return Err(failure),
        };
        let (now, found) = (Instant::now(), record(&current));
        let observed = match seen.take() {
            Some(before) if before.record == found => before,
            _ => Observed { record: found, at: now },
        };
        let free = may_take(&observed, &self.identity, now);
        let observed = seen.insert(observed);
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

    /// Asks for the Lease and renews it, for ever.
    pub async fn hold(&self, api: &Api, leadership: &Leadership) {
        let mut seen = None;
        loop {
            // What is sent later than this is renewed later than this.
            let sent = Instant::now();
            match self.attempt(api, &mut seen).await {
                Ok(true) => leadership.held_until(Some(sent + RENEWAL_DEADLINE)),
                Ok(false) => leadership.held_until(None),
                // Somebody else wrote it: the next look tells who.
                Err(Failure::Conflict(_)) => {}
                Err(failure) => warn!("the Lease {}/{}: {failure}", self.namespace, self.name),
            }
            tokio::time::sleep(RENEW_PERIOD).await;
        }
    }

    /// Gives the Lease back, so that another instance need not wait. Nothing may be under way any more.
    ///
    /// # Errors
    /// It ends by itself then.
    pub async fn release(&self, api: &Api, leadership: &Leadership) -> Result<(), Failure> {
        if !leadership.is_held() {
            return Ok(());
        }
        leadership.held_until(None);
        let own = format!("{}/{}", self.path(), escaped(&self.name));
        let mut lease = api.call(Method::GET, &own, None).await?;
        if record(&lease).holder != self.identity {
            return Ok(());
        }
        lease["spec"]["holderIdentity"] = "".into();
        api.call(Method::PUT, &own, Some((JSON, &lease))).await.map(drop)
    }
}
