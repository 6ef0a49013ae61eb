//! The little of roff that the pages need.

use std::fmt::Write;

/// One line of text.
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}

/// Text as in the terminal, below a heading: indented lines are kept as they are, others flow.
pub fn paragraphs(text: &str) -> String {
    let mut page = String::new();
    for (number, paragraph) in text.trim_matches('\n').split("\n\n").enumerate() {
        if number > 0 {
            page.push_str(".PP\n");
        }
        let mut kept = false;
        for line in paragraph.lines() {
            let table = line.starts_with("  ");
            if table != kept {
                page.push_str(if table { ".nf\n" } else { ".fi\n" });
                kept = table;
            }
            writeln!(page, "{}", escaped(line)).unwrap();
        }
        if kept {
            page.push_str(".fi\n");
        }
    }
    page
}
