//! What the journal and `systemctl status` say of the plugin. `steliactl doctor` reads the latter.

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::offer::Offer;
use crate::registration::Registration;

/// Reports each change, once.
pub(crate) async fn report(mut offers: watch::Receiver<Offer>, mut registrations: watch::Receiver<Registration>) {
    let mut before: Option<(Option<String>, Registration, u32)> = None;
    loop {
        let offer = offers.borrow_and_update().clone();
        let registration = registrations.borrow_and_update().clone();
        notify(&[NotifyState::Status(&line(&offer, &registration))]);
        if before.as_ref().is_none_or(|(problem, ..)| *problem != offer.problem) {
            match &offer.problem {
                Some(problem) => tracing::warn!("no VM can be admitted: {problem}"),
                None => tracing::info!("VMs can be admitted: {} devices are healthy", offer.devices),
            }
        } else if before.as_ref().is_some_and(|(.., devices)| *devices != offer.devices) {
            tracing::info!("{} devices are offered", offer.devices);
        }
        if before.as_ref().is_none_or(|(_, before, _)| *before != registration) {
            match &registration {
                Registration::Registered => tracing::info!("registered with kubelet"),
                Registration::Not(problem) => tracing::warn!("not registered with kubelet: {problem}"),
            }
        }
        before = Some((offer.problem, registration, offer.devices));
        tokio::select! {
            Ok(()) = offers.changed() => {}
            Ok(()) = registrations.changed() => {}
            else => return,
        }
    }
}

/// The line of `systemctl status`.
fn line(offer: &Offer, registration: &Registration) -> String {
    let registered = match registration {
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
