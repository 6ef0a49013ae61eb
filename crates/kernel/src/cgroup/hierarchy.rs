//! Which version of cgroups a host uses, in words for the runner.

/// What every instance needs of cgroup v2.
pub const CONTROLLERS: [&str; 4] = ["cpuset", "cpu", "memory", "pids"];

/// Why a host's cgroups are not what instances need, by the text of a process's `/proc/<pid>/cgroup` (cgroups(7): lines of number,
/// controllers, path, where number 0 is cgroup v2); `None` where nothing is wrong. A hierarchy mounted for another
/// controller does no harm.
pub fn unfit(text: &str) -> Option<String> {
    let lines = || text.lines().filter_map(|line| line.split_once(':'));
    let of_v1: Vec<&str> = lines()
        .filter(|(number, _)| *number != "0")
        .filter_map(|(_, rest)| rest.split_once(':'))
        .flat_map(|(controllers, _)| controllers.split(','))
        .filter(|name| CONTROLLERS.contains(name))
        .collect();
    if of_v1.is_empty() {
        return None;
    }
    let named = of_v1.join(", ");
    Some(if lines().any(|(number, _)| number == "0") {
        format!("the host's cgroups are a hybrid of version 1 and 2, and {named} are version 1's")
    } else {
        format!("the host's cgroups are version 1 ({named})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_version_2_is_fit_whatever_else_is_mounted() {
        assert_eq!(unfit("0::/system.slice/a.service\n"), None);
        assert_eq!(unfit("2:net_cls:/\n1:name=systemd:/\n0::/\n"), None);
        assert_eq!(unfit(""), None);
    }

    #[test]
    fn version_1_and_a_hybrid_are_told_apart() {
        let legacy = "5:memory:/a\n4:cpuset:/\n3:cpu,cpuacct:/a\n1:name=systemd:/a\n";
        let text = unfit(legacy).unwrap();
        assert!(text.contains("are version 1 (memory, cpuset, cpu)"), "{text}");
        let text = unfit(&format!("{legacy}0::/a\n")).unwrap();
        assert!(
            text.contains("hybrid") && text.contains("memory, cpuset, cpu"),
            "{text}"
        );
    }
}
