//! A page written by hand, with parts that are made from the code.

use std::path::{Path, PathBuf};

/// Where a made part begins; its name follows.
const PART: &str = ".\\\" Made from the code: ";
/// Where it ends.
const END: &str = ".\\\" Until here.\n";

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

/// The page has exactly these made parts; they are written when that is asked for. Answers the page.
pub fn hold(page: &str, parts: &[(&str, String)]) -> String {
    let path = path(page);
    let written = std::fs::read_to_string(&path).unwrap();
    let made = parts
        .iter()
        .fold(written.clone(), |page, (name, text)| filled(&page, name, text));
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        std::fs::write(path, &made).unwrap();
    } else {
        assert!(
            written == made,
            "{} is not what it should be: STELIA_WRITE_DOCS=1 cargo test man_page",
            path.display()
        );
    }
    made
}

/// The page with its made part `name` put anew.
fn filled(page: &str, name: &str, text: &str) -> String {
    let begin = format!("{PART}{name}\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no part {name:?}"));
    let (_, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("part {name:?} has no end"));
    format!("{before}{begin}{text}{END}{after}")
}
