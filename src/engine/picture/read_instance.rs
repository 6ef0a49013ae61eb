//! Reading one instance again, as much of it as may be out of date.

use std::path::PathBuf;

use stelia_cpus::CpuSet;
use stelia_decide::drift_findings::Finding;
use stelia_decide::entitlement::entry_of;
use stelia_decide::{Instance, drift_findings, limits_are_carried, pod_pool, too_much_memory};
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupError, CgroupPath, File, read_cpus};
use stelia_kubelet::PodUid;
use stelia_model::record::Phase;
use stelia_settings::Policies;

use super::Picture;
use crate::engine::out_of_date::{Dirty, Stale, StaleLimits};
use crate::engine::read_limits::{LastLimits, Side};
use crate::engine::vmm_exit::Vmm;
use crate::engine::watch::{Place, Watcher, directory};
use crate::engine::{in_place, read_cgroups, sibling_containers};

#[derive(Debug, Default)]
pub(in crate::engine) struct InstanceReading {
    /// Drift, with the instance as it was before.
    pub(in crate::engine) drifted: Option<(Box<Instance>, Vec<Finding>)>,
    pub(in crate::engine) gone: bool,
}

impl Picture {
    /// Read an instance again, as much of it as is `stale`.
    ///
    /// # Errors
    /// It cannot be read, which does not mean that it is gone.
    pub(in crate::engine) fn look_at(
        &mut self,
        system: &System,
        policies: &Policies,
        watcher: &mut Watcher,
        pod: &PodUid,
        stale: Stale,
        dirty: &mut Dirty,
    ) -> Result<InstanceReading, CgroupError> {
        let Some(known) = self.snapshot.instances.get(pod) else {
            return Ok(InstanceReading::default());
        };
        if self.starting.contains(pod) {
            return Ok(InstanceReading::default());
        }
        let leaves = known.record.phase == Phase::Leaving;
        let (record, tree) = (known.record.clone(), known.tree.clone());
        let limits = self.known_limits(pod, stale.limits);
        // Given back, the container lives on without being an instance.
        let is_given_back = leaves && tree.pod().is_some() && in_place::is_unregistered(&*system.cgroups, &tree)?;
        let reading = read_cgroups::instance(system, record, tree, leaves, &self.limit_files, limits);
        let mut now = match reading {
            Ok(now) if !is_given_back => now,
            Err(error) if !error.is_gone() => return Err(error),
            Ok(_) | Err(_) => {
                watcher.forget(pod);
                self.remove(policies, pod, dirty);
                return Ok(InstanceReading {
                    gone: true,
                    drifted: None,
                });
            }
        };
        let float = now.inner.as_ref().filter(|_| now.tree.has_float());
        let float = float.map(|_| directory(system, now.tree.float()));
        let watched = [
            watcher.watch(Place::Instance(pod.clone()), &watched(system, &now)),
            watcher.watch(Place::Float(pod.clone()), float.as_slice()),
            watcher.watch(Place::Limits(pod.clone()), &limited(system, &now)),
            watcher.watch_vmm(&*system.procs, pod, Vmm::of(&now)),
        ];
        now.unwatched = watched.into_iter().find_map(Result::err);
        let asked = self.partition_requested.remove(pod);
        let Some(known) = self.snapshot.instances.get(pod) else {
            return Ok(InstanceReading::default());
        };
        now.refusals = refusals(known, &now, asked);
        now.does_not_freeze = known.does_not_freeze;
        match now.record.phase {
            Phase::Pinned if now.record.refused => self.refused.add(pod),
            Phase::Attaching => {}
            _ => self.refused.forget(pod),
        }
        now.tries_again = now.is_refused() && {
            let audited = stale.limits == StaleLimits::Audited;
            known.tries_again || audited && self.refused.is_due(pod)
        };
        now.pod_name.clone_from(&known.pod_name);
        let findings = if stale.ours {
            Vec::new()
        } else {
            drift_findings::of_instance(known, &now, entry_of(&self.snapshot.kubelet, &now.record))
        };
        let drifted = (!findings.is_empty()).then(|| (Box::new(known.clone()), findings));
        self.put(policies, now, dirty);
        self.read_siblings(system, pod);
        Ok(InstanceReading { drifted, gone: false })
    }

    /// Read only float's CPUs, and after a change of `ours` the origin's threads that follow them. Drift, with the instance as it was
    /// before, unless the change is `ours`.
    pub(in crate::engine) fn look_at_float(
        &mut self,
        system: &System,
        pod: &PodUid,
        ours: bool,
        dirty: &mut Dirty,
    ) -> Option<(Box<Instance>, Vec<Finding>)> {
        let instance = self.snapshot.instances.get_mut(pod)?;
        let mut read = || -> Result<CpuSet, CgroupError> {
            if ours && !instance.origin_threads.is_empty() {
                read_cgroups::origin_threads(system, instance)?;
            }
            read_cpus(&*system.cgroups, instance.tree.float(), File::Cpus)
        };
        let Ok(now) = read() else {
            dirty.changed(pod.clone());
            return None;
        };
        let float = instance.inner.as_ref().and_then(|inner| inner.float.as_ref())?;
        if float.cpus == now {
            return None;
        }
        let before = (!ours).then(|| Box::new(instance.clone()));
        let float = instance.inner.as_mut().and_then(|inner| inner.float.as_mut())?;
        float.cpus = now;
        let before = before?;
        let entry = entry_of(&self.snapshot.kubelet, &instance.record);
        let findings = drift_findings::of_instance(&before, instance, entry);
        Some((before, findings))
    }

