//! Asking polkit about a caller on the system bus.

use std::collections::HashMap;

use stelia_api::{Error, ErrorKind};
use zbus::message::{Flags, Header};
use zbus::{Connection, Variant, proxy};

use crate::authz::Action;

/// `AllowUserInteraction`: polkit may ask the user for a password.
const INTERACTIVE: u32 = 1;

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
}

/// Whether polkit lets the sender of a message do this.
///
/// # Errors
/// NotPermitted when it does not, or when there is no polkit to ask.
pub(super) async fn ask(connection: &Connection, header: &Header<'_>, action: Action) -> Result<(), Error> {
    let Some(sender) = header.sender() else {
        return Err(ErrorKind::NotPermitted.because("the message has no sender"));
    };
    let flags = header.primary().flags();
    let interactive = flags.contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let subject = (
        "system-bus-name",
        HashMap::from([("name", Variant::from(sender.as_str()))]),
    );
    let authority = AuthorityProxy::new(connection).await?;
    let answer = authority.check_authorization(
        &subject,
        action.name(),
        HashMap::new(),
        if interactive { INTERACTIVE } else { 0 },
        "",
    );
    match answer.await {
        Ok((true, ..)) => Ok(()),
        Ok((false, challenge, _)) => {
            let how = if challenge {
                ", interactive authentication is required"
            } else {
                ""
            };
            Err(ErrorKind::NotPermitted.because(format!("polkit does not permit {}{how}", action.name())))
        }
        Err(cause) => {
            Err(ErrorKind::NotPermitted.because(format!("polkit cannot be asked about {}: {cause}", action.name())))
        }
    }
}
