//! The VMs that a shell offers where a command takes one.

use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use super::client::{Client, connect};
use super::condition::Condition;
use super::pod::Pod;

/// Timeout of a completion: a person has pressed Tab and waits.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// By namespace and name, or by UID where the name is not known; empty when the daemon does not answer within [`CALL_TIMEOUT`].
pub(crate) fn vms() -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let described = runtime.block_on(async {
        tokio::time::timeout(CALL_TIMEOUT, async {
            let client = Client::new(connect(None, CALL_TIMEOUT).await?, CALL_TIMEOUT).await?;
            client.describe().await
        })
        .await
    });
    let Ok(Ok(described)) = described else {
        return Vec::new();
    };
    let candidates = described.node.instances.iter().map(|(uid, instance)| {
        let help = format!(
            "{}, {}, CPUs {}",
            instance.container,
            Condition::of(instance),
            instance.exclusive
        );
        CompletionCandidate::new(Pod::of(uid, instance).to_string()).help(Some(help.into()))
    });
    candidates.collect()
}
