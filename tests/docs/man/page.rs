//! A page that is held to what the code knows, and its made parts.

use std::path::{Path, PathBuf};

/// Where a made part of a page written by hand begins; its name follows.
pub const PART: &str = ".\\\" Made from the code: ";
/// Where it ends.
pub const END: &str = ".\\\" Until here.\n";

/// Where man pages are: those of the node, and those of the cluster's programs.
pub const FOLDERS: [&str; 2] = ["docs/man", "docs/cluster/man"];

/// The page's file, of whichever crate the test is.
pub fn path(page: &str) -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.find(|root| root.join(FOLDERS[0]).is_dir()).expect("docs/man");
    let of_the_cluster = root.join(FOLDERS[1]).join(page);
    if of_the_cluster.exists() {
        of_the_cluster
    } else {
        root.join(FOLDERS[0]).join(page)
    }
}

/// The page is exactly this; it is written when that is asked for.
pub fn hold(page: &str, text: &str) {
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        std::fs::write(path(page), text).unwrap();
    }
    let written = std::fs::read_to_string(path(page)).unwrap_or_default();
    assert!(
        written == text,
        "{} is not what it should be: STELIA_WRITE_DOCS=1 cargo test man_page",
        path(page).display()
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
