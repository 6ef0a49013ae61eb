//! Examples of each command, at the end of its help.

use std::fmt::Write as _;

use clap::Command;

/// The examples of a command, each as what it does and the command line. In the text each command has a paragraph: its name, then two
/// lines for each example, of which the first begins with `# `.
pub fn examples_of<'a>(text: &'a str, command: &str) -> Vec<(&'a str, &'a str)> {
    let mut paragraphs = text.split("\n\n").map(str::lines);
    let Some(lines) = paragraphs.find_map(|mut lines| (lines.next() == Some(command)).then_some(lines)) else {
        return Vec::new();
    };
    let lines: Vec<&str> = lines.collect();
    let (pairs, _) = lines.as_chunks();
    pairs
        .iter()
        .map(|[what, line]| (what.trim_start_matches("# "), *line))
        .collect()
}

/// The command with its examples as the end of its help.
pub fn with_examples(command: Command, text: &str) -> Command {
    let examples = examples_of(text, command.get_name());
    if examples.is_empty() {
        return command;
    }
    let mut help = "Examples:".to_owned();
    for (what, line) in examples {
        let _ = write!(help, "\n  # {what}\n  {line}");
    }
    command.after_help(help)
}
