//! The little of roff that the pages need.

use std::fmt::Write;

/// What the first lines of a page tell.
pub struct Header {
    pub title: &'static str,
    pub section: u8,
    pub volume: &'static str,
    /// What the page is made from, for whoever thinks of editing it.
    pub source: &'static str,
}

impl Header {
    /// A comment and `.TH`. The date is that of the newest entry of Debian's changelog: the same at every build.
    pub fn text(&self) -> String {
        format!(
            ".\\\" Made from {}: see tests/docs/man\n.TH {} {} {} \"steliad\" \"{}\"\n",
            self.source,
            escaped(self.title),
            self.section,
            date(),
            self.volume
        )
    }
}

fn date() -> String {
    let changelog = include_str!("../../../packaging/debian/changelog");
    let line = changelog.lines().find(|line| line.starts_with(" -- ")).unwrap();
    let words: Vec<&str> = line.rsplit_once(", ").unwrap().1.split_whitespace().collect();
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(words[1]).unwrap() / 3 + 1;
    format!("{}-{month:02}-{:0>2}", words[2], words[0])
}

/// One line of text.
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}

/// Lines that stay lines.
pub fn lines(text: &str) -> String {
    let mut page = String::new();
    let mut rest = text.trim_end().lines().peekable();
    while let Some(line) = rest.next() {
        match line.trim_end() {
            "" => page.push_str(".sp\n"),
            line => writeln!(page, "{}", escaped(line)).unwrap(),
        }
        let between = !line.trim().is_empty() && rest.peek().is_some_and(|next| !next.trim().is_empty());
        if between {
            page.push_str(".br\n");
        }
    }
    page
}

/// An item of a list: the head in bold, then lines.
pub fn item(head: &str, text: &str) -> String {
    let text = if text.is_empty() {
        "\\&\n".to_owned()
    } else {
        lines(text)
    };
    format!(".TP\n\\fB{}\\fR\n{text}", escaped(head.trim()))
}

/// Text as in the terminal, below a heading or another text: indented lines are kept as they are, others flow.
pub fn paragraphs(text: &str, below_a_heading: bool) -> String {
    let mut page = String::new();
    for (number, paragraph) in text.trim_matches('\n').split("\n\n").enumerate() {
        if number > 0 || !below_a_heading {
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

/// `.SH SEE ALSO`.
pub fn see_also(what: &[&str]) -> String {
    let what: Vec<String> = what.iter().map(|one| escaped(one)).collect();
    format!(".SH SEE ALSO\n{}\n", what.join(",\n"))
}

#[test]
fn text_that_begins_like_a_request_is_text() {
    assert_eq!(escaped(".x-y"), "\\&.x\\-y");
    assert_eq!(paragraphs("a\n  b\n\nc", true), "a\n.nf\n  b\n.fi\n.PP\nc\n");
    assert_eq!(lines("a\nb\n\nc"), "a\n.br\nb\n.sp\nc\n");
}
