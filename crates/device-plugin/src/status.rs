//! What the journal and `systemctl status` say of the plugin. `steliactl doctor` reads the latter.

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::offer::Offer;
use crate::registration::KubeletRegistration;

/// Reports what holds, and each change of it once.
pub(crate) async fn report(
    mut offers: watch::Receiver<Offer>,
    mut registrations: watch::Receiver<KubeletRegistration>,
) {
    let (mut offer, mut registration) = (None, KubeletRegistration::Starting);
    loop {
        let now = offers.borrow_and_update().clone();
        let registered = registrations.borrow_and_update().clone();
        notify(&[NotifyState::Status(&line(&now, &registered))]);
        log_offer(offer.as_ref(), &now);
        if registration != registered {
            log_registration(&registered);
        }
        (offer, registration) = (Some(now), registered);
        tokio::select! {
            Ok(()) = offers.changed() => {}
            Ok(()) = registrations.changed() => {}
            else => return,
        }
    }
}

fn log_offer(before: Option<&Offer>, now: &Offer) {
    let problem_before = before.and_then(Offer::problem);
    let is_new = before.is_none_or(|before| before.problem().is_some() || before.devices() != now.devices());
    match (now.problem(), now.devices()) {
        (Some(problem), _) if problem_before != Some(problem) => {
            tracing::warn!("no VM can be admitted: {problem}");
        }
        (None, None) if is_new => tracing::info!("VMs can be admitted; for how many is not known yet"),
        (None, Some(devices)) if is_new => tracing::info!("VMs can be admitted: {} healthy", counted(devices)),
        (Some(_), Some(devices)) if before.is_none_or(|before| before.devices() != Some(devices)) => {
            tracing::info!("{} offered", counted(devices));
        }
        _ => {}
    }
}

/// With the verb that follows.
fn counted(devices: usize) -> String {
    match devices {
        1 => "1 device is".to_owned(),
        devices => format!("{devices} devices are"),
    }
}

fn log_registration(now: &KubeletRegistration) {
    match now {
        KubeletRegistration::Starting => {}
        KubeletRegistration::Registered => tracing::info!("registered with kubelet"),
        // It is so at every boot, and where an administrator stopped kubelet.
        KubeletRegistration::NoKubelet(problem) => tracing::info!("not registered with kubelet: {problem}"),
        KubeletRegistration::Failed(problem) => tracing::warn!("not registered with kubelet: {problem}"),
    }
}

/// The line of `systemctl status`.
fn line(offer: &Offer, registration: &KubeletRegistration) -> String {
    let registered = match registration {
        KubeletRegistration::Starting => "starting".to_owned(),
        KubeletRegistration::Registered => "registered".to_owned(),
        KubeletRegistration::NoKubelet(problem) | KubeletRegistration::Failed(problem) => {
            format!("not registered: {problem}")
        }
    };
    let devices = match offer.devices() {
        None => "number of devices not known yet".to_owned(),
        Some(1) => "1 device".to_owned(),
        Some(devices) => format!("{devices} devices"),
    };
    match offer.problem() {
        None => format!("{registered}; {devices}, healthy"),
        Some(problem) => format!("{registered}; {devices}, unhealthy: {problem}"),
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
        let healthy = Offer::healthy(6);
        assert_eq!(
            line(&healthy, &KubeletRegistration::Registered),
            "registered; 6 devices, healthy"
        );
        let unhealthy = Offer {
            not_admitted: Some("steliad does not run".to_owned()),
            ..Offer::healthy(1)
        };
        assert_eq!(
            line(
                &unhealthy,
                &KubeletRegistration::NoKubelet("kubelet does not run".into())
            ),
            "not registered: kubelet does not run; 1 device, unhealthy: steliad does not run"
        );
    }
}
