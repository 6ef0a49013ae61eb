//! What the steps of several VMs have in common: each names the cgroup, threads and CPUs of its own VM.

use stelia_cpus::CpuSet;

/// The file that makes a cgroup a partition.
const PARTITION_FILE: &str = "cpuset.cpus.partition";

/// The words before a number of a thread or a list of CPUs.
const NUMBERED: [&str; 4] = ["process", "thread", "CPU", "CPUs"];

/// Whether a step writes the kind of a partition.
pub(crate) fn writes_partition(step: &str) -> bool {
    step.starts_with("write ") && step.split(' ').any(|word| word == PARTITION_FILE)
}

/// The step without what is of its VM alone: its cgroup's path is `its cgroup`, numbers of threads and CPUs are `…`.
pub(crate) fn in_common(step: &str) -> String {
    let mut before = "";
    let words = step.split(' ').map(|word| {
        let common = match word {
            _ if word.starts_with('/') => its_cgroup(word),
            _ if NUMBERED.contains(&before) && is_cpus(word) => "…".to_owned(),
            _ if before == "write" && is_cpus(word) => "…".to_owned(),
            _ => word.to_owned(),
        };
        before = word;
        common
    });
    words.collect::<Vec<_>>().join(" ")
}

/// `its cgroup`, or `its cgroup vcpu` for one that every VM has by this name.
fn its_cgroup(path: &str) -> String {
    let last = path.rsplit('/').next().unwrap_or_default();
    if !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_lowercase()) {
        format!("its cgroup {last}")
    } else {
        "its cgroup".to_owned()
    }
}

/// Whether it is a list of CPUs, quoted or not, or a number.
fn is_cpus(word: &str) -> bool {
    let word = word.trim_end_matches([',', ':']).trim_matches('"');
    !word.is_empty() && word.parse::<CpuSet>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_threads_and_cpus_are_of_one_vm_and_values_are_of_all() {
        for (step, common) in [
            (
                "write \"isolated\" to cpuset.cpus.partition of /stelia.slice/stelia-3ceda12c.scope/vcpu",
                "write \"isolated\" to cpuset.cpus.partition of its cgroup vcpu",
            ),
            (
                "write \"4-5\" to cpuset.cpus of /kubepods.slice/cri-containerd-0a1b.scope",
                "write … to cpuset.cpus of its cgroup",
            ),
            ("pin thread 70 to CPU 4", "pin thread … to CPU …"),
            ("set CPUWeight=200 of stelia.slice", "set CPUWeight=200 of stelia.slice"),
        ] {
            assert_eq!(in_common(step), common);
        }
    }
}
