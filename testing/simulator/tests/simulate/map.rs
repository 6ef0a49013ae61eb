//! README's picture of a node, drawn from a simulated one, which the test compares with the file; and the map as text.

use std::fs;
use std::path::Path;

use crate::Simulation;

/// The host's files that the simulation lacks: two L3 caches a socket, 128 GiB a NUMA node.
pub(crate) fn host(sockets: u32, cpus_a_socket: u32) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("directory");
    let write = |path: String, text: String| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        fs::write(path, text).expect("file");
    };
    write("proc/sys/kernel/hostname".into(), "worker-1\n".into());
    write("sys/devices/system/node/online".into(), format!("0-{}\n", sockets - 1));
    for node in 0..sockets {
        let file = format!("sys/devices/system/node/node{node}/meminfo");
        write(file, format!("Node {node} MemTotal: {} kB\n", 128 << 20));
    }
    let half = cpus_a_socket / 2;
    for cpu in 0..sockets * cpus_a_socket {
        let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3");
        let first = cpu / half * half;
        write(format!("{cache}/level"), "3\n".into());
        write(format!("{cache}/size"), "32768K\n".into());
        write(
            format!("{cache}/shared_cpu_list"),
            format!("{first}-{}\n", first + half - 1),
        );
    }
    root
}

/// The picture as it was drawn at another time.
fn undated(picture: &str) -> String {
    let (before, after) = picture.split_once(" UTC, ").expect("a time");
    let before = &before[..before.len() - "2000-01-01 00:00:00".len()];
    format!("{before}2026-01-01 00:00:00 UTC, {after}")
}

#[test]
fn the_picture_in_the_documentation_is_the_one_that_steliactl_draws() {
    let simulation = Simulation::start(include_str!("map.toml"));
    let host = host(2, 16);
    let host = host.path().to_str().expect("path");
    let drawn = undated(&simulation.ctl(&["--root", host, "map", "--svg"]));
    assert!(
        drawn.starts_with("<svg") && drawn.matches("<rect").count() >= 32,
        "{drawn:.200}"
    );
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/map.svg");
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        fs::write(&kept, &drawn).expect("docs/map.svg");
    }
    let same = fs::read_to_string(&kept).is_ok_and(|kept| kept == drawn);
    assert!(
        same,
        "docs/map.svg is not what is drawn: STELIA_WRITE_DOCS=1 cargo test --test simulate map"
    );

    let text = simulation.ctl(&["--root", host, "map"]);
    assert!(
        text.contains("socket 1, NUMA 1, 128 GiB, L3 32.0 MiB\n L3 CPU 16 [. ]") && text.contains(" CPU 24 [C~]"),
        "{text}"
    );
    let refused = simulation.steliactl(&["map", "--json", "--svg"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
