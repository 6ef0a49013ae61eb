//! The completion script of a shell; it calls the program for each completion.

use clap_complete::env::Shells;

/// The script by which a shell asks this program, which answers by `clap_complete::CompleteEnv`.
///
/// # Errors
/// clap has no script for the shell.
pub fn completion_script(program: &str, shell: &str) -> Result<String, String> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or("not known")?;
    let mut text = Vec::new();
    completer
        .write_registration("COMPLETE", program, program, program, &mut text)
        .map_err(|cause| cause.to_string())?;
    String::from_utf8(text).map_err(|cause| cause.to_string())
}
