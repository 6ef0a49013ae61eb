//! `release`: a VM gives up its CPUs and keeps running.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// As JSON the pod alone.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Released {
    pod: Pod,
    #[serde(skip)]
    cpus: String,
}

impl Render for Released {
    fn text(&self, style: TextStyle) -> String {
        let pod = self.pod.in_full();
        let done = match self.cpus.as_str() {
            "" => format!("{pod}: released; the VM keeps running, unisolated"),
            cpus => format!("{pod}: released CPUs {cpus}; the VM keeps running, unisolated"),
        };
        paragraph(&printable(&done), style)
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// # Errors
/// No such VM, or the daemon refuses.
pub(crate) async fn gather(client: &Client, vm: &str) -> Result<Released, Failure> {
    let (pod, cpus) = client.deregister(vm).await?;
    Ok(Released { pod, cpus })
}
