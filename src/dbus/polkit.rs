//! Asking polkit about a caller on the system bus.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stelia_api::{Error, ErrorKind};
use tokio::sync::Semaphore;
use zbus::message::{Flags, Header};
use zbus::{Connection, Variant, proxy};

use crate::caller_rights::Action;

/// `AllowUserInteraction`: polkit may ask the user for a password.
const INTERACTIVE: u32 = 1;
/// A user has so long to type a password, and polkit to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Questions that polkit has not answered, those included that nobody waits for any more. The bus lets a connection wait for 128 answers.
static UNANSWERED: Semaphore = Semaphore::const_new(32);
/// Makes the questions' names.
static QUESTIONS: AtomicU64 = AtomicU64::new(0);

#[proxy(
    interface = "org.freedesktop.PolicyKit1.Authority",
    default_service = "org.freedesktop.PolicyKit1",
    default_path = "/org/freedesktop/PolicyKit1/Authority"
)]
trait Authority {
    fn check_authorization(
        &self,
        subject: &(&str, HashMap<&str, Variant<'_>>),
        action_id: &str,
        details: HashMap<&str, &str>,
        flags: u32,
        cancellation_id: &str,
    ) -> zbus::Result<(bool, bool, HashMap<String, String>)>;

    fn cancel_check_authorization(&self, cancellation_id: &str) -> zbus::Result<()>;
}

/// A question that polkit has. When it is dropped without an answer, polkit is told that nobody waits for one.
struct Question {
    authority: AuthorityProxy<'static>,
    name: String,
    is_answered: bool,
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_answered {
            let (authority, name) = (self.authority.clone(), std::mem::take(&mut self.name));
            tokio::spawn(async move { authority.cancel_check_authorization(&name).await });
        }
    }
}

/// Whether polkit lets the sender of a message do this.
///
/// # Errors
/// NotPermitted when it does not, when there is no polkit to ask, or when it does not answer; Busy when it has too many questions.
pub(super) async fn ask(connection: &Connection, header: &Header<'_>, action: Action) -> Result<(), Error> {
    let Some(sender) = header.sender() else {
        return Err(ErrorKind::NotPermitted.because("the message has no sender"));
    };
    let busy = |_| ErrorKind::Busy.because("polkit has not answered earlier questions");
    let unanswered = UNANSWERED.try_acquire().map_err(busy)?;
    let interactive = header.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let mut question = Question {
        authority: AuthorityProxy::new(connection).await?,
        name: format!("steliad-{}", QUESTIONS.fetch_add(1, Ordering::Relaxed)),
        is_answered: false,
    };
    let (authority, name, sender) = (question.authority.clone(), question.name.clone(), sender.to_string());
    // The task keeps its permit until polkit answers: the bus counts the pending reply even if the caller no longer waits.
    let answer = tokio::spawn(async move {
        let _unanswered = unanswered;
        let subject = (
            "system-bus-name",
            HashMap::from([("name", Variant::from(sender.as_str()))]),
        );
        let flags = if interactive { INTERACTIVE } else { 0 };
        authority
            .check_authorization(&subject, action.name(), HashMap::new(), flags, &name)
            .await
    });
    let refused = |why: String| ErrorKind::NotPermitted.because(format!("polkit {why}"));
    let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await else {
        let seconds = ANSWER_TIMEOUT.as_secs();
        return Err(refused(format!(
            "has not answered for {seconds} s about {}",
            action.name()
        )));
    };
    question.is_answered = true;
    match answer.map_err(ErrorKind::Failed.context("ask polkit"))? {
        Ok((true, ..)) => Ok(()),
        Ok((false, challenge, _)) => {
            let how = if challenge {
                ", interactive authentication is required"
            } else {
                ""
            };
            Err(refused(format!("does not permit {}{how}", action.name())))
        }
        Err(cause) => Err(refused(format!("cannot be asked about {}: {cause}", action.name()))),
    }
}
