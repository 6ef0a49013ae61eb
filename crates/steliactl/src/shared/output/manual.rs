//! steliactl-fields(5), for tests that hold it to the code: the names of columns, events and signs. What they mean is written by hand there.

use std::fs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/steliactl-fields.5");

/// The names that a part of a section explains, or a section without parts; in its order.
pub(crate) fn explained(section: &str, part: Option<&str>) -> Vec<String> {
    let page = fs::read_to_string(PAGE)
        .unwrap()
        .replace("\\-", "-")
        .replace("\\(ti", "~");
    let begins = format!(".SH {section}\n");
    let (_, text) = page.split_once(&begins).unwrap_or_else(|| panic!("no {begins}"));
    let text = text.split("\n.SH ").next().unwrap();
    let text = match part {
        Some(part) => {
            let begins = format!(".SS {part}\n");
            let (_, text) = text.split_once(&begins).unwrap_or_else(|| panic!("no {begins}"));
            text.split("\n.SS ").next().unwrap()
        }
        None => text,
    };
    let items = text.split(".TP\n.B ").skip(1);
    items.map(|item| item.lines().next().unwrap().to_owned()).collect()
}
