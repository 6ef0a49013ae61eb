//! Whether the memory and devices of the running VMs are on the NUMA nodes of their CPUs.

use std::path::Path;

use stelia_cpus::Topology;
use stelia_kernel::cgroup::{CgroupPath, Cgroups, KernelCgroups};
use stelia_kernel::locality::{Localities, MeasuredVm, Reading};
use stelia_model::record::Record;

use super::checks::{Finding, advice, ok, warning};
use crate::shared::kernel::Roots;
use crate::shared::kernel::locality::add_vfio_devices;
use crate::shared::output::counted;

/// Reads every scope whose record can be used; `root` is `/`.
pub(crate) fn read(root: &Path, topology: &Topology, kubelet: &Path) -> Localities {
    let roots = Roots::below(root);
    let cgroups = KernelCgroups::new(&roots.cgroup);
    let slice = CgroupPath::slice();
    let names = cgroups.children(&slice).unwrap_or_default();
    let records = names.iter().filter_map(|name| {
        let scope = slice.child(name);
        let record = Record::parse(&cgroups.attributes(&scope).ok()?).ok()?;
        Some((scope, record))
    });
    let records: Vec<(CgroupPath, Record)> = records.collect();
    let whose = records.iter().map(|(scope, record)| MeasuredVm {
        pod: &record.pod,
        container: &record.container,
        cpus: &record.exclusive,
        mems: &record.mems,
        scope,
        origin: &record.origin,
    });
    let mut localities = Reading::new(&cgroups, topology, root, kubelet).of(whose);
    for (scope, record) in &records {
        if let Some(locality) = localities.instances.get_mut(record.pod.as_str()) {
            add_vfio_devices(locality, topology, &roots, scope.as_str());
        }
    }
    localities
}

/// A line for each VM with remote memory or devices, or one line if there is none.
pub(crate) fn checks(localities: &Localities) -> Vec<Finding> {
    let mut checks: Vec<Finding> = localities
        .instances
        .iter()
        .filter_map(|(pod, locality)| {
            let memory = locality.memory_problem();
            let cure = match memory {
                Some(_) => locality.memory_cure(),
                None => "a topologyManagerPolicy other than none, then restart the container where its NUMA nodes have such \
                         devices free (/usr/share/doc/steliad/locality.md)"
                    .to_owned(),
            };
            let problems: Vec<String> = memory.into_iter().chain(locality.devices_problem()).collect();
            (!problems.is_empty()).then(|| warning(format!("{pod}: {}", problems.join("; ")), cure))
        })
        .collect();
    let attached = localities.instances.iter();
    let attached = attached.filter_map(|(pod, locality)| Some(format!("{pod}: {}", locality.attached_note()?)));
    checks.extend(attached.map(|found| {
        let cure = "memoryManagerPolicy: Static, with all memory of these nodes in kubelet's reservedMemory and kubeReserved, keeps a VM \
                    off them (/usr/share/doc/steliad/locality.md)";
        advice(found, cure)
    }));
    if let Some(why) = &localities.devices_unknown {
        let found = format!("where devices are is not known: {why}");
        let cure = "run it as root; a file whose checksum is wrong: drain the node, remove it, start kubelet";
        checks.push(warning(found, cure));
    }
    if checks.is_empty() {
        let found = match localities.instances.len() {
            0 => "no VM is registered here".to_owned(),
            count => format!("{}, none with remote memory or devices", counted(count as u64, "VM")),
        };
        checks.push(ok(found));
    }
    checks
}

#[cfg(test)]
mod tests {
    use stelia_kernel::locality::{Device, Locality, NodeMemory};

    use super::*;
    use crate::check::doctor::Verdict;

    fn vm(anon: [u64; 2], device: u32) -> Locality {
        let node = |(node, anon): (u32, u64)| {
            let memory = NodeMemory {
                anon,
                ..NodeMemory::default()
            };
            (node, memory)
        };
        let device = Device {
            name: "nic".to_owned(),
            node: Some(device),
            count: 1,
        };
        Locality {
            nodes: [0].into(),
            allowed: [].into(),
            memory: (0..).zip(anon).map(node).collect(),
            devices: vec![device],
            ..Locality::default()
        }
    }

    #[test]
    fn each_vm_that_is_away_has_its_line_and_the_others_have_none() {
        let (half, whole) = (512 << 20, 1 << 30);
        let vms = [
            ("a", vm([half, half], 0)),
            ("b", vm([whole, 0], 0)),
            ("c", vm([whole, 0], 1)),
        ];
        let mut localities = Localities {
            instances: vms.into_iter().map(|(pod, vm)| (pod.to_owned(), vm)).collect(),
            devices_unknown: None,
        };
        let told = checks(&localities);
        let found: Vec<&str> = told.iter().map(|check| check.found.as_str()).collect();
        assert_eq!(
            found,
            [
                "a: 50 % (512 MiB of 1.0 GiB) of its memory is remote from its CPUs on NUMA node 0: 512 MiB on 1",
                "c: devices are remote from its CPUs on NUMA node 0: nic on 1",
            ]
        );
        let bad = |check: &Finding| check.verdict == Verdict::Warning && !check.cure.is_empty();
        assert!(told.iter().all(bad), "{told:?}");

        localities.instances.retain(|pod, _| pod == "b");
        assert_eq!(checks(&localities), [ok("1 VM, none with remote memory or devices")]);
        localities.devices_unknown = Some("x".to_owned());
        assert_eq!(checks(&localities)[0].verdict, Verdict::Warning);
    }
}
