//! The settings, from the file that is shipped. `crates/settings` holds that file to the settings: every key, every default.

use super::roff::{escaped, paragraphs};

const FILE: &str = include_str!("../../../packaging/steliad.toml");

/// Where the keys of a cache class begin.
const CLASS: &str = "\n#[cache-class.gold]\n";

/// Where the keys of a rule of adoption begin, behind those of a class.
const RULE: &str = "\n#[[adopt]]\n";

/// Each setting with its default and what it does.
pub fn part() -> String {
    let (settings, _) = FILE.split_once(CLASS).unwrap();
    let settings: Vec<String> = settings.split("\n\n").filter_map(setting).collect();
    assert!(
        settings.len() >= 7,
        "only {} settings in the shipped file",
        settings.len()
    );
    settings.concat()
}

/// Each key of a cache class, with an example and what it does.
pub fn class() -> String {
    let (before, _) = FILE.split_once(RULE).unwrap();
    let (_, keys) = before.split_once(CLASS).unwrap();
    let keys: Vec<String> = keys.split("\n\n").filter_map(setting).collect();
    assert!(
        keys.len() >= 2,
        "only {} keys of a cache class in the shipped file",
        keys.len()
    );
    keys.concat()
}

/// Each key of a rule of adoption, with the value of the ready-made one that is shown and what it does.
pub fn rule() -> String {
    let (_, keys) = FILE.split_once(RULE).unwrap();
    let keys: Vec<String> = keys.split("\n\n").filter_map(setting).collect();
    assert!(
        keys.len() >= 9,
        "only {} keys of a rule in the shipped file",
        keys.len()
    );
    keys.concat()
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
