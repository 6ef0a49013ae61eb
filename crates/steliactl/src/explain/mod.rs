//! `explain`: who chooses CPUs and how, why an instance has its CPUs, who owns a CPU.

mod cpu;
mod node;
mod pod;

use super::client::{Client, Failure};
use super::view::How;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject<'a> {
    Node,
    Cpu(u32),
    Pod(&'a str),
}

/// A number is a CPU, everything else a pod's UID.
fn subject(what: Option<&str>) -> Subject<'_> {
    match what.map(|what| (what, what.parse())) {
        None => Subject::Node,
        Some((_, Ok(cpu))) => Subject::Cpu(cpu),
        Some((uid, Err(_))) => Subject::Pod(uid),
    }
}

/// `None` comes from a daemon that is older than `cpu-source`.
fn source_in_words(source: Option<&str>) -> String {
    match source {
        Some("kubelet") => "kubelet, by its static policy".to_owned(),
        Some(other) => other.to_owned(),
        None => "not told: the daemon is older than this program, and CPUs are kubelet's choice".to_owned(),
    }
}

/// Asks the daemon and prints the answer.
///
/// # Errors
/// The daemon does not answer, or there is no such CPU or instance.
pub(crate) async fn run(client: &Client, what: Option<&str>, how: How) -> Result<String, Failure> {
    match subject(what) {
        Subject::Cpu(cpu) => how.print(&cpu::facts(&client.describe().await?, cpu)?),
        Subject::Pod(uid) => {
            let uid = client.find(uid).await?.0;
            how.print(&pod::gather(&client.describe().await?, &uid)?)
        }
        Subject::Node => how.print(&node::gather(&client.describe().await?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_cpu_and_anything_else_a_pod() {
        assert_eq!(subject(None), Subject::Node);
        assert_eq!(subject(Some("17")), Subject::Cpu(17));
        assert_eq!(subject(Some("17a")), Subject::Pod("17a"));
        // A static pod's UID is 32 hexadecimal digits, which may all be decimal.
        let uid = "17171717171717171717171717171717";
        assert_eq!(subject(Some(uid)), Subject::Pod(uid));
    }
}
