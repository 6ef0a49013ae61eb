//! Shell completion: commands and options come from clap, the instances' UIDs from the daemon.

use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use stelia_api::client::InstanceRow;
use stelia_api::{BUS_NAME, MANAGER_PATH};
use zbus::names::BusName;
use zbus::{Connection, connection};

use super::cli::Shell;
use super::client::Failure;

/// A person has pressed Tab and waits.
const PATIENCE: Duration = Duration::from_millis(500);
const NAME: &str = "steliactl";

/// The completion script of a shell; it calls this program for each completion.
///
/// # Errors
/// clap has no script for the shell.
pub(crate) fn script(shell: Shell) -> Result<String, Failure> {
    let name = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let failed = |cause: String| Failure::Other(format!("completions for {name}: {cause}"));
    let shells = Shells::builtins();
    let shell = shells.completer(name).ok_or_else(|| failed("not known".to_owned()))?;
    let mut text = Vec::new();
    shell
        .write_registration("COMPLETE", NAME, NAME, NAME, &mut text)
        .map_err(|cause| failed(cause.to_string()))?;
    String::from_utf8(text).map_err(|cause| failed(cause.to_string()))
}

/// The UIDs of the instances; empty when the daemon does not answer within [`PATIENCE`]. It is not started for this.
pub(super) fn uids() -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let rows = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, async {
            let bus = connection::Builder::system().build().await?;
            instances(&bus).await
        })
        .await
    });
    let Ok(Ok(rows)) = rows else { return Vec::new() };
    let candidate = |(uid, container, _, state, cpus): InstanceRow| {
        CompletionCandidate::new(uid).help(Some(format!("{container}, {state}, CPUs {cpus}").into()))
    };
    rows.into_iter().map(candidate).collect()
}

async fn instances(bus: &Connection) -> zbus::Result<Vec<InstanceRow>> {
    let manager = zbus::Proxy::new(
        bus,
        BusName::try_from(BUS_NAME)?,
        MANAGER_PATH,
        "io.stelia.Isolation1.Manager",
    )
    .await?;
    let rows = manager
        .call_with_flags("ListInstances", zbus::proxy::MethodFlags::NO_AUTO_START, &())
        .await?;
    Ok(rows.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_is_told_to_ask_this_program() {
        for (shell, variable) in [
            (Shell::Bash, "COMPLETE="),
            (Shell::Zsh, "COMPLETE="),
            (Shell::Fish, "COMPLETE="),
        ] {
            let text = script(shell).unwrap();
            assert!(text.contains(variable) && text.contains(NAME), "{text}");
        }
    }
}
