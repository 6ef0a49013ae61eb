//! What the journal and `systemctl status` say of the plugin. `steliactl doctor` reads the latter.

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::offer::Offer;
use crate::registration::Registration;

/// Reports each change after `first`, once. What is known before anything was asked is no message.
pub(crate) async fn report(
    first: Offer,
    mut offers: watch::Receiver<Offer>,
    mut registrations: watch::Receiver<Registration>,
) {
    let mut before = (first, Registration::Starting);
    loop {
        let now = (
            offers.borrow_and_update().clone(),
            registrations.borrow_and_update().clone(),
        );
        notify(&[NotifyState::Status(&line(&now.0, &now.1))]);
        log_offer(&before.0, &now.0);
        if before.1 != now.1 {
            log_registration(&now.1);
        }
        before = now;
        tokio::select! {
            Ok(()) = offers.changed() => {}
            Ok(()) = registrations.changed() => {}
            else => return,
        }
    }
}

fn log_offer(before: &Offer, now: &Offer) {
    match &now.problem {
        Some(problem) if before.problem.as_ref() != Some(problem) => {
            tracing::warn!("no VM can be admitted: {problem}");
        }
        None if before != now => tracing::info!("VMs can be admitted: {} devices are healthy", now.devices),
        _ if before.devices != now.devices => tracing::info!("{} devices are offered", now.devices),
        _ => {}
    }
}

fn log_registration(now: &Registration) {
    match now {
        Registration::Starting => {}
        Registration::Registered => tracing::info!("registered with kubelet"),
        Registration::Not(problem) => tracing::warn!("not registered with kubelet: {problem}"),
    }
}

/// The line of `systemctl status`.
fn line(offer: &Offer, registration: &Registration) -> String {
    let registered = match registration {
        Registration::Starting => "starting".to_owned(),
        Registration::Registered => "registered".to_owned(),
        Registration::Not(problem) => format!("not registered: {problem}"),
    };
    match &offer.problem {
        None => format!("{registered}; {} devices, healthy", offer.devices),
        Some(problem) => format!("{registered}; {} devices, unhealthy: {problem}", offer.devices),
    }
}

pub(crate) fn notify(state: &[NotifyState<'_>]) {
    // An error of a notification cannot be handled.
    let _ = sd_notify::notify(state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_says_whether_the_plugin_is_registered_and_its_devices_are_healthy() {
        let healthy = Offer {
            devices: 6,
            problem: None,
        };
        assert_eq!(
            line(&healthy, &Registration::Registered),
            "registered; 6 devices, healthy"
        );
        let problem = Some("steliad does not run".to_owned());
        assert_eq!(
            line(
                &Offer { problem, ..healthy },
                &Registration::Not("kubelet does not run".into())
            ),
            "not registered: kubelet does not run; 6 devices, unhealthy: steliad does not run"
        );
    }
}
