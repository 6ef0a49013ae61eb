//! The members of each command's JSON, from `docs/json.md`, which a test of the simulator compares with what is printed.

use super::roff::escaped;

/// The rules and the members, a section for each command.
pub fn members() -> String {
    let page = include_str!("../../../docs/json.md");
    let sections = page.split("\n## ").filter_map(|section| section.split_once('\n'));
    let told = sections.filter(|(name, _)| !["# JSON of steliactl", "Promise"].contains(name));
    told.map(|(name, text)| section(name, text)).collect()
}

fn section(name: &str, text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| match line.strip_prefix("| `") {
            Some(row) => member(row),
            // The heads of tables.
            None if line.starts_with('|') => String::new(),
            None => match line.strip_prefix("- ") {
                Some(rule) => format!(".IP \\(bu 2\n{}\n", plain(rule)),
                None => format!("{}\n", plain(line.trim_start())),
            },
        });
    format!(".SS {}\n.PD 0\n{}.PD\n", escaped(name), lines.collect::<String>())
}

/// A row without its beginning: the member, its type, its meaning.
fn member(row: &str) -> String {
    let mut cells = row.trim_end_matches('|').split(" | ").map(|cell| plain(cell.trim()));
    let name = cells.next().unwrap_or_default();
    let kind = cells.next().unwrap_or_else(|| "string".to_owned());
    let meaning = cells.next().map(|meaning| format!(": {meaning}")).unwrap_or_default();
    format!(".TP 38\n.B {name}\n{kind}{meaning}\n")
}

fn plain(text: &str) -> String {
    escaped(&text.replace('`', ""))
}
