//! The other containers of an instance's pod.

use stelia_kernel::System;
use stelia_kernel::containers::{LiveContainer, live_containers_among, sibling_containers};
use stelia_kubelet::ContainerCgroup;
use stelia_model::record::Record;

/// Empty where they cannot be read: then the pod's shared pool stays unknown.
pub(super) fn of(system: &System, record: &Record) -> Vec<LiveContainer> {
    let cgroups = &*system.cgroups;
    let own = ContainerCgroup::parse(record.origin.as_str()).map(|container| container.container_id);
    let found = sibling_containers(cgroups, &record.origin)
        .and_then(|found| live_containers_among(cgroups, &system.run, found, own.as_deref()));
    let found = found.inspect_err(|error| tracing::debug!("the containers of pod {}: {error}", record.pod));
    found.unwrap_or_default()
}
