//! What the containers of a request get. kubelet shows a refusal in an event of the pod, which it rejects.

use std::collections::BTreeMap;

use crate::api::Status;
use crate::api::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest, ContainerAllocateResponse, DeviceSpec,
    Mount,
};
use stelia_cpus::text::excerpt;
use thiserror::Error;

use crate::RESOURCE;
use crate::offer::Offer;
use crate::required_files::{Paths, RequiredFiles};

/// The environment variable that has the runner's path.
const RUNNER_VARIABLE: &str = "STELIA_RUNNER";

/// The device as CDI names it: the file of [`crate::cdi`] has the same name.
pub(crate) const CDI_NAME: &str = "stelia.io/vm=devices";

/// Why containers get nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    #[error("the request names no container")]
    NoContainer,
    #[error("a container asks for {given} {RESOURCE}: a container has one VM, so it must ask for 1")]
    Count { given: usize },
    #[error("{id} is not a device of {RESOURCE}: there are {devices}")]
    Unknown { id: String, devices: usize },
    #[error("the device {id} is asked for twice")]
    Twice { id: String },
    #[error("steliad admits no VM at present: {problem}")]
    NotAdmitted { problem: String },
    #[error("a VM cannot start on this node: {problem}")]
    Files { problem: String },
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::NoContainer | Refusal::Count { .. } | Refusal::Twice { .. } => Self::invalid_argument(text),
            Refusal::Unknown { .. } => Self::not_found(text),
            Refusal::NotAdmitted { .. } | Refusal::Files { .. } => Self::failed_precondition(text),
        }
    }
}

/// What is available to containers.
pub(crate) struct Available<'a> {
    pub(crate) offer: &'a Offer,
    pub(crate) paths: &'a Paths,
    pub(crate) files: &'a RequiredFiles,
    /// Whether the container runtime can look up [`CDI_NAME`].
    pub(crate) cdi: bool,
}

/// All containers of the request get theirs, or none does.
pub(crate) fn allocate(available: &Available<'_>, request: &AllocateRequest) -> Result<AllocateResponse, Refusal> {
    if request.container_requests.is_empty() {
        return Err(Refusal::NoContainer);
    }
    if let Some(problem) = &available.offer.not_admitted {
        return Err(Refusal::NotAdmitted {
            problem: problem.clone(),
        });
    }
    let mut seen = Vec::new();
    for container in &request.container_requests {
        let id = one_device(available.offer, container)?;
        if seen.contains(&id) {
            return Err(Refusal::Twice { id: id.to_owned() });
        }
        seen.push(id);
    }
    if let Some(problem) = &available.files.problem {
        return Err(Refusal::Files {
            problem: problem.clone(),
        });
    }
    let response = container(available);
    Ok(AllocateResponse {
        container_responses: vec![response; seen.len()],
    })
}

fn one_device<'a>(offer: &Offer, request: &'a ContainerAllocateRequest) -> Result<&'a str, Refusal> {
    match request.devices_ids.as_slice() {
        [id] if offer.has(id) => Ok(id),
        [id] => Err(Refusal::Unknown {
            id: excerpt::name(id),
            devices: offer.devices().unwrap_or(0),
        }),
        ids => Err(Refusal::Count { given: ids.len() }),
    }
}

fn container(available: &Available<'_>) -> ContainerAllocateResponse {
    let mounts = [&available.paths.socket_folder, &available.paths.runner].map(|path| {
        let path = path.display().to_string();
        Mount {
            container_path: path.clone(),
            host_path: path,
            read_only: true,
        }
    });
    let devices = available.files.devices.iter().map(|path| DeviceSpec {
        container_path: path.clone(),
        host_path: path.clone(),
        permissions: "rw".to_owned(),
    });
    let runner = available.paths.runner.display().to_string();
    ContainerAllocateResponse {
        envs: BTreeMap::from([(RUNNER_VARIABLE.to_owned(), runner)]),
        mounts: mounts.into(),
        devices: devices.collect(),
        annotations: BTreeMap::new(),
        cdi_devices: available
            .cdi
            .then(|| CdiDevice {
                name: CDI_NAME.to_owned(),
            })
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(containers: &[&[&str]]) -> AllocateRequest {
        let ids = |ids: &&[&str]| ContainerAllocateRequest {
            devices_ids: ids.iter().map(ToString::to_string).collect(),
        };
        AllocateRequest {
            container_requests: containers.iter().map(ids).collect(),
        }
    }

    fn paths() -> Paths {
        Paths {
            runner: "/usr/bin/stelia-runner".into(),
            socket_folder: "/run/stelia/runner".into(),
            devices: vec!["/dev/kvm".into(), "/dev/net/tun".into()],
        }
    }

    fn asked(offer: &Offer, files: &RequiredFiles, request: &AllocateRequest) -> Result<AllocateResponse, Refusal> {
        allocate(
            &Available {
                offer,
                paths: &paths(),
                files,
                cdi: false,
            },
            request,
        )
    }

    fn good() -> (Offer, RequiredFiles) {
        let files = RequiredFiles {
            problem: None,
            devices: vec!["/dev/kvm".into()],
        };
        (Offer::healthy(4), files)
    }

    #[test]
    fn a_container_gets_the_runner_its_sockets_directory_and_the_devices_that_exist() {
        let (offer, files) = good();
        let response = asked(&offer, &files, &request(&[&["vm-3"]])).unwrap();
        let [container] = response.container_responses.as_slice() else {
            panic!("{response:?}")
        };
        assert_eq!(
            container.envs,
            BTreeMap::from([("STELIA_RUNNER".into(), "/usr/bin/stelia-runner".into())])
        );
        let mounts: Vec<(&str, &str, bool)> = container
            .mounts
            .iter()
            .map(|mount| (mount.host_path.as_str(), mount.container_path.as_str(), mount.read_only))
            .collect();
        assert_eq!(
            mounts,
            [
                ("/run/stelia/runner", "/run/stelia/runner", true),
                ("/usr/bin/stelia-runner", "/usr/bin/stelia-runner", true)
            ]
        );
        let [device] = container.devices.as_slice() else {
            panic!("{container:?}")
        };
        assert_eq!(
            (device.host_path.as_str(), device.permissions.as_str()),
            ("/dev/kvm", "rw")
        );
        assert_eq!(device.host_path, device.container_path);
        assert!(container.annotations.is_empty() && container.cdi_devices.is_empty());
    }

    proptest! {
        #[test]
        fn every_container_has_one_listed_device_or_nobody_gets_anything(
            containers in prop::collection::vec(prop::collection::vec("(vm-)?[0-9a-z]{0,2}", 0..3), 0..4),
            devices in 0_u32..12,
        ) {
            let offer = Offer::healthy(devices);
            let (_, files) = good();
            let request = AllocateRequest {
                container_requests: containers
                    .iter()
                    .map(|ids| ContainerAllocateRequest { devices_ids: ids.clone() })
                    .collect(),
            };
            let listed: Vec<String> = offer.list().unwrap().devices.into_iter().map(|device| device.id).collect();
            let mut all: Vec<&String> = containers.iter().flatten().collect();
            let count = all.len();
            all.sort();
            all.dedup();
            let good = !containers.is_empty()
                && containers.iter().all(|ids| ids.len() == 1 && listed.contains(&ids[0]))
                && all.len() == count;
            match asked(&offer, &files, &request) {
                Ok(response) => {
                    prop_assert!(good);
                    prop_assert_eq!(response.container_responses.len(), containers.len());
                }
                Err(_) => prop_assert!(!good),
            }
        }
    }
}
