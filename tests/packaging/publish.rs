//! The package stelia-publish: its scripts touch its own unit and the daemon's settings, and what they take back is taken back.

use std::fs;
use std::path::Path;

use crate::root::{Root, called, place, scriptlet};
use crate::{deb, run, text};

const PACKAGE: &str = "stelia-publish";
const START: &str = "systemctl start stelia-publish.service";
const RELOAD: &str = "systemctl reload steliad.service";

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

/// Without comments.
fn code(script: &str) -> String {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_scripts_are_the_committed_ones_and_name_no_slice_and_no_vm() {
    for (tag, file) in [("POSTIN", "post"), ("PREUN", "preun"), ("POSTUN", "postun")] {
        let committed = repository(&format!("packaging/cluster/publish/rpm/{file}"));
        assert_eq!(scriptlet(PACKAGE, tag).trim(), committed.trim(), "{file}");
        assert!(!code(&committed).contains("slice"), "{file}");
    }
    let control = tempfile::tempdir().expect("a folder");
    run(&["dpkg-deb", "-e", text(&deb(PACKAGE)), text(control.path())]);
    for file in ["postinst", "prerm", "postrm"] {
        let packaged = fs::read_to_string(control.path().join(file)).expect("a script");
        assert_eq!(
            packaged.trim(),
            repository(&format!("packaging/cluster/publish/debian/{file}")).trim(),
            "{file}"
        );
        assert!(!code(&packaged).contains("slice"), "{file}");
        run(&["sh", "-n", text(&control.path().join(file))]);
    }
    // Of the daemon's units only the daemon is named, to read its settings again.
    for folder in [
        "rpm/post",
        "rpm/preun",
        "rpm/postun",
        "debian/postinst",
        "debian/prerm",
        "debian/postrm",
    ] {
        let script = code(&repository(&format!("packaging/cluster/publish/{folder}")));
        for line in script.lines().filter(|line| line.contains("steliad.service")) {
            assert!(line.contains("is-active") || line.contains(RELOAD), "{folder}: {line}");
        }
    }
}

#[test]
fn an_install_makes_the_user_has_the_settings_read_and_starts_what_the_preset_enabled() {
    let calls = Root::new(PACKAGE).install();
    let users = place(&calls, "systemd-sysusers stelia-publish.conf");
    assert!(users < place(&calls, "systemd-tmpfiles --create stelia-publish.conf"));
    place(&calls, "systemctl --no-reload --quiet preset stelia-publish.service");
    let reload = place(&calls, "systemctl daemon-reload");
    assert!(reload < place(&calls, RELOAD) && place(&calls, RELOAD) < place(&calls, START));
    assert!(!called(&calls, "systemctl stop") && !called(&calls, "systemctl restart"));
}

#[test]
fn with_selinux_its_program_is_labelled_before_it_starts() {
    let calls = Root::with_selinux(PACKAGE).install();
    assert!(
        place(
            &calls,
            "restorecon -R /usr/libexec/stelia/stelia-publish /etc/stelia/publish"
        ) < place(&calls, START)
    );
    // The module is steliad's.
    assert!(!called(&calls, "semodule"));
}

#[test]
fn a_daemon_that_does_not_run_is_not_asked() {
    let root = Root::new(PACKAGE);
    let systemctl = "#!/bin/sh\necho \"systemctl $*\" >> /calls\ncase \"$*\" in *is-active*) exit 3 ;; esac\n";
    fs::write(root.at("usr/bin/systemctl"), systemctl).expect("systemctl");
    let calls = root.install();
    place(&calls, START);
    assert!(!calls.iter().any(|call| call == RELOAD), "{calls:?}");
}

#[test]
fn an_upgrade_restarts_the_publisher_and_withdraws_nothing() {
    let root = Root::new(PACKAGE);
    root.install();
    fs::create_dir_all(root.at("etc/stelia/publish")).expect("a folder");
    fs::write(root.at("etc/stelia/publish/kubeconfig"), "").expect("a file");
    let calls = root.upgrade();
    place(&calls, "systemctl try-restart stelia-publish.service");
    for never in ["systemctl stop", "systemctl --no-reload", "systemd-run"] {
        assert!(!called(&calls, never), "{never}: {calls:?}");
    }
}

#[test]
fn a_removal_takes_back_what_was_published_once_nobody_publishes_any_more() {
    let root = Root::new(PACKAGE);
    root.install();
    fs::create_dir_all(root.at("etc/stelia/publish")).expect("a folder");
    fs::write(root.at("etc/stelia/publish/kubeconfig"), "").expect("a file");
    let calls = root.remove();
    let withdrawn = calls
        .iter()
        .position(|call| call.starts_with("systemd-run "))
        .expect("it");
    for part in [
        "--uid=stelia-publish",
        "-E STELIA_KUBECONFIG=/etc/stelia/publish/kubeconfig",
        "stelia-publish --withdraw",
    ] {
        assert!(calls[withdrawn].contains(part), "{part}: {}", calls[withdrawn]);
    }
    assert!(place(&calls, "systemctl stop stelia-publish.service") < withdrawn);
    place(&calls, "systemctl --no-reload --quiet disable stelia-publish.service");
    // The drop-in is gone, and the daemon told.
    assert!(!root.at("usr/lib/stelia").exists());
    assert!(withdrawn < place(&calls, RELOAD));
    // What the administrator brought stays.
    assert!(root.at("etc/stelia/publish/kubeconfig").exists());
}

#[test]
fn a_removal_without_a_kubeconfig_or_without_an_answer_goes_on() {
    let root = Root::new(PACKAGE);
    root.install();
    assert!(!called(&root.remove(), "systemd-run"));

    let root = Root::new(PACKAGE);
    root.install();
    fs::create_dir_all(root.at("etc/stelia/publish")).expect("a folder");
    fs::write(root.at("etc/stelia/publish/kubeconfig"), "").expect("a file");
    root.pretend("usr/bin/systemd-run", "systemd-run", 1);
    let calls = root.remove();
    assert!(called(&calls, "systemd-run "));
    place(&calls, RELOAD);
}
