use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::settings::KEYS;
use crate::{Fragment, Loaded, Settings, load};

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn without_any_file_the_defaults_hold() {
    assert_eq!(load(tree(&[]).path()).unwrap(), Loaded::default());
}

#[test]
fn a_drop_in_wins_over_the_file_and_etc_hides_usr() {
    let dir = tree(&[
        ("etc/stelia/steliad.toml", "audit-interval-s = 5\nkubelet-root = \"/a\""),
        ("usr/lib/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 6"),
        ("etc/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 7"),
    ]);
    let settings = load(dir.path()).unwrap().settings;
    assert_eq!(settings.audit_interval, Duration::from_secs(7));
    assert_eq!(settings.kubelet_root, Path::new("/a"));
}

#[test]
fn an_unknown_key_is_an_error_with_file_and_line() {
    let dir = tree(&[("etc/stelia/steliad.toml", "\nkubelet-rot = \"/a\"")]);
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("steliad.toml") && error.contains("line 2") && error.contains("kubelet-rot"),
        "{error}"
    );
}

#[test]
fn a_value_of_the_wrong_type_says_what_is_expected_and_where() {
    for (line, says) in [
        (
            "placement = 1",
            "line 3: placement = 1: expected guest, full-pcpus, spread-by-pcpus or linear",
        ),
        ("float-min-cpus = -1", "line 3: float-min-cpus = -1: expected 1 to 1024"),
        (
            "audit-interval-s = \"5\"",
            "line 3: audit-interval-s = \"5\": expected 1 to 3600",
        ),
        ("[kubelet-root]\na = 1", "kubelet-root"),
    ] {
        let dir = tree(&[("etc/stelia/steliad.toml", &format!("\n\n{line}"))]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_value_that_a_later_file_replaces_may_be_anything() {
    let dir = tree(&[
        ("etc/stelia/steliad.toml", "placement = \"best\""),
        ("run/stelia/steliad.toml.d/50-x.toml", "placement = \"linear\""),
    ]);
    let loaded = load(dir.path()).unwrap();
    assert!(loaded.origins["placement"].ends_with("50-x.toml"));
}

#[test]
fn a_value_that_is_not_allowed_says_what_is_and_in_which_file() {
    for (line, says) in [
        ("placement = \"best\"", "linear"),
        ("float-policy = \"all\"", "numa"),
        ("partition = \"\"", "isolated"),
        ("float-cpu-max = \"10 1000\"", "period"),
        ("float-min-cpus = 0", "1 to 1024"),
        ("kubelet-root = \"x\"", "absolute"),
        ("cpu-source = \"both\"", "steliad"),
        ("reserved-cpus = \"3-1\"", "CPU list"),
        ("cpu-bind-policy = \"ConstrainedBurst\"", "FullPCPUs or"),
        ("cpu-exclusive-policy = \"Default\"", "PCPULevel"),
        ("numa-topology-alignment-policy = \"Single\"", "SingleNUMANode"),
    ] {
        let dir = tree(&[("etc/stelia/steliad.toml.d/7.toml", line)]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("7.toml"), "{error}");
    }
}

#[test]
fn what_is_printed_gives_the_same_settings_and_tells_where_each_came_from() {
    let dir = tree(&[
        (
            "etc/stelia/steliad.toml",
            "placement = \"linear\"\nfloat-cpu-max = \"50000 100000\"",
        ),
        (
            "run/stelia/steliad.toml.d/50-x.toml",
            "placement = \"full-pcpus\"\npartition = \"root\"",
        ),
    ]);
    let loaded = load(dir.path()).unwrap();
    let text = loaded.print();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("placement").contains("\"full-pcpus\"") && line("placement").ends_with("50-x.toml"));
    assert!(line("float-policy").ends_with("# default"), "{text}");
    let printed = Fragment::parse(&text, Path::new("printed")).unwrap();
    assert_eq!(printed.check().unwrap().settings, loaded.settings);
}

#[test]
fn the_shipped_file_lists_every_key_with_its_default() {
    let text = fs::read_to_string("../../packaging/steliad.toml").unwrap();
    let shipped: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| line.contains(" = "))
        .collect();
    let defaults = KEYS.each_ref().map(|key| key.line(&Settings::default()));
    assert_eq!(shipped, defaults);
    assert_eq!(
        Fragment::parse(&text, Path::new("shipped")).unwrap(),
        Fragment::default()
    );
}
