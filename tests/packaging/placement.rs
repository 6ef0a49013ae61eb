//! The package stelia-placement: its scripts touch its own unit and nothing of a node, and what the administrator brought stays.

use std::fs;
use std::path::Path;

use crate::root::{Root, called, place, scriptlet};
use crate::{deb, run, text};

const PACKAGE: &str = "stelia-placement";
const START: &str = "systemctl start stelia-placement.service";

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

#[test]
fn the_scripts_are_the_committed_ones_and_name_no_unit_but_their_own() {
    for (tag, file) in [("POSTIN", "post"), ("PREUN", "preun"), ("POSTUN", "postun")] {
        let committed = repository(&format!("packaging/cluster/placement/rpm/{file}"));
        assert_eq!(scriptlet(PACKAGE, tag).trim(), committed.trim(), "{file}");
        assert!(
            !committed.contains("steliad.service") && !committed.contains("slice"),
            "{file}"
        );
    }
    let control = tempfile::tempdir().expect("a folder");
    run(&["dpkg-deb", "-e", text(&deb(PACKAGE)), text(control.path())]);
    for file in ["postinst", "prerm", "postrm"] {
        let packaged = fs::read_to_string(control.path().join(file)).expect("a script");
        let committed = repository(&format!("packaging/cluster/placement/debian/{file}"));
        assert_eq!(packaged.trim(), committed.trim(), "{file}");
        assert!(
            !packaged.contains("steliad.service") && !packaged.contains("slice"),
            "{file}"
        );
        run(&["sh", "-n", text(&control.path().join(file))]);
    }
}

#[test]
fn an_install_makes_the_user_and_starts_what_the_preset_enabled() {
    let calls = Root::new(PACKAGE).install();
    let users = place(&calls, "systemd-sysusers stelia-placement.conf");
    assert!(users < place(&calls, "systemd-tmpfiles --create stelia-placement.conf"));
    place(&calls, "systemctl --no-reload --quiet preset stelia-placement.service");
    assert!(place(&calls, "systemctl daemon-reload") < place(&calls, START));
    assert!(!called(&calls, "systemctl stop") && !called(&calls, "systemctl restart"));
}

#[test]
fn with_selinux_its_program_is_labelled_before_it_starts() {
    let calls = Root::with_selinux(PACKAGE).install();
    let labelled = "restorecon -R /usr/libexec/stelia/stelia-placement /etc/stelia/placement";
    assert!(place(&calls, labelled) < place(&calls, START));
    // The module is steliad's.
    assert!(!called(&calls, "semodule"));
}

#[test]
fn an_upgrade_restarts_it() {
    let root = Root::new(PACKAGE);
    root.install();
    let calls = root.upgrade();
    place(&calls, "systemctl try-restart stelia-placement.service");
    for never in ["systemctl stop", "systemctl --no-reload"] {
        assert!(!called(&calls, never), "{never}: {calls:?}");
    }
}

#[test]
fn a_removal_stops_it_and_keeps_the_kubeconfig() {
    let root = Root::new(PACKAGE);
    root.install();
    fs::create_dir_all(root.at("etc/stelia/placement")).expect("a folder");
    fs::write(root.at("etc/stelia/placement/kubeconfig"), "").expect("a file");
    let calls = root.remove();
    let stopped = place(&calls, "systemctl stop stelia-placement.service");
    assert!(stopped < place(&calls, "systemctl --no-reload --quiet disable stelia-placement.service"));
    assert!(root.at("etc/stelia/placement/kubeconfig").exists());
    assert!(!root.at("usr/share/doc/stelia-placement").exists());
}
