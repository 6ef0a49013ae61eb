//! A page that is held to what the code knows, and its made parts.

use std::path::{Path, PathBuf};

/// Where a made part of a page written by hand begins; its name follows.
pub const PART: &str = ".\\\" Made from the code: ";
/// Where it ends.
pub const END: &str = ".\\\" Until here.\n";

/// The page's file, of whichever crate the test is.
pub fn path(page: &str) -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = above.map(|root| root.join("docs/man")).find(|folder| folder.is_dir());
    folder.expect("docs/man").join(page)
}

/// The page is exactly this; it is written when that is asked for.
pub fn hold(page: &str, text: &str) {
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        std::fs::write(path(page), text).unwrap();
    }
    let written = std::fs::read_to_string(path(page)).unwrap_or_default();
    assert!(
        written == text,
        "docs/man/{page} is not what it should be: STELIA_WRITE_DOCS=1 cargo test man_page"
    );
}

/// The page with its made part `name` put anew.
pub fn filled(page: &str, name: &str, text: &str) -> String {
    let begin = format!("{PART}{name}\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no part {name:?}"));
    let (_, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("part {name:?} has no end"));
    format!("{before}{begin}{text}{END}{after}")
}
