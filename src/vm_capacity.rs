//! How many VMs the node has room for: what kubelet's device plugin offers (the property VmCapacity).
//!
//! A task in the entry points' runtime reads kubelet's configuration at start and at each audit. When the daemon starts,
//! kubelet may not run yet, so for the first 300 s it is read every 5 s until the number is known. A kubelet that answers on no socket
//! is searched for every 20 s at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::engine::Handle;
use crate::kubelet_config::{KubeletConfigReader, Read};
use crate::wait_until::wait_until;

/// The pause between two readings while the number is not known.
const UNKNOWN_INTERVAL: Duration = Duration::from_secs(5);
/// For how long after the daemon's start it is read that often.
const UNKNOWN_PERIOD: Duration = Duration::from_secs(300);

/// Show the number until cancelled.
pub(crate) async fn run(engine: Handle, kubelet: Arc<KubeletConfigReader>, cancel: CancellationToken) {
    let (mut views, mut audits) = (engine.watch(), engine.audits());
    let often_until = Instant::now() + UNKNOWN_PERIOD;
    let mut config: Read = Ok(None);
    let mut read_at = Some(Instant::now());
    loop {
        if read_at.is_some_and(|at| at <= Instant::now()) {
            config = kubelet.read().await;
            read_at = None;
        }
        let view = views.borrow_and_update().clone();
        let known = config.as_ref().ok().and_then(Option::as_ref);
        let capacity = view.room_for_vms(known).unwrap_or(0);
        if view.vm_capacity != capacity {
            engine.show_vm_capacity(capacity);
        }
        if read_at.is_none() && capacity == 0 && Instant::now() < often_until {
            read_at = Some(Instant::now() + UNKNOWN_INTERVAL);
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            changed = audits.changed() => match changed {
                Ok(()) => read_at = Some(Instant::now()),
                Err(_) => return,
            },
            () = wait_until(read_at) => {}
        }
    }
}
