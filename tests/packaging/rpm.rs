//! The .rpms have what the Debian packages have; steliad's has the SELinux module too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::release::programs;
use crate::{PACKAGES, architecture, deb, given, rpm, run, text};

/// What only the .rpms have.
const ADDED: [&str; 7] = [
    "/usr/share/licenses/steliad/LICENSE",
    "/usr/share/licenses/stelia-publish/LICENSE",
    "/usr/share/licenses/stelia-cluster/LICENSE",
    "/usr/share/licenses/stelia-placement/LICENSE",
    "/usr/share/selinux/devel/include/distributed/steliad.if",
    "/usr/share/selinux/packages/steliad.pp.bz2",
    "/usr/share/zsh/site-functions/_steliactl",
];
/// What only the Debian packages have.
fn is_debians_own(path: &str) -> bool {
    let of_documents = path.ends_with("/changelog.Debian.gz") || path.ends_with("/copyright");
    of_documents || path.starts_with("/usr/share/lintian/") || path.starts_with("/usr/share/zsh/vendor-completions/")
}

fn is_the_rpms_own(path: &str) -> bool {
    ADDED.contains(&path) || path.starts_with("/usr/share/zsh/site-functions/")
}

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

fn in_rpm(package: &str) -> BTreeMap<String, Entry> {
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILESIZES} %{FILENAMES}\n]";
    let all = query(&rpm(package), format);
    all.lines().filter(|line| !line.starts_with('d')).map(entry).collect()
}

fn in_deb(package: &str) -> BTreeMap<String, Entry> {
    let all = run(&["dpkg-deb", "-c", text(&deb(package))]);
    let files = all.lines().filter(|line| !line.starts_with('d')).map(entry);
    files.filter(|(path, _)| !is_debians_own(path)).collect()
}

#[test]
fn the_same_files_with_the_same_modes_owners_and_sizes_and_the_module() {
    let mut added = BTreeSet::new();
    for package in PACKAGES {
        let (own, rpm): (Vec<_>, Vec<_>) = in_rpm(package).into_iter().partition(|(path, _)| is_the_rpms_own(path));
        for (path, entry) in own {
            assert_eq!(
                (entry.mode.as_str(), entry.owner.as_str()),
                ("-rw-r--r--", "root/root"),
                "{path}"
            );
            added.insert(path);
        }
        assert_eq!(rpm.into_iter().collect::<BTreeMap<_, _>>(), in_deb(package));
    }
    assert!(ADDED.iter().all(|path| added.contains(*path)), "{added:?}");
    // So that two empty lists are not the same.
    let all: BTreeMap<String, Entry> = PACKAGES.into_iter().flat_map(in_deb).collect();
    let programs = PACKAGES
        .into_iter()
        .flat_map(programs)
        .map(|(_, path)| format!("/{path}"));
    let programs = programs.chain(["/usr/bin/kubectl-stelia".to_owned()]);
    let others = [
        "/usr/lib/systemd/system/stelia.slice",
        "/usr/lib/systemd/system/stelia-publish.service",
        "/usr/lib/systemd/system/stelia-placement.service",
        "/usr/lib/stelia/steliad.toml.d/50-publish.toml",
        "/etc/stelia/steliad.toml",
        "/usr/share/man/man1/steliactl.1.gz",
        "/usr/share/man/man1/stelia-cluster.1.gz",
        "/usr/share/man/man5/steliactl-fields.5.gz",
        "/usr/share/man/man5/steliad.toml.5.gz",
        "/usr/share/man/man7/stelia.7.gz",
        "/usr/share/man/man8/steliad.8.gz",
        "/usr/share/man/man8/stelia-publish.8.gz",
        "/usr/share/man/man8/stelia-placement.8.gz",
        "/usr/share/stelia-cluster/kubernetes/base/kustomization.yaml",
    ];
    let programs = programs.map(|path| (path, "-rwxr-xr-x"));
    for (path, mode) in programs.chain(others.map(|path| (path.to_owned(), "-rw-r--r--"))) {
        assert_eq!(all.get(&path).map(|entry| entry.mode.as_str()), Some(mode), "{path}");
    }
}

