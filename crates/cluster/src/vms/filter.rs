//! Which VMs are shown.

use super::{Vm, VmState};

/// What a VM has to be; empty lists let everything through.
#[derive(Debug, Clone, Default)]
pub struct VmFilter {
    pub patterns: Vec<Pattern>,
    pub namespace: Option<String>,
    pub states: Vec<VmState>,
}

impl VmFilter {
    pub(super) fn lets_through(&self, vm: &Vm) -> bool {
        let fits = |pattern: &Pattern| pattern.fits(&vm.pod_namespace, &vm.pod_name, &vm.pod_uid);
        (self.patterns.is_empty() || self.patterns.iter().any(fits))
            && self.namespace.as_ref().is_none_or(|own| *own == vm.pod_namespace)
            && (self.states.is_empty() || self.states.contains(&vm.state))
    }
}

/// A VM by `namespace/name` or name, in which `*` stands for any characters and `?` for one, or by its UID or the beginning of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    namespace: Option<String>,
    name: String,
}

/// The shortest beginning of a UID: four characters are mostly a part of a name.
const MIN_UID_CHARS: usize = 8;

impl Pattern {
    /// # Errors
    /// It names nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace.as_deref() == Some("") {
            return Err("expected NAMESPACE/NAME, NAME or UID, in which * and ? may stand for characters".to_owned());
        }
        Ok(Self {
            namespace,
            name: name.to_owned(),
        })
    }

    pub(crate) fn fits(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let is_uid = || self.name.len() >= MIN_UID_CHARS && uid.starts_with(&self.name);
        match &self.namespace {
            Some(wanted) => matches(wanted, namespace) && matches(&self.name, name),
            None => matches(&self.name, name) || is_uid(),
        }
    }
}

/// Whether the text is what the pattern describes: `*` is any number of characters, `?` one.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // Where the last star was, and up to where the text was taken for it.
    let mut star = None;
    while read < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(char) if *char == '?' || *char == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((before, taken)) = star else { return false };
                star = Some((before, taken + 1));
                at = before + 1;
                read = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|char| *char == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_a_glob_or_the_beginning_of_a_uid() {
        let uid = "416de7c2-21de-472d-817c-fa9d4306cb00";
        let fits = |pattern: &str| Pattern::parse(pattern).unwrap().fits("team-a", "vm-005", uid);
        for yes in [
            "vm-005",
            "team-a/vm-005",
            "vm-*",
            "*005",
            "team-?/vm-*",
            "*/vm-00?",
            "*",
            uid,
            "416de7c2",
        ] {
            assert!(fits(yes), "{yes}");
        }
        for no in [
            "vm",
            "vm-00",
            "team-b/vm-005",
            "team-?/vm",
            "vm-*6",
            "416d",
            "team-a/416de7c2",
            "?",
        ] {
            assert!(!fits(no), "{no}");
        }
        for wrong in ["", "/", "/vm", "team-a/", "a/b/c"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stars_take_as_much_as_they_need() {
        for (pattern, text, expected) in [
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcb", false),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
            ("a?", "a", false),
            ("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
