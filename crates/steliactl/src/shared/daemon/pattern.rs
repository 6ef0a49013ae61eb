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

    /// Whether a name of the pod fits the pattern: its UID, its name with or without the namespace, or the name of its KubeVirt VM.
    pub(crate) fn selects(&self, pod: &Pod) -> bool {
        let full = pod.to_string();
        let names = [pod.pod_uid.as_str(), &pod.pod_name, &full].into_iter();
        names.chain(pod.kubevirt_vm()).any(|name| self.fits(name))
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
}
