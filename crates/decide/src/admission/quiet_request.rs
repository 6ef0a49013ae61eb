//! What a pod may order for its CPUs besides keeping tasks off them.

use stelia_api::{Error, ErrorKind};
use stelia_settings::{QuietRequest, QuietSettings};

/// Whether the administrator allows what a pod orders for its CPUs.
///
/// # Errors
/// `InvalidArgument`: it is refused, not left out, or the VM would run otherwise than its pod says.
pub fn allow(order: &QuietRequest, settings: &QuietSettings) -> Result<(), Error> {
    let most = settings.latency_allowed;
    if order.latency > most {
        let text = format!(
            "latency {:?} is more than this node allows (latency-allowed = {:?})",
            order.latency.name(),
            most.name()
        );
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    match &order.cache_class {
        Some(class) if !settings.cache_classes.contains_key(class) => {
            // Which classes there are is the administrator's affair.
            let text = format!("this node has no cache class {class:?}");
            Err(ErrorKind::InvalidArgument.because(text))
        }
        _ => Ok(()),
    }
}
