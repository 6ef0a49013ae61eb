//! Where the VMs of a view have their memory and devices.

use std::path::Path;

use stelia_kernel::cgroup::Cgroups;
use stelia_kernel::locality::{Localities, MeasuredVm, Reading};
use stelia_kubelet::PodUid;
use stelia_model as model;

/// A VM, as the reading of its locality needs it.
fn vm(instance: &model::Instance) -> MeasuredVm<'_> {
    MeasuredVm {
        pod: &instance.pod,
        container: &instance.container,
        cpus: &instance.exclusive,
        mems: &instance.mems,
        scope: &instance.scope,
        origin: &instance.origin,
    }
}

/// Where the wanted instances of this view have their memory and devices. For each instance two files are read, two more for each size of huge pages,
/// and on a host with VFIO devices the runtime's configuration.
pub fn localities(
    cgroups: &dyn Cgroups,
    view: &model::Node,
    root: &Path,
    kubelet: &Path,
    wanted: impl Fn(&PodUid) -> bool,
) -> Localities {
    let reading = Reading::new(cgroups, &view.topology, root, kubelet);
    let instances = view.instances.values().filter(|instance| wanted(&instance.pod));
    reading.of(instances.map(|instance| vm(instance)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use stelia_cpus::testing::Shape;
    use stelia_kernel::cgroup::{CgroupPath, KernelCgroups};
    use stelia_kernel::locality::{Device, Locality, MemoryByNode, NodeMemory};

    use super::*;

    const DEVICES: &[u8] =
        include_bytes!("../../tests/data/kubelet-checkpoints/k136-gate-off/08-device/kubelet_internal_checkpoint");
    const POD: &str = "ce32ebd2-f905-449e-b74b-4231a84b88e1";

    fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The article's VM in small: CPUs on node 1, a GPU and some memory on node 0.
    fn node(root: &Path) -> model::Node {
        write(root, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n");
        let cgroup = |name: &str, anon: &str, huge: &str| {
            write(
                root,
                &format!("cgroup/{name}/memory.numa_stat"),
                format!("anon {anon}\n"),
            );
            write(root, &format!("cgroup/{name}/hugetlb.2MB.numa_stat"), huge);
            // The kernel does not have pages of this size, so their file is not read.
            write(
                root,
                &format!("cgroup/{name}/hugetlb.1GB.numa_stat"),
                "total=9 N0=9 N1=0\n",
            );
        };
        cgroup("stelia.slice/vm.scope", "N0=5 N1=70", "total=40 N0=0 N1=40\n");
        cgroup("kubepods/vm", "N0=1 N1=2", "total=4 N0=4 N1=0\n");
        write(root, "kubelet/device-plugins/kubelet_internal_checkpoint", DEVICES);
        let shape = Shape {
            nodes: 2,
            cores: 2,
            threads: 1,
            interleaved: false,
        };
        let pod = PodUid::parse(POD).unwrap();
        let instance = model::Instance {
            container: "instance".to_owned(),
            exclusive: "2-3".parse().unwrap(),
            mems: [1].into(),
            scope: CgroupPath::parse("/stelia.slice/vm.scope").unwrap(),
            origin: CgroupPath::parse("/kubepods/vm").unwrap(),
            ..crate::engine::registered(pod.clone())
        };
        model::Node {
            topology: Arc::new(shape.topology()),
            instances: [(pod, Arc::new(instance))].into(),
            ..model::Node::default()
        }
    }

    #[test]
    fn memory_is_that_of_the_scope_and_of_the_origin_and_devices_are_the_containers() {
        let root = tempfile::tempdir().unwrap();
        let view = node(root.path());
        let read = |view: &model::Node| {
            let cgroups = KernelCgroups::new(root.path().join("cgroup"));
            localities(&cgroups, view, root.path(), &root.path().join("kubelet"), |_| true)
        };
        let memory = |anon, huge| NodeMemory {
            anon,
            huge,
            ..NodeMemory::default()
        };
        let gpus = Device {
            name: "nvidia.com/gpu".to_owned(),
            node: Some(0),
            count: 2,
        };
        let there = Locality {
            nodes: [1].into(),
            cpus: [(1, 2)].into(),
            allowed: [1].into(),
            memory: [(0, memory(6, 4)), (1, memory(72, 40))].into(),
            devices: vec![gpus],
            ..Locality::default()
        };
        let expected = Localities {
            instances: [(POD.to_owned(), there.clone())].into(),
            devices_unknown: None,
        };
        assert_eq!(read(&view), expected);

        // With a file that cannot be used no VM has devices, and the answer says why.
        let path = "kubelet/device-plugins/kubelet_internal_checkpoint";
        write(
            root.path(),
            path,
            String::from_utf8_lossy(DEVICES).replace("\"0\":", "\"1\":"),
        );
        let doubtful = read(&view);
        assert!(doubtful.devices_unknown.unwrap().contains(path));
        assert_eq!(doubtful.instances[POD].devices, []);
        fs::remove_file(root.path().join(path)).unwrap();
        assert_eq!(read(&view).devices_unknown, None);

        // An instance that ends meanwhile holds nothing.
        fs::remove_dir_all(root.path().join("cgroup")).unwrap();
        assert_eq!(read(&view).instances[POD].memory, MemoryByNode::new());
    }
}
