//! `docs/first-vm.md` has `vm.yaml` word for word. What it shows of `steliactl` is held by `tests/node/first_vm/`.

use crate::{read, root};

#[test]
fn the_page_shows_the_manifest_that_is_installed() {
    let (page, manifest) = (
        root().join("docs/first-vm.md"),
        root().join("packaging/kubernetes/vm.yaml"),
    );
    let (text, manifest) = (read(&page), read(&manifest));
    let (before, rest) = text.split_once("## `vm.yaml`\n\n```yaml\n").expect("the section");
    let (_, after) = rest.split_once("\n```\n").expect("its end");
    let wanted = format!("{before}## `vm.yaml`\n\n```yaml\n{manifest}```\n{after}");
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        std::fs::write(&page, &wanted).expect("the page");
        return;
    }
    assert!(
        text == wanted,
        "docs/first-vm.md does not show packaging/kubernetes/vm.yaml: STELIA_WRITE_DOCS=1 cargo test --test docs first_vm"
    );
}
