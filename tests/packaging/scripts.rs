//! The scripts of each package, of its .rpm and its .deb, are the committed ones, and what they do not do.

use std::fs;
use std::path::Path;

use crate::root::scriptlet;
use crate::{deb, run, text};

/// A package, the folders of its scripts in `packaging`, and what its .deb has of them. stelia-cluster has none but one that removes empty folders.
const PACKAGES: [(&str, [&str; 2], &[&str]); 4] = [
    (
        "steliad",
        ["rpm", "debian"],
        &["preinst", "postinst", "prerm", "postrm"],
    ),
    (
        "stelia-publish",
        ["cluster/publish/rpm", "cluster/publish/debian"],
        &["postinst", "prerm", "postrm"],
    ),
    (
        "stelia-placement",
        ["cluster/placement/rpm", "cluster/placement/debian"],
        &["postinst", "prerm", "postrm"],
    ),
    ("stelia-cluster", ["cluster/cli/rpm", ""], &[]),
];
const SCRIPTLETS: [(&str, &str); 4] = [
    ("PREIN", "pre"),
    ("POSTIN", "post"),
    ("PREUN", "preun"),
    ("POSTUN", "postun"),
];

#[test]
fn they_are_the_committed_ones_right_by_syntax_and_name_no_slice_and_no_unit_of_another_package() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    for (package, [rpm, debian], scripts) in PACKAGES {
        let check = |name: &str, file: &Path, packaged: &str| {
            let committed = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            assert_eq!(packaged.trim(), committed.trim(), "{package}: {name}");
            run(&["sh", "-n", text(file)]);
            let code = committed.lines().filter(|line| !line.trim_start().starts_with('#'));
            for line in code {
                assert!(!line.contains("slice"), "{package}: {name}: {line}");
                // Of the daemon's units only the daemon is named by others, to read its settings again.
                let is_asked = line.contains("is-active") || line.contains("systemctl reload steliad.service");
                let is_free = package == "steliad" || package == "stelia-publish" && is_asked;
                assert!(
                    is_free || !line.contains("steliad.service"),
                    "{package}: {name}: {line}"
                );
            }
        };
        for (tag, name) in SCRIPTLETS {
            let file = packaging.join(rpm).join(name);
            let packaged = scriptlet(package, tag);
            if file.exists() {
                check(tag, &file, &packaged);
                assert_eq!(scriptlet(package, &format!("{tag}PROG")), "/bin/sh", "{package}: {tag}");
            } else {
                assert_eq!(packaged, "(none)", "{package}: {tag}");
            }
        }
        for tag in ["PRETRANS", "POSTTRANS", "VERIFYSCRIPT"] {
            assert_eq!(scriptlet(package, tag), "(none)", "{package}: {tag}");
        }
        let control = tempfile::tempdir().expect("a folder");
        run(&["dpkg-deb", "-e", text(&deb(package)), text(control.path())]);
        for name in ["preinst", "postinst", "prerm", "postrm"] {
            let packaged = control.path().join(name);
            assert_eq!(packaged.exists(), scripts.contains(&name), "{package}: {name}");
            if packaged.exists() {
                let script = fs::read_to_string(&packaged).expect("a script");
                check(name, &packaging.join(debian).join(name), &script);
            }
        }
    }
}