    /// The limits of an instance that need not be read now; `None` where all are to be.
    fn known_limits(&mut self, pod: &PodUid, stale: StaleLimits) -> Option<LastLimits> {
        let known = self.snapshot.instances.get(pod)?;
        // A limit that cannot be set before memory is freed, and limits without events, are read at every audit.
        let is_unwatched = known.unwatched.is_some() || self.snapshot.unwatched.is_some();
        let at_every_audit = is_unwatched || too_much_memory(known).is_some();
        let everything =
            !limits_are_carried(known) || stale == StaleLimits::All || stale == StaleLimits::Audited && at_every_audit;
        if everything {
            self.half_audited.remove(pod);
            return None;
        }
        let but = match stale {
            StaleLimits::Audited if self.half_audited.remove(pod) => Some(Side::Scope),
            StaleLimits::Audited => {
                self.half_audited.insert(pod.clone());
                Some(Side::Origin)
            }
            _ => None,
        };
        Some(LastLimits {
            scope: known.scope_limits.clone(),
            origin: known.origin_limits.clone(),
            memory_held: known.memory_held,
            but,
        })
    }

    /// A partition was written: the next look counts a refusal.
    pub(in crate::engine) fn asked(&mut self, pod: &PodUid) {
        self.partition_requested.insert(pod.clone());
    }

    pub(super) fn read_siblings(&mut self, system: &System, pod: &PodUid) {
        let Some(instance) = self.snapshot.instances.get(pod) else {
            return;
        };
        let state = self.snapshot.kubelet.as_ref();
        if state.is_ok_and(|state| pod_pool::is_open(state, &instance.record)) {
            let siblings = sibling_containers::of(system, &instance.record);
            self.snapshot.siblings.insert(pod.clone(), siblings);
        } else {
            self.snapshot.siblings.remove(pod);
        }
    }

    /// Read the other containers of every pod of which it is not known which CPUs its containers share.
    pub(in crate::engine) fn read_all_siblings(&mut self, system: &System) {
        let Ok(state) = &self.snapshot.kubelet else { return };
        let open = |instance: &&Instance| pod_pool::is_open(state, &instance.record);
        let pods = self.snapshot.instances.values().filter(open);
        let pods: Vec<PodUid> = pods.map(|instance| instance.record.pod.clone()).collect();
        for pod in pods {
            self.read_siblings(system, &pod);
        }
    }
}

/// How often in a row the kernel refused the partition; `asked`: it was written since the last look.
fn refusals(known: &Instance, now: &Instance, asked: bool) -> u32 {
    let record = &now.record;
    let wants = matches!(record.phase, Phase::Attaching | Phase::Pinned) && record.has_partition();
    if !wants || now.vcpu().is_some_and(|vcpu| vcpu.partition == record.partition.name()) {
        return 0;
    }
    known.refusals + u32::from(asked)
}

/// The directories whose limits are an instance's. Not kubepods', which all pods share.
fn limited(system: &System, instance: &Instance) -> Vec<PathBuf> {
    if instance.tree.pod().is_some() {
        return Vec::new();
    }
    let mut of_container = stelia_kernel::containers::container_levels(&instance.record.origin);
    of_container.extend(of_container.last().and_then(CgroupPath::parent));
    of_container.push(instance.scope().clone());
    of_container.iter().map(|cgroup| directory(system, cgroup)).collect()
}

/// Where events of an instance come from: `cgroup.events` for its end, and directories that only this program writes in.
fn watched(system: &System, instance: &Instance) -> Vec<PathBuf> {
    if !instance.tree.has_float() {
        // Not the directory: a container can cause events of other files in it at will, as those of its memory.
        let own = directory(system, instance.tree.outer());
        let files = [File::Events, File::Cpus, File::CpusExclusive, File::Partition];
        return files.iter().map(|file| own.join(file.name())).collect();
    }
    let mut paths = vec![directory(system, instance.scope()).join(File::Events.name())];
    if instance.inner.is_some() {
        let vcpu = directory(system, instance.tree.vcpu());
        // The end of a VM that does not deregister. A watch on the directory is none on this file: the kernel tells of a change of its own
        // only where somebody has the file open or watches it.
        paths.extend(instance.record.adopted.as_ref().map(|_| vcpu.join(File::Events.name())));
        paths.push(vcpu);
    }
    if instance.record.phase == Phase::Leaving {
        paths.push(directory(system, instance.tree.inner()).join(File::Events.name()));
    }
    paths
}
