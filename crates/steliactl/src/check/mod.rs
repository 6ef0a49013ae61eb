//! Commands that say why, and whether what is promised holds: the group "Check" of the help.

pub mod doctor;
pub mod ledger;
pub(crate) mod noise;
pub(crate) mod report;
pub(crate) mod verify;
pub(crate) mod why;

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::shared::daemon::Failure;

/// How long a program may take.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);

/// What a program of this host prints, by its command line.
async fn printed(command: &str) -> Result<String, Failure> {
    let failed = |what: &str| Failure::Other(format!("run {command}: {what}"));
    let mut words = command.split_whitespace();
    let mut program = Command::new(words.next().unwrap_or_default());
    let program = program.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let answer = timeout(PROGRAM_TIMEOUT, program.output()).await;
    let answer = answer.map_err(|_| failed("it takes too long"))?;
    let answer = answer.map_err(|cause| failed(&cause.to_string()))?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    if !answer.status.success() {
        return Err(failed(String::from_utf8_lossy(&answer.stderr).trim()));
    }
    if text.trim().is_empty() {
        return Err(failed("it prints nothing"));
    }
    Ok(text)
}

/// The first of these, and how many more there are.
fn first_few<T: ToString>(all: &[T]) -> String {
    const MAX_NAMED: usize = 3;
    let mut named: Vec<String> = all.iter().take(MAX_NAMED).map(T::to_string).collect();
    if all.len() > MAX_NAMED {
        named.push(format!("and {} more", all.len() - MAX_NAMED));
    }
    named.join("; ")
}

/// Values with the same key, in the order in which they come.
pub(crate) fn group_by_key<K: PartialEq, V>(all: impl Iterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in all {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}
