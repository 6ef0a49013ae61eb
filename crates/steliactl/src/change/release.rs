//! `release`: releases an instance's CPUs.

use serde::Serialize;

use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, paragraph, printable};

/// As JSON the pod alone.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Deregistered {
    pod: Pod,
    /// The CPUs that it gave up.
    #[serde(skip)]
    cpus: String,
}

impl Render for Deregistered {
    fn text(&self, style: TextStyle) -> String {
        let pod = printable(&self.pod.in_full());
        let done = if self.cpus.is_empty() {
            format!("Deregistered {pod}; its tasks run on without isolation.")
        } else {
            format!(
                "Deregistered {pod}: no partition holds CPUs {} any more, and its tasks run on without isolation.",
                printable(&self.cpus)
            )
        };
        paragraph(&done, style)
    }

    fn names(&self) -> Vec<String> {
        vec![self.pod.to_string()]
    }
}

/// # Errors
/// No such instance, or the daemon refuses.
pub(crate) async fn gather(client: &Client, vm: &str) -> Result<Deregistered, Failure> {
    let (pod, cpus) = client.deregister(vm).await?;
    Ok(Deregistered { pod, cpus })
}
