//! What the scriptlets of steliad's .rpm do.

use std::fs;

use crate::root::{Root, called, place};

const BUS_RELOADS: &str =
    "busctl --quiet call org.freedesktop.DBus /org/freedesktop/DBus org.freedesktop.DBus ReloadConfig";
const INSERTS: &str = "semodule -n -s targeted -X 200 -i /usr/share/selinux/packages/steliad.pp.bz2";

#[test]
fn a_first_install_asks_the_preset_tells_the_bus_and_starts_what_is_enabled() {
    let calls = Root::new("steliad").install();
    let preset = "systemctl --no-reload --quiet preset steliad-runner.socket steliad-kubelet.path steliad-device-plugin.path steliad.service";
    let reload = place(&calls, "systemctl daemon-reload");
    assert!(place(&calls, preset) < reload);
    assert!(reload < place(&calls, BUS_RELOADS));
    let units = preset.split_once("preset ").expect("units").1;
    for unit in units.split(' ') {
        assert!(
            place(&calls, BUS_RELOADS) < place(&calls, &format!("systemctl start {unit}")),
            "{unit}"
        );
    }
    assert!(!called(&calls, "systemctl stop"));
    place(&calls, "journalctl --update-catalog");
    // No SELinux here: nothing of it is touched.
    assert!(!called(&calls, "semodule") && !called(&calls, "restorecon") && !called(&calls, "load_policy"));
}

#[test]
fn what_the_preset_left_disabled_is_not_started() {
    let root = Root::new("steliad");
    let systemctl = "#!/bin/sh\necho \"systemctl $*\" >> /calls\ncase \"$*\" in *is-enabled*) exit 1 ;; esac\n";
    fs::write(root.at("usr/bin/systemctl"), systemctl).expect("systemctl");
    let calls = root.install();
    assert!(
        called(&calls, "systemctl --quiet is-enabled") && !called(&calls, "systemctl start"),
        "{calls:?}"
    );
}

#[test]
fn an_upgrade_restarts_the_daemon_stops_nothing_and_presets_nothing() {
    let root = Root::with_selinux("steliad");
    root.install();
    let calls = root.upgrade();
    let quiet = place(&calls, "systemctl try-restart steliad-quiet.service");
    assert!(place(&calls, "systemctl daemon-reload") < quiet);
    let daemon = place(&calls, "systemctl try-restart steliad.service");
    assert!(quiet < daemon && daemon < place(&calls, "systemctl try-restart steliad-device-plugin.service"));
    place(&calls, INSERTS);
    for never in [
        "systemctl stop",
        "systemctl --no-reload",
        "semodule -n -s targeted -X 200 -r",
        "steliad ",
        "steliad-quiet ",
    ] {
        assert!(!called(&calls, never), "{never}: {calls:?}");
    }
}

#[test]
fn a_directory_that_a_container_runtime_made_in_the_runners_place_is_replaced_and_removed() {
    let root = Root::new("steliad");
    let runner = root.at("usr/bin/stelia-runner");
    fs::create_dir(&runner).expect("directory");
    root.install();
    assert!(runner.is_file());
    root.remove();
    fs::create_dir(&runner).expect("directory");
    root.install();
    assert!(runner.is_file());
}

