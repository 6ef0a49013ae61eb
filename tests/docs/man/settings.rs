//! The settings, from the file that is shipped. `crates/settings` holds that file to the settings: every key, every default.

use super::roff::{escaped, paragraphs};

const FILE: &str = include_str!("../../../packaging/steliad.toml");

/// Where the keys of a cache class begin.
const CLASS: &str = "\n#[cache-class.gold]\n";

/// Where the keys of a rule of adoption begin, behind those of a class.
const RULE: &str = "\n#[[adopt]]\n";

/// The settings with their defaults, the keys of a cache class with examples, and those of a rule of adoption with the values of the ready-made one
/// that is shown: each with what it does.
pub fn parts() -> [(&'static str, String); 3] {
    let (before, rule) = FILE.split_once(RULE).unwrap();
    let (settings, class) = before.split_once(CLASS).unwrap();
    [("settings", settings, 7), ("class", class, 2), ("rule", rule, 9)].map(|(part, text, at_least)| {
        let keys: Vec<String> = text.split("\n\n").filter_map(setting).collect();
        assert!(
            keys.len() >= at_least,
            "{part}: only {} in the shipped file",
            keys.len()
        );
        (part, keys.concat())
    })
}

/// `# what it does`, one or more lines, then `#key = default`.
fn setting(block: &str) -> Option<String> {
    let (text, key) = block.trim_end().rsplit_once('\n')?;
    let key = key.strip_prefix('#').filter(|key| key.contains(" = "))?;
    let text: Vec<&str> = text.lines().map(|line| line.trim_start_matches("# ")).collect();
    Some(format!(
        ".TP\n\\fB{}\\fR\n{}",
        escaped(key),
        paragraphs(&text.join("\n"))
    ))
}
