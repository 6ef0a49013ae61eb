//! The ledger's signals on the system bus.

use std::collections::HashMap;

use stelia_api::{MANAGER_PATH, instance_path};
use stelia_cpus::CpuSet;
use stelia_ledger::entry::Event;
use tokio::sync::mpsc;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, Variant};

use super::instance::Instance;
use super::manager::Manager;
use crate::ledger::Signal;

/// Emit the signals that are sent, until the sender is gone.
pub(crate) async fn emit_signals(connection: Connection, mut signals: mpsc::UnboundedReceiver<Signal>) {
    while let Some(signal) = signals.recv().await {
        if let Err(error) = emit(&connection, signal).await {
            tracing::debug!("a signal of the ledger: {error}");
        }
    }
}

async fn emit(connection: &Connection, signal: Signal) -> zbus::Result<()> {
    match signal {
        Signal::Head(Event::Head {
            day,
            seq,
            hash,
            key,
            signature,
        }) => {
            let emitter = SignalEmitter::new(connection, MANAGER_PATH)?;
            Manager::ledger_head(&emitter, &day, seq, &hash, &key, &signature).await
        }
        Signal::Head(_) => Ok(()),
        Signal::Intruded(pod, events) => {
            let emitter = SignalEmitter::new(connection, instance_path(&pod))?;
            for event in events {
                if let Event::Intruded {
                    cpus,
                    class,
                    name,
                    count: (least, most),
                    ..
                } = event
                {
                    let first = cpus.parse::<CpuSet>().ok().and_then(|cpus| cpus.iter().next());
                    let details = HashMap::from([
                        ("cpus", Variant::from(cpus)),
                        ("name", Variant::from(name)),
                        ("least", Variant::from(least)),
                        ("most", Variant::from(most)),
                    ]);
                    Instance::intruded(&emitter, first.unwrap_or_default(), class.name(), details).await?;
                }
            }
            Ok(())
        }
    }
}
