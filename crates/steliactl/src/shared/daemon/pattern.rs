//! What selects VMs: a word, or a pattern as a shell has it.

use std::str::FromStr;

use super::pod::Pod;

/// Whether a text is a pattern with `*`, `?` or `[a-z]` and no word.
pub(crate) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A name, a UID or its beginning, or a pattern with `*`, `?` or `[a-z]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmPattern {
    text: String,
    /// `None` for a word.
    glob: Option<glob::Pattern>,
}

impl VmPattern {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The name or UID; `None` for a pattern.
    pub(super) fn word(&self) -> Option<&str> {
        self.glob.is_none().then_some(self.text.as_str())
    }

    /// Whether the whole text fits a pattern. No text fits a word.
    fn fits(&self, text: &str) -> bool {
        self.glob.as_ref().is_some_and(|glob| glob.matches(text))
    }

    /// Whether a name of the pod fits the pattern: its name or that of its KubeVirt VM, with or without the namespace. The UID is one only
    /// where there is no other: `a*` and `db*` would fit UIDs of VMs with other names.
    pub(crate) fn selects(&self, pod: &Pod) -> bool {
        let names = [pod.pod_name.as_str(), &pod.to_string()].map(str::to_owned).into_iter();
        let of_vm = pod.kubevirt_vm().into_iter();
        let of_vm = of_vm.flat_map(|vm| [vm.to_owned(), format!("{}/{vm}", pod.pod_namespace)]);
        names.chain(of_vm).any(|name| self.fits(&name))
    }
}

/// Why a text is neither a name nor a pattern.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("a name or a pattern is expected, not an empty word")]
    Empty,
    #[error(transparent)]
    Glob(#[from] glob::PatternError),
}

impl FromStr for VmPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        Ok(Self {
            text: text.to_owned(),
            glob: is_glob(text).then(|| glob::Pattern::new(text)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixtures::pod;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, fitting, other) in [
            ("vm-*", "vm-17", "xvm-17"),
            ("*-a/*", "team-a/web", "team-b/web"),
            ("vm-?", "vm-1", "vm-17"),
            ("vm-[0-4]", "vm-3", "vm-5"),
            ("vm-[!0-4]", "vm-5", "vm-3"),
            ("vm-[13]*", "vm-17", "vm-2"),
        ] {
            let parsed: VmPattern = pattern.parse().unwrap();
            assert!(parsed.fits(fitting) && !parsed.fits(other), "{pattern}");
            assert_eq!(parsed.word(), None);
        }
        assert_eq!("team-a/vm-1".parse::<VmPattern>().unwrap().word(), Some("team-a/vm-1"));
        assert!("vm-[".parse::<VmPattern>().is_err());
        assert!(matches!("".parse::<VmPattern>(), Err(PatternError::Empty)));
    }

    #[test]
    fn a_pattern_selects_by_names_and_by_the_uid_only_where_there_is_no_name() {
        let of_kubevirt = pod("db9f1c7e-6a1b-4f0e-9d55-0a4f3e0c1b22", "team-a/virt-launcher-web-x7k2p");
        let unnamed = Pod::unnamed(&of_kubevirt.pod_uid);
        for (pattern, by_name, by_uid) in [
            ("we*", true, false),
            ("team-a/we*", true, false),
            ("team-b/we*", false, false),
            ("team-a/*", true, false),
            ("virt-launcher-*", true, false),
            ("db*", false, true),
        ] {
            let parsed: VmPattern = pattern.parse().unwrap();
            let selected = (parsed.selects(&of_kubevirt), parsed.selects(&unnamed));
            assert_eq!(selected, (by_name, by_uid), "{pattern}");
        }
    }
}
