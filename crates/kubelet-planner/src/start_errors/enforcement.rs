//! `enforceNodeAllocatable`: what kubelet limits to what is allocatable or reserved.

use stelia_cpus::text::excerpt::name as shown;
use stelia_kubelet::KubeletConfig;

use super::StartProblem;

const NONE: &str = "none";
const ENFORCEABLE: [&str; 6] = [
    "pods",
    "system-reserved",
    "kube-reserved",
    "system-reserved-compressible",
    "kube-reserved-compressible",
    NONE,
];

/// Why kubelet does not take the list.
pub(super) fn problems(config: &KubeletConfig) -> Vec<StartProblem> {
    let entries = &config.enforce_node_allocatable;
    let has = |entry: &str| entries.iter().any(|other| other == entry);
    let mut causes = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        if !ENFORCEABLE.contains(&entry.as_str()) {
            causes.push(format!(
                "there is no {}, kubelet has {}",
                shown(entry),
                ENFORCEABLE.join(", ")
            ));
        } else if entries[..number].contains(entry) {
            causes.push(format!("{entry} is there twice"));
        }
    }
    if has(NONE) && entries.len() > 1 {
        causes.push("none does not go with other entries".to_owned());
    }
    if !config.cgroups_per_qos && entries.iter().any(|entry| entry != NONE) {
        causes.push(format!("{} does not go with cgroupsPerQOS: false", entries.join(", ")));
    }
    let reserved = [
        (
            "system-reserved",
            "systemReservedCgroup",
            &config.system_reserved_cgroup,
        ),
        ("kube-reserved", "kubeReservedCgroup", &config.kube_reserved_cgroup),
    ];
    for (entry, key, cgroup) in reserved {
        let compressible = format!("{entry}-compressible");
        if has(entry) && has(&compressible) {
            causes.push(format!("{entry} does not go with {compressible}"));
        }
        if (has(entry) || has(&compressible)) && cgroup.is_empty() {
            causes.push(format!("{entry} needs {key}"));
        }
    }
    causes.into_iter().map(StartProblem::Enforcement).collect()
}
