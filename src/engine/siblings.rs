//! The containers of one pod that run, and what each says of itself: in its cgroup, and in what the runtime wrote down.

use std::path::Path;

use super::System;
use super::container::{beside, of_pod, whole};
use super::observe::{optional, populated};
use super::runtime;
use crate::cgroup::{CgroupError, CgroupPath, Cgroups, File};
use crate::plan::Record;
use crate::plan::admission::LiveContainer;
use stelia_kubelet::{ContainerCgroup, CpuRequest, PodUid};

/// The containers of a pod that have processes, but for the one with the id `own`. `run` is `/run`.
///
/// # Errors
/// A cgroup that is there cannot be read.
pub fn live_containers(
    cgroups: &dyn Cgroups,
    run: &Path,
    pod: &PodUid,
    own: Option<&str>,
) -> Result<Vec<LiveContainer>, CgroupError> {
    live(cgroups, run, of_pod(cgroups, pod)?, own)
}

pub(super) fn live(
    cgroups: &dyn Cgroups,
    run: &Path,
    found: Vec<(CgroupPath, ContainerCgroup)>,
    own: Option<&str>,
) -> Result<Vec<LiveContainer>, CgroupError> {
    let mut live = Vec::new();
    for (path, container) in found {
        if own == Some(container.container_id.as_str()) || !populated(cgroups, &path)? {
            continue;
        }
        // What the kernel prints parses; an empty list is one that nobody restricted (the pod's sandbox).
        let cpus = optional(cgroups.read(&path, File::Cpus))?.and_then(|text| text.parse().ok());
        let written = runtime::told(run, &container.container_id);
        live.push(LiveContainer {
            name: written.name,
            cpus: cpus.unwrap_or_default(),
            request: request(cgroups, &path, written.shares)?,
            id: container.container_id,
        });
    }
    Ok(live)
}

/// What a container requests, by its cgroup and the `cpu.shares` in the runtime's configuration.
pub(super) fn request(
    cgroups: &dyn Cgroups,
    container: &CgroupPath,
    shares: Option<u64>,
) -> Result<CpuRequest, CgroupError> {
    // With crun its processes are one level below, in a cgroup whose weight is nobody's choice.
    let weight = optional(cgroups.read(&whole(container), File::CpuWeight))?;
    Ok(CpuRequest {
        shares,
        weight: weight.and_then(|text| text.parse().ok()),
    })
}

/// The other containers of an instance's pod. A pod that cannot be read tells nothing, which moves nobody.
pub(super) fn of(system: &System, record: &Record) -> Vec<LiveContainer> {
    let cgroups = &*system.cgroups;
    let own = ContainerCgroup::parse(record.origin.as_str()).map(|container| container.container_id);
    let found = beside(cgroups, &record.origin).and_then(|found| live(cgroups, &system.run, found, own.as_deref()));
    let told = found.inspect_err(|error| tracing::debug!("the containers of pod {}: {error}", record.pod));
    told.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_containers_that_run_are_found_with_their_names() {
        let root = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let pod = "cgroup/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";
        for (id, populated, cpus) in [("a1", 1, "2-3"), ("b2", 1, "2"), ("c3", 0, "3"), ("d4", 1, "")] {
            let scope = format!("{pod}/cri-containerd-{id}.scope");
            write(
                &format!("{scope}/cgroup.events"),
                &format!("populated {populated}\nfrozen 0\n"),
            );
            write(&format!("{scope}/cpuset.cpus"), &format!("{cpus}\n"));
            write(&format!("{scope}/cpu.weight"), "118\n");
        }
        // Made by crun: the processes are one level below the scope that has the weight.
        let inside = format!("{pod}/cri-containerd-b2.scope/container");
        for (file, text) in [
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cpuset.cpus", "2\n"),
            ("cpu.weight", "100\n"),
        ] {
            write(&format!("{inside}/{file}"), text);
        }
        write(
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/b2/config.json",
            r#"{"annotations":{"io.kubernetes.cri.container-name":"sidecar"},"linux":{"resources":{"cpu":{"shares":3072}}}}"#,
        );
        let cgroups = crate::cgroup::KernelCgroups::new(root.path().join("cgroup"));
        let uid = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let live = live_containers(&cgroups, &root.path().join("run"), &uid, Some("a1")).unwrap();
        let container = |id: &str, name: Option<&str>, cpus: &str, shares| LiveContainer {
            id: id.into(),
            request: CpuRequest {
                shares,
                weight: Some(118),
            },
            name: name.map(str::to_owned),
            cpus: cpus.parse().unwrap(),
        };
        // c3 has ended; d4 is the sandbox.
        assert_eq!(
            live,
            [
                container("b2", Some("sidecar"), "2", Some(3072)),
                container("d4", None, "", None)
            ]
        );
    }
}
