//! Where the parts of a VM are, in words: for `show` and `report`, and for the ledger's record.

use stelia_cpus::located::{Located, Part};

use crate::shared::output::{Meaning, printable, time};

/// The part's name; a device's own.
pub(crate) fn part(located: &Located) -> String {
    match located.part {
        Part::Cpus => "CPUs".to_owned(),
        Part::HugePages => "huge pages".to_owned(),
        Part::Device => printable(&located.name),
        Part::Memory | Part::Interrupts => located.part.name().to_owned(),
    }
}

/// `0`, or `0 97%, 1 3%`; empty where no node is known.
pub(crate) fn nodes(located: &Located) -> String {
    match located.nodes.as_slice() {
        [(node, _)] => node.to_string(),
        several => {
            let nodes = several.iter().map(|(node, percent)| format!("{node} {percent}%"));
            nodes.collect::<Vec<_>>().join(", ")
        }
    }
}

/// `near`, `remote`, or the share of each; empty where no node is known.
pub(crate) fn place(located: &Located) -> String {
    let Some(remote) = located.remote() else {
        return String::new();
    };
    let shares = [
        (located.near_percent, "near"),
        (located.attached_percent, "attached"),
        (remote, "remote"),
    ];
    let some: Vec<&(u8, &str)> = shares.iter().filter(|(percent, _)| *percent > 0).collect();
    match some.as_slice() {
        [(_, word)] => (*word).to_owned(),
        several => {
            let words = several.iter().map(|(percent, word)| format!("{percent}% {word}"));
            words.collect::<Vec<_>>().join(", ")
        }
    }
}

pub(crate) fn meaning(located: &Located) -> Meaning {
    match located.remote() {
        Some(_) if located.is_much_remote() => Meaning::Attention,
        Some(0) if located.attached_percent == 0 => Meaning::Good,
        _ => Meaning::Plain,
    }
}

/// `2026-10-31 12:34:56`, UTC; empty for 0, which is not known.
pub(crate) fn clock(us: u64) -> String {
    time(us).split('.').next().unwrap_or_default().replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(nodes: &[(u32, u8)], near: u8, attached: u8) -> Located {
        Located {
            part: Part::Memory,
            nodes: nodes.to_vec(),
            near_percent: near,
            attached_percent: attached,
            ..Located::default()
        }
    }

    #[test]
    fn one_node_needs_no_share_and_several_have_each_theirs() {
        let shown = |one: Located| (nodes(&one), place(&one));
        let pair = |nodes: &str, place: &str| (nodes.to_owned(), place.to_owned());
        assert_eq!(shown(located(&[(0, 100)], 100, 0)), pair("0", "near"));
        assert_eq!(shown(located(&[(1, 100)], 0, 0)), pair("1", "remote"));
        assert_eq!(
            shown(located(&[(0, 60), (1, 10), (2, 30)], 60, 30)),
            pair("0 60%, 1 10%, 2 30%", "60% near, 30% attached, 10% remote")
        );
        assert_eq!(shown(located(&[], 0, 0)), pair("", ""));
    }

    #[test]
    fn a_devices_name_is_text_of_others() {
        let device = Located {
            part: Part::Device,
            name: "evil\u{1b}[2J".to_owned(),
            ..Located::default()
        };
        assert_eq!(part(&device), "evil?[2J");
    }
}
