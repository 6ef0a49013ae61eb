//! The package stelia-cluster: the manifests as they are in the repository, and nothing that runs at installation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::root::{Root, scriptlet};
use crate::{deb, run, text};

const PACKAGE: &str = "stelia-cluster";

fn files(folder: &Path, below: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, below, found);
        } else {
            found.insert(text(path.strip_prefix(below).expect("below")).to_owned());
        }
    }
}

#[test]
fn it_has_every_manifest_where_a_kustomization_looks_for_it() {
    let unpacked = tempfile::tempdir().expect("root");
    run(&["dpkg-deb", "-x", text(&deb(PACKAGE)), text(unpacked.path())]);
    let installed = unpacked.path().join("usr/share/stelia-cluster/kubernetes");
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/cluster/kubernetes");
    let [mut here, mut there] = [BTreeSet::new(), BTreeSet::new()];
    files(&committed, &committed, &mut here);
    files(&installed, &installed, &mut there);
    assert!(here.len() >= 25, "{here:?}");
    assert_eq!(there, here);
    for file in here {
        assert!(
            fs::read(committed.join(&file)).expect("it") == fs::read(installed.join(&file)).expect("it"),
            "{file}"
        );
    }
}

#[test]
fn nothing_runs_but_what_removes_empty_folders_and_nothing_is_left() {
    for tag in ["PREIN", "POSTIN", "PREUN", "PRETRANS", "POSTTRANS"] {
        assert_eq!(scriptlet(PACKAGE, tag), "(none)", "{tag}");
    }
    let control = tempfile::tempdir().expect("a folder");
    run(&["dpkg-deb", "-e", text(&deb(PACKAGE)), text(control.path())]);
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        assert!(!control.path().join(script).exists(), "{script}");
    }
    let root = Root::new(PACKAGE);
    assert!(root.install().is_empty());
    assert!(root.remove().is_empty());
    assert!(!root.at("usr/share/stelia-cluster").exists());
}
