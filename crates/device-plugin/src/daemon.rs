//! Whether steliad admits VMs, and for how many the node has room, as it says on the system bus.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt};
use stelia_api::{BUS_NAME, MANAGER_PATH};
use stelia_cpus::text::excerpt;
use tokio::sync::watch;
use tokio::time::Instant;
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, PropertiesProxy};
use zbus::names::{OwnedUniqueName, UniqueName};
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedVariant};

use crate::offer::{Admission, RESTART_PERIOD, Silence, UNANSWERED_PERIOD};

const MANAGER: &str = "io.stelia.Isolation1.Manager";

/// How long the daemon may take to answer, and the bus to accept a connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long any other call may take: longer, so that a daemon that does not answer is told from a connection that broke.
const BUS_TIMEOUT: Duration = Duration::from_secs(20);

/// How often the daemon is asked although it reported no change.
const CHECK_INTERVAL: Duration = Duration::from_millis(1500);

/// The pause before a daemon that did not answer is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The pause before the bus is tried again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Limit of the time until devices are unhealthy after the daemon or the bus has ended, of which the bus or the connection tells at once.
const MAX_DELAY_AFTER_END: Duration = Duration::from_secs(5);
const _: () = assert!(RESTART_PERIOD.as_millis() < MAX_DELAY_AFTER_END.as_millis());

/// Limit of the same time after the daemon has stopped to answer: the next question to it, and from then on the period in which its silence
/// changes nothing. What becomes of that question is known before the period ends.
const MAX_DELAY_UNANSWERED: Duration = Duration::from_secs(20);
const _: () = assert!(CHECK_INTERVAL.as_millis() + UNANSWERED_PERIOD.as_millis() < MAX_DELAY_UNANSWERED.as_millis());
const _: () = assert!(CALL_TIMEOUT.as_millis() < UNANSWERED_PERIOD.as_millis());

/// Follows the daemon.
pub(crate) struct Follower {
    /// The system bus, or another one in tests.
    pub(crate) bus: Option<String>,
    pub(crate) admission: watch::Sender<Admission>,
}

/// Why the daemon says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It does not run, or there is no bus.
    Ended,
    /// It runs.
    Unanswered,
}

/// What the daemon says.
#[derive(Debug)]
struct Answer {
    problem: Option<String>,
    capacity: Option<u32>,
}

