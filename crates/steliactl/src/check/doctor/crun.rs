//! Containers with exclusive CPUs whose CPU quota is below these CPUs, as crun before 1.22 writes it where kubelet sets none.

use std::path::Path;

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, Cgroups, File, KernelCgroups, read_cpus};
use stelia_kernel::containers::{container_levels, least_limit_milli, pod_containers};
use stelia_kubelet::{ContainerCgroup, CpuManagerState};

use super::Facts;
use super::checks::{Finding, ok, unknown, warning};
use crate::shared::output::counted;

/// A container with exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Its cgroup.
    pub(super) cgroup: String,
    /// How many exclusive CPUs it has.
    pub(super) cpus: u64,
    /// What its `cpu.max` allows, thousandths of a CPU; `None` without a limit.
    pub(super) milli: Option<u64>,
}

impl Quota {
    fn is_too_low(&self) -> bool {
        self.milli.is_some_and(|milli| milli < self.cpus.saturating_mul(1000))
    }
}

/// The quotas of the containers that kubelet gave exclusive CPUs; `root` is `/`.
///
/// # Errors
/// Why a quota is not known.
pub(super) fn read(root: &Path, state: &CpuManagerState) -> Result<Vec<Quota>, String> {
    let cgroups = KernelCgroups::new(root.join("sys/fs/cgroup"));
    let mut quotas = Vec::new();
    for (pod, entries) in &state.entries {
        let containers = pod_containers(&cgroups, pod).map_err(|error| error.to_string())?;
        for (whole, _) in containers {
            let given = |cpus: &&CpuSet| has(&cgroups, &whole, cpus);
            let Some(cpus) = entries.values().find(given) else {
                continue;
            };
            // With crun a quota is written to both.
            let subgroup = whole.child(ContainerCgroup::SUBGROUP);
            let cgroup = if cgroups.exists(&subgroup) { subgroup } else { whole };
            let levels = container_levels(&cgroup);
            let (cpus, cgroup) = (cpus.len() as u64, cgroup.to_string());
            let milli = least_limit_milli(&cgroups, levels).map_err(|error| error.to_string())?;
            quotas.push(Quota { cgroup, cpus, milli });
        }
    }
    Ok(quotas)
}

/// Whether kubelet gave a container these CPUs, by the `cpuset.cpus` of its cgroup: an entry has the container's name, which only root reads.
fn has(cgroups: &dyn Cgroups, cgroup: &CgroupPath, cpus: &CpuSet) -> bool {
    !cpus.is_empty() && read_cpus(cgroups, cgroup, File::Cpus).is_ok_and(|own| own == *cpus)
}

pub(super) fn check(facts: &Facts) -> Finding {
    let quotas = match &facts.quotas {
        Ok(quotas) => quotas,
        Err(why) => return unknown(format!("the CPU quotas of containers are not known: {why}")),
    };
    let low: Vec<String> = quotas
        .iter()
        .filter(|quota| quota.is_too_low())
        .map(|quota| {
            let percent = quota.milli.unwrap_or_default() / 10;
            format!(
                "{} has {} of its own and a quota of {percent} % of a CPU",
                quota.cgroup,
                counted(quota.cpus, "CPU")
            )
        })
        .collect();
    if low.is_empty() {
        return ok("no container with exclusive CPUs has a CPU quota below them");
    }
    warning(
        low.join("; "),
        "where it is 1 %, crun before 1.22 wrote it (containers/crun issue 1794): install crun 1.22 or newer, or use runc, and start the \
         containers anew: cpu.max stays as it was written",
    )
}
