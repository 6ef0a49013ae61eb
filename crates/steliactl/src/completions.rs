//! Shell completion: commands and options come from clap, the instances from the daemon.

use std::time::Duration;

use clap_complete::engine::CompletionCandidate;

use super::client::{Client, Failure, connect};
use super::node::state_and_class;
use super::pod::Pod;

/// Timeout of a completion: a person has pressed Tab and waits.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
const NAME: &str = "steliactl";

/// The completion script of a shell; it calls this program for each completion.
///
/// # Errors
/// clap has no script for the shell.
pub(crate) fn script(shell: &str) -> Result<String, Failure> {
    stelia_table::completion_script(NAME, shell)
        .map_err(|cause| Failure::Other(format!("completions for {shell}: {cause}")))
}

/// The instances by namespace and name, or by UID where the name is not known; empty when the daemon does not answer
/// within [`CALL_TIMEOUT`]. It is not started for this.
pub(super) fn vms() -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let described = runtime.block_on(async {
        tokio::time::timeout(CALL_TIMEOUT, async {
            let client = Client::new(connect(None, CALL_TIMEOUT).await?, CALL_TIMEOUT).await?;
            client.describe_running().await
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
            state_and_class(instance),
            instance.exclusive
        );
        CompletionCandidate::new(Pod::of(uid, instance).to_string()).help(Some(help.into()))
    });
    candidates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_is_told_to_ask_this_program() {
        for shell in ["bash", "zsh", "fish"] {
            let text = script(shell).unwrap();
            assert!(text.contains("COMPLETE=") && text.contains(NAME), "{text}");
        }
    }
}
