//! Nodes to draw, and their sysfs.

use std::fs;

use stelia_cpus::CpuSet;
use tempfile::TempDir;

use super::super::{Map, gather};
use crate::shared::daemon::Selected;
use crate::shared::daemon::node::Description;
use crate::shared::daemon::node::testing::described;
use crate::shared::kernel::Roots;

/// A host's files.
pub(super) struct Host(TempDir);

impl Host {
    pub(super) fn write(&self, path: &str, text: &str) {
        crate::tests::fixtures::write(self.0.path(), path, text);
    }

    pub(super) fn map_of(&self, description: &Description) -> Map {
        gather(&Selected::all(description.clone()), &Roots::below(self.0.path()))
    }
}

/// The host `worker-1` with so many CPUs to a NUMA node, of 2 GiB each, and to an L3 cache, in order.
pub(super) fn host(cpus: u32, a_node: u32, a_cache: u32) -> Host {
    let root = tempfile::tempdir().unwrap();
    let write = |path: String, text: String| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/sys/kernel/hostname".to_owned(), "worker-1\n".to_owned());
    write(
        "sys/devices/system/node/online".to_owned(),
        format!("0-{}\n", cpus / a_node - 1),
    );
    for node in 0..cpus / a_node {
        let file = format!("sys/devices/system/node/node{node}/meminfo");
        write(file, format!("Node {node} MemTotal: 2097152 kB\n"));
    }
    for cpu in 0..cpus {
        let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3");
        let first = cpu / a_cache * a_cache;
        let shared: CpuSet = (first..first + a_cache).collect();
        write(format!("{cache}/level"), "3\n".to_owned());
        write(format!("{cache}/shared_cpu_list"), format!("{shared}\n"));
        write(format!("{cache}/size"), "8192K\n".to_owned());
    }
    Host(root)
}

/// The map of a node of whose host nothing is known.
pub(super) fn map_of(description: &Description) -> Map {
    gather(
        &Selected::all(description.clone()),
        &Roots::below(std::path::Path::new("/nonexistent")),
    )
}

/// A node with siblings, whose first 8 CPUs are reserved, or 2 of less than 16; the others are of so many VMs, in
/// every state, with names of this length.
pub(super) fn busy(cpus: u32, sockets: u32, nodes: u32, vms: u32, name: usize) -> Description {
    let (a_socket, a_node) = (cpus / sockets, cpus / nodes);
    let reserved = if cpus < 16 { 2 } else { 8 };
    let topology = (0..cpus).map(|cpu| {
        let (socket, node, core) = (cpu / a_socket, cpu / a_node, cpu % a_socket / 2);
        format!(r#""{cpu}":{{"package":{socket},"core":{core},"node":{node}}}"#)
    });
    let uid = |vm: u32| format!("{vm:08x}-64a5-4f8d-8574-41363cbaf8e5");
    let of = |vm: u32| {
        let first = |vm: u32| reserved + (cpus - reserved) * vm / vms;
        (first(vm)..first(vm + 1)).collect::<CpuSet>()
    };
    let states = ["isolated", "pinned", "waiting", "shared", "releasing", "isolated"];
    let instances = (0..vms).map(|vm| {
        let state = states[vm as usize % states.len()];
        let degraded = if vm % 7 == 5 {
            r#"{"code":"no-assignment","text":"kubelet gave CPU 2 away"}"#
        } else {
            ""
        };
        format!(
            r#""{}":{{"container":"vm","state":"{state}","degraded":[{degraded}],"exclusive":"{}","float":"0","vcpus":[],
            "pod_namespace":"team","pod_name":"{vm:x<name$}"}}"#,
            uid(vm),
            of(vm)
        )
    });
    let text = format!(
        r#"{{"version":"0","node":{{"pool":"","topology":{{"cpus":{{{}}}}},"instances":{{{}}}}},"kubelet_config":{{"reservedSystemCPUs":"0-{}"}}}}"#,
        topology.collect::<Vec<_>>().join(","),
        instances.collect::<Vec<_>>().join(","),
        reserved - 1,
    );
    described(&text)
}
