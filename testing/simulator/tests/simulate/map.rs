//! README's map of a node, drawn from a simulated one.

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

#[test]
fn the_map_in_the_readme_is_the_one_that_steliactl_draws() {
    let simulation = Simulation::start(include_str!("map.toml"));
    let host = host(2, 16);
    let text = simulation.ctl(&["--root", host.path().to_str().expect("path"), "map"]);
    let (_, map) = text.split_once("\n\n").expect("a heading");
    assert!(
        map.contains("socket 1, NUMA 1, 128 GiB, L3 32.0 MiB\n L3 CPU 16 [. ]") && map.contains(" CPU 24 [C~]"),
        "{text}"
    );
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    assert!(
        fs::read_to_string(readme).expect("README.md").contains(map),
        "README.md has not\n{map}"
    );
}
