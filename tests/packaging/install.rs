//! `make install`: what the Debian package has, by `packaging/tools/install`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{PACKAGES, built, deb, run, text};

/// Of the Debian package, and not in the list of assets.
fn is_debians_own(path: &str) -> bool {
    path.starts_with("/usr/share/doc/") && (path.ends_with("/changelog.Debian.gz") || path.ends_with("/copyright"))
}

/// Every file below `root` with its mode.
fn tree(root: &Path) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let path = entry.path();
            let path = text(path.strip_prefix(root).expect("below it"));
            let mode = entry.metadata().expect("a mode").permissions().mode();
            found.insert(format!("/{path}"), mode & 0o7777);
        }
    }
    found
}

fn installed(package: &str, prefix: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("root");
    let here = env!("CARGO_MANIFEST_DIR");
    let mut metadata = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(here)
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo metadata");
    let mut install = Command::new("packaging/tools/install");
    install.args([package, text(&built(package)), text(root.path()), prefix]);
    install
        .stdin(metadata.stdout.take().expect("its output"))
        .current_dir(here);
    let out = install.output().expect("packaging/tools/install");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(metadata.wait().expect("cargo").success());
    root
}

#[test]
fn it_installs_the_files_of_each_debian_package_byte_for_byte() {
    for package in PACKAGES {
        let (root, unpacked) = (installed(package, "/usr"), tempfile::tempdir().expect("root"));
        run(&["dpkg-deb", "-x", text(&deb(package)), text(unpacked.path())]);
        let mut expected = tree(unpacked.path());
        expected.retain(|path, _| !is_debians_own(path));
        assert!(expected.len() >= 6, "{expected:#?}");
        assert_eq!(tree(root.path()), expected);
        let content = |root: &Path, path: &str| {
            let path = format!("{}{path}", text(root));
            if path.ends_with(".gz") {
                // Another program may compress otherwise.
                run(&["gzip", "-dc", &path]).into_bytes()
            } else {
                fs::read(&path).unwrap_or_else(|e| panic!("read {path}: {e}"))
            }
        };
        for path in expected.keys() {
            assert!(
                content(root.path(), path) == content(unpacked.path(), path),
                "{path} differs"
            );
        }
    }
}

#[test]
fn below_another_prefix_the_units_name_the_daemon_there() {
    let root = installed("steliad", "/opt/stelia");
    let all = tree(root.path());
    assert!(
        all.contains_key("/opt/stelia/libexec/stelia/steliad-quiet") && all.contains_key("/etc/stelia/steliad.toml")
    );
    assert!(!all.keys().any(|path| path.starts_with("/usr/")), "{all:?}");
    let unit = root.path().join("opt/stelia/lib/systemd/system/steliad.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    assert!(
        unit.contains("\nExecStart=/opt/stelia/libexec/stelia/steliad\n"),
        "{unit}"
    );
}
