//! `docs/first-vm.md` has the VM's container of `vm.yaml` word for word, up to the last probe. What it shows of `steliactl` is held by `tests/node/first_vm/`.

use crate::{hold, read, root};

#[test]
fn the_page_shows_the_container_of_the_manifest_that_is_installed() {
    let (page, manifest) = (
        root().join("docs/first-vm.md"),
        root().join("packaging/kubernetes/vm.yaml"),
    );
    let (text, manifest) = (read(&page), read(&manifest));
    let (_, shown) = manifest.split_once("\n  containers:\n").expect("containers");
    let (shown, _) = shown.split_once("\n    livenessProbe:\n").expect("a probe");
    let (before, rest) = text.split_once("## `vm.yaml`\n").expect("the section");
    let (introduction, rest) = rest.split_once("```yaml\n").expect("a manifest");
    let (_, after) = rest.split_once("\n```\n").expect("its end");
    let section = format!("## `vm.yaml`\n{introduction}```yaml\n  containers:\n{shown}\n```\n");
    hold(&page, &format!("{before}{section}{after}"));
}
