//! A text in a number of columns: wrapped, cut at its end, or without its middle.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The signs behind which a word that is wider than a line is broken if possible: of lists of CPUs, paths and taints.
const BREAKS: [char; 3] = [',', '/', ':'];

/// Units that stay on the line of their number.
const UNITS: [&str; 12] = [
    "%", "s", "ms", "min", "h", "days", "B", "KiB", "MiB", "GiB", "TiB", "CPUs",
];

/// The words of a text; a number with its unit is one.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        match words.last_mut() {
            Some(number) if is_unit && number.ends_with(|char: char| char.is_ascii_digit()) => {
                number.push(' ');
                *number += word;
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// The text on lines of at most `width` columns, broken at blanks; a word that is wider than a line is broken behind the last
/// comma, slash or colon that the line has, or where the line ends.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.width() <= width {
        return vec![text.to_owned()];
    }
    let width = width.max(1);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in words(text) {
        if !line.is_empty() && line.width() + 1 + word.width() <= width {
            line.push(' ');
            line += &word;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for char in word.chars() {
            if !line.is_empty() && line.width() + char.width().unwrap_or(0) > width {
                let rest = line.split_off(line.rfind(BREAKS).map_or(line.len(), |at| at + 1));
                lines.push(std::mem::replace(&mut line, rest));
            }
            line.push(char);
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// At most `width` columns of the text: its beginning and its end, with an ellipsis between them where something is missing. The name of
/// a host with its domain is cut at its end instead, because many have the same domain.
pub fn shorten(text: &str, width: usize) -> String {
    let host = text.split_once('.').map(|(host, _)| host);
    let is_host = host.is_some_and(|host| host.width() < width && !text.contains('/'));
    if text.width() <= width || width == 0 || is_host {
        return cut(text, width);
    }
    let end: String = within(text.chars().rev(), (width - 1) / 2).chars().rev().collect();
    within(text.chars(), width - 1 - end.width()) + "…" + &end
}

/// The first characters, as many as fit.
fn within(chars: impl Iterator<Item = char>, mut room: usize) -> String {
    let fits = |char: &char| match char.width().unwrap_or(0) {
        wide if wide <= room => {
            room -= wide;
            true
        }
        _ => false,
    };
    chars.take_while(fits).collect()
}

/// At most `width` columns of the text, the last of which is an ellipsis where something is missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let more = if width == 0 { "" } else { "…" };
    within(text.chars(), width.saturating_sub(1)) + more
}
