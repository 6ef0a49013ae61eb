//! Other programs of the host.

use std::path::Path;
use std::process::{Command, Stdio};

/// What a command prints on this host; of a node in a folder nothing can. `root` is `/` on a host.
pub(crate) fn printed(root: &Path, command: &[&str]) -> Result<String, String> {
    let (Some((program, arguments)), true) = (command.split_first(), root == Path::new("/")) else {
        return Err("not of this host".to_owned());
    };
    let answer = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let answer = answer.map_err(|cause| format!("run {program}: {cause}"))?;
    match answer.status.success() {
        true => Ok(String::from_utf8_lossy(&answer.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&answer.stderr).trim())),
    }
}
