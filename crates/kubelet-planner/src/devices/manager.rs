//! kubelet's operations on its devices.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::DeviceRefusal;
use super::state::{DeviceIds, DeviceState};
use crate::merge::{Merged, NodeMask};
use crate::pod::{Container, ContainerKind};

/// Devices of one resource that a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Chosen {
    /// As the plugin names them.
    pub ids: BTreeSet<String>,
    /// Whether kubelet has no choice. Otherwise the plugin's preference, or chance, may select others of the same
    /// group.
    pub certain: bool,
    /// These, and those that may be selected instead.
    pub among: BTreeSet<String>,
}

/// The device manager while it admits one pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceManager {
    /// The devices of the pod's init containers that its later containers may use.
    reusable: DeviceIds,
}

impl DeviceManager {
    /// Allocates a container's devices by resource, those at the hint's NUMA nodes first. Extended resources that no
    /// plugin offers are not the device manager's.
    ///
    /// # Errors
    /// The container is rejected because of the named resource. Its devices of other resources stay in the state until
    /// kubelet's next clean-up.
    pub(crate) fn allocate(
        &mut self,
        state: &mut DeviceState,
        pod: &str,
        container: &Container,
        hint: Merged,
    ) -> Result<BTreeMap<String, Chosen>, (String, DeviceRefusal)> {
        let mut all = BTreeMap::new();
        for (resource, count) in &container.resources.limits.devices {
            if !state.knows(resource) {
                continue;
            }
            let chosen = self.choose(state, pod, &container.name, resource, *count, hint);
            let chosen = chosen.map_err(|refusal| (resource.clone(), refusal))?;
            if chosen.ids.is_empty() {
                continue;
            }
            let containers = state.entries.entry(pod.to_owned()).or_default();
            let given = containers.entry(container.name.clone()).or_default();
            given.insert(resource.clone(), chosen.ids.clone());
            all.insert(resource.clone(), chosen);
        }
        let containers = state.entries.get(pod);
        let given = containers.and_then(|containers| containers.get(&container.name));
        for (resource, ids) in given.into_iter().flatten() {
            let reusable = self.reusable.entry(resource.clone()).or_default();
            match container.kind {
                ContainerKind::Init => reusable.extend(ids.iter().cloned()),
                ContainerKind::Sidecar | ContainerKind::App => reusable.retain(|id| !ids.contains(id)),
            }
        }
        Ok(all)
    }

    pub(super) fn reusable(&self, resource: &str) -> BTreeSet<&str> {
        let ids = self.reusable.get(resource).into_iter().flatten();
        ids.map(String::as_str).collect()
    }

    fn choose(
        &self,
        state: &DeviceState,
        pod: &str,
        container: &str,
        resource: &str,
        count: u64,
        hint: Merged,
    ) -> Result<Chosen, DeviceRefusal> {
        let had = state.entry(pod, container, resource);
        if let Some(had) = had.filter(|had| had.len() as u64 != count) {
            return Err(DeviceRefusal::Changed {
                pod: pod.to_owned(),
                container: container.to_owned(),
                resource: resource.to_owned(),
                had: had.len(),
                requested: count,
            });
        }
        if !state.resources.contains_key(resource) {
            return Err(DeviceRefusal::Unregistered(resource.to_owned()));
        }
        let healthy: BTreeSet<&str> = state.healthy(resource).collect();
        if healthy.is_empty() {
            return Err(DeviceRefusal::NoneHealthy(resource.to_owned()));
        }
        if let Some(had) = had {
            return if had.iter().all(|id| healthy.contains(id.as_str())) {
                Ok(Chosen {
                    ids: had.clone(),
                    certain: true,
                    among: had.clone(),
                })
            } else {
                Err(DeviceRefusal::NoLongerHealthy(resource.to_owned()))
            };
        }
        let mut choice = Choice {
            chosen: Chosen {
                certain: true,
                ..Chosen::default()
            },
            needed: count,
        };
        choice.take(&self.reusable(resource).into_iter().collect::<Vec<_>>());
        let available = state.available(resource);
        if (available.len() as u64) < choice.needed {
            return Err(DeviceRefusal::NotEnough {
                resource: resource.to_owned(),
                requested: choice.needed,
                available: available.len(),
            });
        }
        let [aligned, others, without] = groups(state, resource, &available, hint);
        choice.take(&aligned);
        // The plugin is asked about all of these in one call.
        if choice.needed > 0 && choice.needed < (others.len() + without.len()) as u64 {
            choice.chosen.certain = false;
            choice.may_take(&others);
            choice.may_take(&without);
        }
        choice.take(&others);
        choice.take(&without);
        Ok(choice.chosen)
    }
}

/// The free devices in the order in which kubelet takes them: at the hint's NUMA nodes, at others, at none
/// (`filterByAffinity`). Without a hint or NUMA nodes they are one group.
fn groups<'a>(state: &DeviceState, resource: &str, available: &BTreeSet<&'a str>, hint: Merged) -> [Vec<&'a str>; 3] {
    let mut groups = [Vec::new(), Vec::new(), Vec::new()];
    let affinity = hint.nodes.filter(|_| state.is_aligned(resource));
    for id in available {
        let near = |nodes: NodeMask| match state.nodes(resource, id) {
            None => 2,
            Some(own) if nodes.nodes().any(|node| own.contains(&node)) => 0,
            Some(_) => 1,
        };
        groups[affinity.map_or(2, near)].push(*id);
    }
    groups
}

struct Choice {
    chosen: Chosen,
    needed: u64,
}

impl Choice {
    /// Takes as many of a group as are still needed.
    fn take(&mut self, group: &[&str]) {
        if self.needed == 0 {
            return;
        }
        if (group.len() as u64) > self.needed {
            self.chosen.certain = false;
        }
        let taken = group.len().min(usize::try_from(self.needed).unwrap_or(usize::MAX));
        self.chosen.ids.extend(group[..taken].iter().map(|id| (*id).to_owned()));
        self.may_take(group);
        self.needed -= taken as u64;
    }

    fn may_take(&mut self, group: &[&str]) {
        self.chosen.among.extend(group.iter().map(|id| (*id).to_owned()));
    }
}
