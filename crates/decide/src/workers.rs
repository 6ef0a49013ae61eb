//! Where the kernel's unbound workers may run. A partition of kind `isolated` keeps them off by itself; one of kind `root` does not.

use stelia_cpus::CpuSet;

/// The workers' mask as found, and what was recorded of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// The CPUs that they may run on.
    pub cpus: CpuSet,
    /// CPUs that steliad withholds from them, as recorded, to be given back.
    pub withheld: CpuSet,
    /// CPUs that the kernel keeps them off by itself. Empty where all of `withheld` is to stay so: it was not read then.
    pub isolated: CpuSet,
}

/// Whether the mask or its record must change for the workers to be kept off exactly these CPUs.
pub(super) fn are_to_change(workers: &Workers, closed: &CpuSet) -> bool {
    let back = workers.withheld.difference(closed);
    !workers.cpus.is_disjoint(closed) || !back.is_subset(&workers.isolated)
}

/// Where they may run and what is to be recorded as withheld from them, so that they are kept off these CPUs and off those that the kernel
/// keeps them off, and have everything else that they were `requested` to have or that is `withheld` from them. `None` where
/// the mask would be empty, which the kernel refuses.
pub fn masks(requested: &CpuSet, isolated: &CpuSet, withheld: &CpuSet, closed: &CpuSet) -> Option<(CpuSet, CpuSet)> {
    let all = requested.union(withheld);
    let allowed = all.difference(closed).difference(isolated);
    let withheld = all.difference(&allowed);
    (!allowed.is_empty()).then_some((allowed, withheld))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_withheld_is_given_back_and_nothing_else() {
        // isolcpus=7: the kernel never gave it to them.
        let (cpus, withheld) = masks(&set("0-6"), &set("7"), &set(""), &set("2-3")).unwrap();
        assert_eq!(
            (cpus.to_string(), withheld.to_string()),
            ("0-1,4-6".into(), "2-3".into())
        );
        let found = |cpus: &CpuSet, withheld: &CpuSet, isolated: &str| Workers {
            cpus: cpus.clone(),
            withheld: withheld.clone(),
            isolated: set(isolated),
        };
        let now = found(&cpus, &withheld, "7");
        assert!(!are_to_change(&now, &set("2-3")));
        assert!(are_to_change(&now, &set("2")) && are_to_change(&now, &set("2-4")));
        // CPU 4 is in an isolated partition: it is not given to them by a write, and comes back when that is gone.
        let (cpus, withheld) = masks(&cpus, &set("4,7"), &withheld, &set("2")).unwrap();
        assert_eq!(
            (cpus.to_string(), withheld.to_string()),
            ("0-1,3,5-6".into(), "2,4".into())
        );
        assert!(!are_to_change(&found(&cpus, &withheld, "4,7"), &set("2")));
        assert!(are_to_change(&found(&cpus, &withheld, "7"), &set("2")));
        let (cpus, withheld) = masks(&cpus, &set("7"), &withheld, &set("")).unwrap();
        assert_eq!((cpus.to_string(), withheld.to_string()), ("0-6".into(), String::new()));
        assert_eq!(masks(&set("2-3"), &set(""), &set(""), &set("2-3")), None);
    }
}
