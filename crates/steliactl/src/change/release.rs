//! `release`: a VM gives up its CPUs and keeps running.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Pod, restart};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// The VM and the CPUs that it had. As JSON the pod alone.
#[derive(Serialize)]
pub(crate) struct Released {
    #[serde(flatten)]
    pod: Pod,
    #[serde(skip)]
    cpus: String,
    /// What isolates the VM again.
    #[serde(skip)]
    undo: &'static str,
}

impl Render for Released {
    fn text(&self, style: TextStyle) -> String {
        let (pod, cpus) = (self.pod.in_full(), &self.cpus);
        let cpus = if cpus.is_empty() {
            String::new()
        } else {
            format!(" CPUs {cpus}")
        };
        let done = format!(
            "{pod}: released{cpus}; the VM keeps running, unisolated. Undo: {}",
            self.undo
        );
        paragraph(&printable(&done), style)
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// # Errors
/// No such VM, or the daemon refuses.
pub(crate) async fn release(client: &Client, vm: &str) -> Result<Released, Failure> {
    let (pod, cpus) = client.deregister(vm).await?;
    // Where the daemon does not describe the node any more, nothing is known to be wrong with it.
    let undo = client
        .describe()
        .await
        .map_or("restart the container", |node| restart(&node));
    Ok(Released { pod, cpus, undo })
}
