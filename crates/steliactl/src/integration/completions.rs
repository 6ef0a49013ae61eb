//! `completions`: the completion script of a shell, which calls this program for each completion.

use crate::shared::daemon::Failure;

const NAME: &str = "steliactl";

/// # Errors
/// clap has no script for the shell.
pub(crate) fn script(shell: &str) -> Result<String, Failure> {
    stelia_table::completion_script(NAME, shell)
        .map_err(|cause| Failure::Other(format!("completions for {shell}: {cause}")))
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
