//! The packages of the cluster: stelia-publish touches its own unit and the daemon's settings, stelia-placement its own unit, stelia-cluster nothing
//! that runs. What they take back is taken back, and what the administrator brought stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::root::{Root, called, place};
use crate::{deb, run, text};

const PUBLISH: &str = "stelia-publish";
const SERVICES: [(&str, &str); 2] = [
    (PUBLISH, "etc/stelia/publish"),
    ("stelia-placement", "etc/stelia/placement"),
];
const RELOAD: &str = "systemctl reload steliad.service";

fn start(package: &str) -> String {
    format!("systemctl start {package}.service")
}

/// A root in which the package is installed, with a kubeconfig.
fn configured(package: &'static str, folder: &str) -> Root {
    let root = Root::new(package);
    root.install();
    fs::create_dir_all(root.at(folder)).expect("a folder");
    fs::write(root.at(folder).join("kubeconfig"), "").expect("a file");
    root
}

#[test]
fn an_install_makes_the_user_has_the_settings_read_and_starts_what_the_preset_enabled() {
    for (package, _) in SERVICES {
        let calls = Root::new(package).install();
        let users = place(&calls, &format!("systemd-sysusers {package}.conf"));
        assert!(users < place(&calls, &format!("systemd-tmpfiles --create {package}.conf")));
        place(
            &calls,
            &format!("systemctl --no-reload --quiet preset {package}.service"),
        );
        let reload = place(&calls, "systemctl daemon-reload");
        assert!(reload < place(&calls, &start(package)));
        if package == PUBLISH {
            assert!(reload < place(&calls, RELOAD) && place(&calls, RELOAD) < place(&calls, &start(package)));
        }
        assert!(!called(&calls, "systemctl stop") && !called(&calls, "systemctl restart"));
    }
}

#[test]
fn with_selinux_its_program_is_labelled_before_it_starts() {
    for (package, folder) in SERVICES {
        let calls = Root::with_selinux(package).install();
        let labelled = format!("restorecon -R /usr/libexec/stelia/{package} /{folder}");
        assert!(place(&calls, &labelled) < place(&calls, &start(package)));
        // The module is steliad's.
        assert!(!called(&calls, "semodule"));
    }
}

#[test]
fn a_daemon_that_does_not_run_is_not_asked() {
    let root = Root::new(PUBLISH);
    let systemctl = "#!/bin/sh\necho \"systemctl $*\" >> /calls\ncase \"$*\" in *is-active*) exit 3 ;; esac\n";
    fs::write(root.at("usr/bin/systemctl"), systemctl).expect("systemctl");
    let calls = root.install();
    place(&calls, &start(PUBLISH));
    assert!(!calls.iter().any(|call| call == RELOAD), "{calls:?}");
}

#[test]
fn an_upgrade_restarts_it_and_withdraws_nothing() {
    for (package, folder) in SERVICES {
        let calls = configured(package, folder).upgrade();
        place(&calls, &format!("systemctl try-restart {package}.service"));
        for never in ["systemctl stop", "systemctl --no-reload", "systemd-run"] {
            assert!(!called(&calls, never), "{package}: {never}: {calls:?}");
        }
    }
}

#[test]
fn a_removal_stops_it_takes_back_what_was_published_and_keeps_the_kubeconfig() {
    for (package, folder) in SERVICES {
        let root = configured(package, folder);
        let calls = root.remove();
        let stopped = place(&calls, &format!("systemctl stop {package}.service"));
        let disabled = place(
            &calls,
            &format!("systemctl --no-reload --quiet disable {package}.service"),
        );
        if package == PUBLISH {
            let withdrawn = calls.iter().position(|call| call.starts_with("systemd-run "));
            let withdrawn = withdrawn.expect("it");
            for part in [
                "--uid=stelia-publish",
                "-E STELIA_KUBECONFIG=/etc/stelia/publish/kubeconfig",
                "stelia-publish --withdraw",
            ] {
                assert!(calls[withdrawn].contains(part), "{part}: {}", calls[withdrawn]);
            }
            assert!(stopped < withdrawn);
            // The drop-in is gone, and the daemon told.
            assert!(!root.at("usr/lib/stelia").exists());
            assert!(withdrawn < place(&calls, RELOAD));
        } else {
            assert!(stopped < disabled);
            assert!(!root.at("usr/share/doc").join(package).exists());
        }
        assert!(root.at(folder).join("kubeconfig").exists());
    }
}

#[test]
fn a_removal_without_a_kubeconfig_or_without_an_answer_goes_on() {
    let root = Root::new(PUBLISH);
    root.install();
    assert!(!called(&root.remove(), "systemd-run"));

    let root = configured(PUBLISH, "etc/stelia/publish");
    root.pretend("usr/bin/systemd-run", "systemd-run", 1);
    let calls = root.remove();
    assert!(called(&calls, "systemd-run "));
    place(&calls, RELOAD);
}

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
fn stelia_cluster_has_every_manifest_where_a_kustomization_looks_for_it() {
    let unpacked = tempfile::tempdir().expect("root");
    run(&["dpkg-deb", "-x", text(&deb("stelia-cluster")), text(unpacked.path())]);
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
fn of_stelia_cluster_nothing_runs_and_nothing_is_left() {
    let root = Root::new("stelia-cluster");
    assert!(root.install().is_empty());
    assert!(root.remove().is_empty());
    assert!(!root.at("usr/share/stelia-cluster").exists());
}