#[test]
fn a_removal_stops_what_starts_the_daemon_first_and_gives_the_host_its_cpus_and_interrupts_back() {
    let root = Root::new("steliad");
    root.install();
    let calls = root.remove();
    let stops = "systemctl stop steliad-metrics.timer steliad-kubelet.path steliad-runner.socket steliad-kubelet.service steliad.service";
    let plugin = place(
        &calls,
        "systemctl stop steliad-device-plugin.path steliad-device-plugin.service",
    );
    assert!(plugin < place(&calls, stops));
    let release = place(&calls, "steliad --release-host");
    assert!(place(&calls, stops) < release);
    let stops_quiet = place(&calls, "systemctl stop steliad-quiet.socket steliad-quiet.service");
    assert!(release < stops_quiet && stops_quiet < place(&calls, "steliad-quiet --restore"));
    assert_eq!(
        calls.iter().filter(|call| call.starts_with("systemctl stop")).count(),
        3
    );
    let disable = "systemctl --no-reload --quiet disable steliad-metrics.timer steliad-runner.socket steliad-kubelet.path steliad-device-plugin.path steliad.service";
    let reload = place(&calls, "systemctl daemon-reload");
    assert!(release < place(&calls, disable) && place(&calls, disable) < reload);
    place(
        &calls,
        "systemctl reset-failed steliad.service steliad-quiet.service steliad-kubelet.service steliad-device-plugin.service",
    );
    place(&calls, "journalctl --update-catalog");
    assert!(reload < place(&calls, BUS_RELOADS));
    for directory in [
        "etc/stelia",
        "usr/libexec/stelia",
        "usr/share/steliad",
        "usr/share/doc/steliad",
    ] {
        assert!(!root.at(directory).exists(), "{directory} is left");
    }
}

#[test]
fn a_removal_leaves_what_the_administrator_wrote() {
    let root = Root::new("steliad");
    root.install();
    fs::create_dir_all(root.at("etc/stelia/steliad.toml.d")).expect("directory");
    fs::write(
        root.at("etc/stelia/steliad.toml.d/mine.toml"),
        "placement = \"linear\"\n",
    )
    .expect("drop-in");
    fs::write(root.at("etc/stelia/steliad.toml"), "float-policy = \"node\"\n").expect("configuration");
    root.upgrade();
    assert_eq!(
        fs::read_to_string(root.at("etc/stelia/steliad.toml")).expect("kept"),
        "float-policy = \"node\"\n"
    );
    root.remove();
    assert!(root.at("etc/stelia/steliad.toml.d/mine.toml").exists());
    assert!(root.at("etc/stelia/steliad.toml.rpmsave").exists());
}

#[test]
fn with_selinux_the_module_is_in_and_the_files_labelled_before_anything_starts() {
    let root = Root::with_selinux("steliad");
    fs::create_dir_all(root.at("run/stelia/runner")).expect("directory");
    fs::create_dir_all(root.at("run/stelia/publish")).expect("directory");
    fs::write(root.at("run/stelia/publish/node.json"), "{}").expect("a file");
    let calls = root.install();
    let inserted = place(&calls, INSERTS);
    let loaded = place(&calls, "load_policy ");
    let labelled = place(&calls, "restorecon -R /usr/libexec/stelia");
    let socket = place(&calls, "restorecon -R /run/stelia");
    let started = place(&calls, "systemctl start steliad-runner.socket");
    assert!(
        inserted < loaded && loaded < labelled && labelled < socket && socket < started,
        "{calls:#?}"
    );

    let calls = root.remove();
    let stopped = calls
        .iter()
        .position(|call| call.starts_with("systemctl stop"))
        .expect("stopped");
    assert!(stopped < place(&calls, "semodule -n -s targeted -X 200 -r steliad"));
    // Pods have it mounted.
    assert!(root.at("run/stelia/runner").exists() && root.at("run/stelia/publish").exists());
    assert!(!root.at("run/stelia/publish/node.json").exists());
}

#[test]
fn an_image_that_is_built_without_selinux_in_force_gets_the_module_all_the_same() {
    let root = Root::with_selinux("steliad");
    root.pretend("usr/bin/selinuxenabled", "selinuxenabled", 1);
    let calls = root.install();
    place(&calls, INSERTS);
    assert!(!called(&calls, "load_policy") && !called(&calls, "restorecon"));
}

#[test]
fn a_module_that_does_not_load_is_no_reason_to_fail() {
    let root = Root::with_selinux("steliad");
    root.pretend("usr/bin/semodule", "semodule", 1);
    place(&root.install(), "systemctl start steliad.service");
    root.remove();
}
