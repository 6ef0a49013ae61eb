//! The .rpm has what the Debian package has, and the SELinux module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{given, run, text};

/// What only the .rpm has.
const ADDED: [&str; 4] = [
    "/usr/share/licenses/steliad/LICENSE",
    "/usr/share/selinux/devel/include/distributed/steliad.if",
    "/usr/share/selinux/packages/steliad.pp.bz2",
    "/usr/share/zsh/site-functions/_steliactl",
];
/// What only the Debian package has.
const DEBIANS_OWN: [&str; 4] = [
    "/usr/share/doc/steliad/changelog.Debian.gz",
    "/usr/share/doc/steliad/copyright",
    "/usr/share/lintian/overrides/steliad",
    "/usr/share/zsh/vendor-completions/_steliactl",
];

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mode: String,
    owner: String,
    size: u64,
}

/// "-rwxr-xr-x root/root 4711 … /path", as both tools are made to print it.
fn entry(line: &str) -> (String, Entry) {
    let mut words = line.split_whitespace();
    let mut word = || words.next().unwrap_or_else(|| panic!("too short: {line}")).to_owned();
    let (mode, owner, size) = (word(), word(), word());
    // A .deb gives numbers only.
    let owner = owner.replace("0/0", "root/root");
    let path = line
        .split_whitespace()
        .last()
        .expect("path")
        .trim_start_matches('.')
        .to_owned();
    (
        path,
        Entry {
            mode,
            owner,
            size: size.parse().expect("size"),
        },
    )
}

fn query(package: &Path, format: &str) -> String {
    run(&["rpm", "-qp", "--nosignature", "--qf", format, text(package)])
}

fn in_rpm() -> BTreeMap<String, Entry> {
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILESIZES} %{FILENAMES}\n]";
    query(&given("STELIA_RPM"), format).lines().map(entry).collect()
}

fn in_deb() -> BTreeMap<String, Entry> {
    let all = run(&["dpkg-deb", "-c", text(&given("STELIA_DEB"))]);
    let files = all.lines().filter(|line| !line.starts_with('d')).map(entry);
    files
        .filter(|(path, _)| !DEBIANS_OWN.contains(&path.as_str()))
        .collect()
}

#[test]
fn the_same_files_with_the_same_modes_owners_and_sizes_and_the_module() {
    let (mut rpm, deb) = (in_rpm(), in_deb());
    for path in ADDED {
        let added = rpm.remove(path).unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!(
            (added.mode.as_str(), added.owner.as_str()),
            ("-rw-r--r--", "root/root"),
            "{path}"
        );
    }
    assert_eq!(rpm, deb);
    // So that two empty lists are not the same.
    for (path, mode) in [
        ("/usr/libexec/stelia/steliad", "-rwxr-xr-x"),
        ("/usr/libexec/stelia/steliad-quiet", "-rwxr-xr-x"),
        ("/usr/bin/stelia-runner", "-rwxr-xr-x"),
        ("/usr/bin/steliactl", "-rwxr-xr-x"),
        ("/usr/lib/systemd/system/stelia.slice", "-rw-r--r--"),
        ("/etc/stelia/steliad.toml", "-rw-r--r--"),
        ("/usr/share/man/man1/steliactl.1.gz", "-rw-r--r--"),
        ("/usr/share/man/man5/steliad.toml.5.gz", "-rw-r--r--"),
        ("/usr/share/man/man7/stelia.7.gz", "-rw-r--r--"),
        ("/usr/share/man/man8/steliad.8.gz", "-rw-r--r--"),
    ] {
        assert_eq!(deb.get(path).map(|entry| entry.mode.as_str()), Some(mode), "{path}");
    }
}

#[test]
fn the_configuration_and_nothing_else_is_kept_when_it_was_changed() {
    let flags = query(&given("STELIA_RPM"), "[%{FILENAMES} %{FILEFLAGS:fflags}\n]");
    let (documents, others): (Vec<&str>, Vec<&str>) = flags
        .lines()
        .partition(|line| line.starts_with("/usr/share/man/") || line.starts_with("/usr/share/doc/"));
    let flagged: Vec<&str> = others
        .into_iter()
        .filter(|line| line.split_whitespace().count() > 1)
        .collect();
    // c: configuration, n: noreplace.
    assert_eq!(flagged, ["/etc/stelia/steliad.toml cn"]);
    // d: documentation, which an image may leave out.
    assert!(documents.len() >= 6, "{documents:?}");
    assert!(documents.iter().all(|line| line.ends_with(" d")), "{documents:?}");
}

#[test]
fn it_needs_systemd_252_a_bus_and_a_shell_and_no_library() {
    let needs = query(
        &given("STELIA_RPM"),
        "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]",
    );
    let needs: BTreeSet<&str> = needs
        .lines()
        .map(str::trim)
        .filter(|need| !need.starts_with("rpmlib(") && !need.starts_with("config("))
        .collect();
    assert_eq!(needs, BTreeSet::from(["/bin/sh", "dbus", "systemd >= 252"]));
}

#[test]
fn it_says_what_it_is() {
    let package = given("STELIA_RPM");
    let said = query(&package, "%{NAME} %{VERSION} %{RELEASE} %{LICENSE} %{OS}\n%{SUMMARY}");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        said,
        format!(
            "steliad {version} 1 Apache-2.0 linux\n{}",
            env!("CARGO_PKG_DESCRIPTION")
        )
    );
    let built_for = query(&package, "%{ARCH}");
    assert_eq!(built_for, std::env::consts::ARCH);
}

#[test]
fn installed_it_is_the_debian_package_byte_for_byte() {
    let (root, deb) = (tempfile::tempdir().expect("root"), tempfile::tempdir().expect("root"));
    let (package, into) = (given("STELIA_RPM"), text(root.path()));
    let rpm = ["rpm", "--root", into, "--force-debian", "--nosignature"];
    run(&[&rpm[..], &["--nodeps", "--noscripts", "-i", text(&package)]].concat());
    run(&["dpkg-deb", "-x", text(&given("STELIA_DEB")), text(deb.path())]);
    let below = |root: &Path, path: &str| {
        let path = root.join(path.trim_start_matches('/'));
        fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
    };
    for path in in_deb().keys() {
        assert!(below(root.path(), path) == below(deb.path(), path), "{path} differs");
    }
    let module = fs::read(given("STELIA_SELINUX").join("steliad.pp.bz2")).expect("module");
    assert!(below(root.path(), "/usr/share/selinux/packages/steliad.pp.bz2") == module);
    // Modes, owners and digests as rpm itself sees them; it is silent when all is as it should be.
    assert_eq!(run(&[&rpm[..], &["-V", "--nodeps", "steliad"]].concat()), "");
}