impl Follower {
    /// Follows the daemon as long as it is polled.
    pub(crate) async fn follow(&self) {
        loop {
            let error = match self.connect().await {
                Ok(connection) => self.follow_on(&connection).await,
                Err(error) => error,
            };
            // Nothing that was known holds for long: what changes meanwhile is not heard.
            let reason = format!("steliad cannot be asked over the system bus: {error}");
            self.record_silence(Cause::Ended, Instant::now(), reason);
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let builder = match &self.bus {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        let connected = builder.method_timeout(BUS_TIMEOUT).build();
        match tokio::time::timeout(CALL_TIMEOUT, connected).await {
            Ok(connection) => connection.map_err(|error| excerpt::cause(&error)),
            Err(_) => Err(format!("no connection within {} ms", CALL_TIMEOUT.as_millis())),
        }
    }

    /// Follows whoever has the daemon's name. Returns why this connection is of no more use.
    async fn follow_on(&self, connection: &Connection) -> String {
        match self.follow_owners(connection).await {
            Ok(never) => match never {},
            Err(error) => excerpt::cause(&error),
        }
    }

    async fn follow_owners(&self, connection: &Connection) -> zbus::Result<Infallible> {
        let bus = DBusProxy::builder(connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        // Before the first question, so that no change falls between.
        let mut changes = bus.receive_name_owner_changed_with_args(&[(0, BUS_NAME)]).await?;
        loop {
            while let Some(Some(_)) = changes.next().now_or_never() {}
            let owner = owner(&bus).await?;
            // So it is until one answers.
            let (cause, reason) = match &owner {
                Some(_) => (Cause::Unanswered, "steliad has not answered since it started"),
                None => (Cause::Ended, "steliad does not run"),
            };
            self.record_silence(cause, Instant::now(), reason.to_owned());
            match owner {
                Some(owner) => self.follow_daemon(connection, owner.into_inner(), &mut changes).await?,
                None => drop(changes.next().await.ok_or_else(closed)?),
            }
        }
    }

    /// Follows this daemon until the owner of the name changes. It is called by its unique name: that starts no other, and no other answers.
    async fn follow_daemon(
        &self,
        connection: &Connection,
        daemon: UniqueName<'static>,
        owner_changes: &mut (impl Stream<Item = impl Sized> + Unpin),
    ) -> zbus::Result<()> {
        let builder = PropertiesProxy::builder(connection).cache_properties(CacheProperties::No);
        let properties = builder.destination(daemon).path(MANAGER_PATH).build().await?;
        let mut changes = properties.receive_properties_changed().await?;
        loop {
            // One question is enough for all changes that were reported before it.
            while let Some(Some(_)) = changes.next().now_or_never() {}
            let began = Instant::now();
            let mut asked = std::pin::pin!(answer(&properties));
            let mut is_changed = false;
            let answered = loop {
                tokio::select! {
                    answered = &mut asked => break answered,
                    change = owner_changes.next() => {
                        change.ok_or_else(closed)?;
                        return Ok(());
                    }
                    // They are read meanwhile: a full queue of them would hold up the answer.
                    change = changes.next() => {
                        change.ok_or_else(closed)?;
                        is_changed = true;
                    }
                }
            };
            let pause = match answered {
                Ok(answer) => {
                    self.record_answer(answer);
                    CHECK_INTERVAL
                }
                Err(reason) => {
                    self.record_silence(Cause::Unanswered, began, reason);
                    RETRY_PAUSE
                }
            };
            if is_changed {
                continue;
            }
            tokio::select! {
                change = owner_changes.next() => {
                    change.ok_or_else(closed)?;
                    return Ok(());
                }
                change = changes.next() => drop(change.ok_or_else(closed)?),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn record_answer(&self, answer: Answer) {
        self.admission.send_if_modified(|admission| {
            let now = Admission {
                problem: answer.problem,
                // The last number that was known holds while the daemon knows none.
                capacity: answer.capacity.or(admission.capacity),
                answered: true,
                silence: None,
            };
            let is_new = *admission != now;
            *admission = now;
            is_new
        });
    }

    /// The daemon has not answered since `asked`, or since before.
    fn record_silence(&self, cause: Cause, asked: Instant, reason: String) {
        self.admission.send_if_modified(|admission| {
            let before = admission.silence.as_ref();
            let since = before.map_or(asked, |silence| silence.since);
            let until = match (cause, before) {
                // Devices that are unhealthy stay so until there is an answer.
                (_, Some(silence)) if silence.until <= asked => silence.until,
                (Cause::Ended, Some(silence)) => silence.until.min(asked + RESTART_PERIOD),
                (Cause::Ended, None) => asked + RESTART_PERIOD,
                (Cause::Unanswered, _) => since + UNANSWERED_PERIOD,
            };
            let silence = Some(Silence { since, until, reason });
            let is_new = admission.silence != silence;
            admission.silence = silence;
            is_new
        });
    }
}

async fn owner(bus: &DBusProxy<'_>) -> zbus::Result<Option<OwnedUniqueName>> {
    let name = zbus::names::BusName::from_static_str(BUS_NAME)?;
    match bus.get_name_owner(name).await {
        Ok(owner) => Ok(Some(owner)),
        Err(zbus::fdo::Error::NameHasNoOwner(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The error is why the daemon does not answer.
async fn answer(properties: &PropertiesProxy<'_>) -> Result<Answer, String> {
    let interface = zbus::names::InterfaceName::from_static_str(MANAGER).map_err(|error| error.to_string())?;
    match tokio::time::timeout(CALL_TIMEOUT, properties.get_all(interface)).await {
        Ok(Ok(properties)) => read(properties),
        Ok(Err(error)) => Err(format!(
            "steliad does not say whether it admits VMs: {}",
            excerpt::cause(&error)
        )),
        Err(_) => Err(format!("steliad did not answer within {} ms", CALL_TIMEOUT.as_millis())),
    }
}

fn read(mut properties: HashMap<String, OwnedVariant>) -> Result<Answer, String> {
    let problem = properties.remove("AdmissionProblem");
    let problem = problem.ok_or_else(|| "steliad has no property AdmissionProblem".to_owned())?;
    let problem = String::try_from(problem).map_err(|error| format!("AdmissionProblem of steliad: {error}"))?;
    let capacity = properties
        .remove("VmCapacity")
        .and_then(|value| u32::try_from(value).ok());
    Ok(Answer {
        problem: (!problem.is_empty()).then(|| excerpt::cause(&problem)),
        capacity: capacity.filter(|capacity| *capacity > 0),
    })
}

fn closed() -> zbus::Error {
    zbus::Error::Failure("the connection was closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_begins_once_and_an_answer_ends_it() {
        let follower = Follower {
            bus: None,
            admission: watch::Sender::new(Admission::unknown()),
        };
        let said = |capacity| Answer {
            problem: None,
            capacity,
        };
        follower.record_answer(said(Some(6)));
        let (first, later) = (Instant::now(), Instant::now() + CHECK_INTERVAL);
        let silence = |cause, asked, reason: &str| {
            follower.record_silence(cause, asked, reason.to_owned());
            follower.admission.borrow().silence.clone().unwrap()
        };
        silence(Cause::Ended, first, "it does not run");
        let second = silence(Cause::Ended, later, "the bus broke");
        assert_eq!((second.since, second.reason.as_str()), (first, "the bus broke"));
        assert_eq!(second.until, first + RESTART_PERIOD);
        // A daemon that has started again has longer for its first answer, counted from the end of the other.
        let third = silence(Cause::Unanswered, later, "no answer");
        assert_eq!((third.since, third.until), (first, first + UNANSWERED_PERIOD));
        let fourth = silence(Cause::Ended, later, "it does not run");
        assert_eq!(fourth.until, later + RESTART_PERIOD);
        // Once devices are unhealthy, only an answer changes that.
        let fifth = silence(Cause::Unanswered, fourth.until, "no answer");
        assert_eq!(fifth.until, fourth.until);
        follower.record_answer(said(None));
        let admission = follower.admission.borrow().clone();
        assert_eq!((admission.silence, admission.capacity), (None, Some(6)));
    }

    #[test]
    fn what_a_daemon_says_is_read_and_one_of_a_former_release_knows_no_number() {
        let text = |text: &str| OwnedVariant::try_from(zbus::Variant::from(text.to_owned())).unwrap();
        let number = |number: u32| OwnedVariant::try_from(zbus::Variant::from(number)).unwrap();
        let answer = |properties: &[(&str, OwnedVariant)]| {
            let properties = properties
                .iter()
                .map(|(name, value)| (name.to_string(), value.try_clone().unwrap()));
            read(properties.collect())
        };
        let former = answer(&[("AdmissionProblem", text("")), ("Other", text("x"))]).unwrap();
        assert_eq!((former.problem, former.capacity), (None, None));
        let known = answer(&[("AdmissionProblem", text("a")), ("VmCapacity", number(7))]).unwrap();
        assert_eq!((known.problem.as_deref(), known.capacity), (Some("a"), Some(7)));
        let unknown = answer(&[("AdmissionProblem", text("a")), ("VmCapacity", number(0))]).unwrap();
        assert_eq!(unknown.capacity, None);
        assert!(answer(&[]).is_err());
    }
}
