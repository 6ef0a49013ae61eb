//! `docs/limits.md` names the limits that the code carries, and no others.

use std::collections::BTreeSet;

use stelia_kernel::cgroup::Limits;

use crate::{quoted, read, root};

#[test]
fn the_table_of_limits_has_the_files_that_are_read() {
    let page = read(&root().join("docs/limits.md"));
    let (table, _) = page.split_once("Not carried:").expect("what is not carried");
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let named: BTreeSet<String> = rows.filter_map(|row| row.split('|').nth(1)).flat_map(quoted).collect();
    let read: BTreeSet<String> = Limits::FILES.iter().map(|file| file.name().to_owned()).collect();
    assert_eq!(named, read);
}
