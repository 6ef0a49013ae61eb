//! `explain`: who chooses CPUs and how, why an instance has those it has, why a CPU belongs to whom.

pub mod cpu;
pub mod node;
pub mod pod;

use super::cli::Json;
use super::client::{Client, Failure};
use super::node::Node;
use super::view;

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject<'a> {
    Node,
    Cpu(u32),
    Pod(&'a str),
}

/// A number is a CPU's, everything else a pod's UID.
fn subject(what: Option<&str>) -> Subject<'_> {
    match what.map(|what| (what, what.parse())) {
        None => Subject::Node,
        Some((_, Ok(cpu))) => Subject::Cpu(cpu),
        Some((uid, Err(_))) => Subject::Pod(uid),
    }
}

/// Why instances have the CPUs they have, as far as the daemon tells.
fn source_in_words(node: &Node) -> String {
    match node.cpu_source.as_deref() {
        Some("steliad") => "steliad".to_owned(),
        Some("kubelet") => "kubelet, by its static policy".to_owned(),
        Some(other) => other.to_owned(),
        None => "not told: the daemon is older than this program, and CPUs are kubelet's choice".to_owned(),
    }
}

/// Asks the daemon and answers what is to be printed.
///
/// # Errors
/// The daemon does not answer, or there is no such CPU or instance.
pub async fn run(client: &Client<'_>, what: Option<&str>, json: Json, legend: bool) -> Result<String, Failure> {
    let subject = subject(what);
    let uid = match subject {
        Subject::Pod(uid) => Some(client.find(uid).await?.0),
        Subject::Node | Subject::Cpu(_) => None,
    };
    let described = Node::parse(&client.describe().await?)?;
    Ok(match (subject, uid) {
        (Subject::Cpu(cpu), _) => {
            let facts = cpu::facts(&described, cpu)?;
            match json.is_on() {
                true => view::to_json(json, &facts),
                false => cpu::text(&facts, legend),
            }
        }
        (_, Some(uid)) => {
            let told = pod::Told::of(&described, &uid)?;
            match json.is_on() {
                true => view::to_json(json, &told),
                false => pod::text(&told, legend),
            }
        }
        (_, None) => {
            let told = node::Told::of(&described);
            match json.is_on() {
                true => view::to_json(json, &told),
                false => node::text(&told, legend),
            }
        }
    })
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
