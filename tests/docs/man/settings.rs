//! The settings, from the file that is shipped. `config` holds that file to the settings: every key, every default.

use super::roff::item;

const FILE: &str = include_str!("../../../packaging/steliad.toml");

/// Each setting with its default and what it does.
pub fn part() -> String {
    let settings: Vec<String> = FILE.split("\n\n").filter_map(setting).collect();
    assert!(
        settings.len() >= 7,
        "only {} settings in the shipped file",
        settings.len()
    );
    settings.concat()
}

/// `# what it does`, one or more lines, then `#key = default`.
fn setting(block: &str) -> Option<String> {
    let (text, key) = block.trim_end().rsplit_once('\n')?;
    let key = key.strip_prefix('#').filter(|key| key.contains(" = "))?;
    let text: Vec<&str> = text.lines().map(|line| line.trim_start_matches("# ")).collect();
    Some(item(key, "").replace("\\&\n", &super::roff::paragraphs(&text.join("\n"), true)))
}