#[test]
fn no_file_is_in_two_packages() {
    let of = |package: &str| in_deb(package).into_keys().collect::<BTreeSet<_>>();
    let all = PACKAGES.map(of);
    for (place, one) in all.iter().enumerate() {
        for other in &all[place + 1..] {
            assert!(one.is_disjoint(other), "{:?}", one.intersection(other));
        }
    }
}

#[test]
fn the_configuration_and_nothing_else_is_kept_when_it_was_changed() {
    let flags = query(&rpm("steliad"), "[%{FILENAMES} %{FILEFLAGS:fflags}\n]");
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

/// What it requires, without what rpm itself adds.
fn needs(package: &str) -> BTreeSet<String> {
    let needs = query(
        &rpm(package),
        "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]",
    );
    let needs = needs.lines().map(|need| need.trim().to_owned());
    needs
        .filter(|need| !need.starts_with("rpmlib(") && !need.starts_with("config("))
        .collect()
}

#[test]
fn they_need_systemd_252_a_bus_and_a_shell_and_no_library() {
    let all = |needed: &[&str]| needed.iter().map(|need| (*need).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(needs("steliad"), all(&["/bin/sh", "dbus", "systemd >= 252"]));
    assert_eq!(needs("stelia-publish"), all(&["/bin/sh", "steliad", "systemd >= 252"]));
    assert_eq!(needs("stelia-cluster"), all(&["/bin/sh"]));
    assert_eq!(needs("stelia-placement"), all(&["/bin/sh", "systemd >= 252"]));
}

#[test]
fn they_say_what_they_are() {
    let (machine, debian) = architecture();
    for package in PACKAGES {
        let (file, version) = (rpm(package), env!("CARGO_PKG_VERSION"));
        let said = query(&file, "%{NAME} %{VERSION} %{RELEASE} %{LICENSE} %{OS} %{ARCH}");
        assert_eq!(said, format!("{package} {version} 1 Apache-2.0 linux {machine}"));
        assert!(text(&file).ends_with(&format!("{package}-{version}-1.{machine}.rpm")));
        let deb = deb(package);
        assert_eq!(run(&["dpkg-deb", "-f", text(&deb), "Architecture"]).trim(), debian);
        assert!(text(&deb).ends_with(&format!("_{debian}.deb")), "{}", deb.display());
        let description = run(&["dpkg-deb", "-f", text(&deb), "Description"]);
        assert_eq!(Some(&*query(&file, "%{SUMMARY}")), description.lines().next());
    }
    assert_eq!(query(&rpm("steliad"), "%{SUMMARY}"), env!("CARGO_PKG_DESCRIPTION"));
}

#[test]
fn installed_they_are_the_debian_packages_byte_for_byte() {
    let below = |root: &Path, path: &str| {
        let path = root.join(path.trim_start_matches('/'));
        fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
    };
    let root = tempfile::tempdir().expect("root");
    let tool = ["rpm", "--root", text(root.path()), "--force-debian", "--nosignature"];
    for package in PACKAGES {
        let unpacked = tempfile::tempdir().expect("root");
        run(&[
            &tool[..],
            &["--nodeps", "--noscripts", "--ignorearch", "-i", text(&rpm(package))],
        ]
        .concat());
        run(&["dpkg-deb", "-x", text(&deb(package)), text(unpacked.path())]);
        for path in in_deb(package).keys() {
            assert!(
                below(root.path(), path) == below(unpacked.path(), path),
                "{path} differs"
            );
        }
        // Modes, owners and digests as rpm itself sees them; it is silent when all is as it should be.
        assert_eq!(run(&[&tool[..], &["-V", "--nodeps", package]].concat()), "");
    }
    let module = fs::read(given("STELIA_SELINUX").join("steliad.pp.bz2")).expect("module");
    assert!(below(root.path(), "/usr/share/selinux/packages/steliad.pp.bz2") == module);
}
