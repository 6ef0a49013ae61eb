//! Which VMs are shown.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::{Vm, VmState};
use crate::cli::words;

/// What KubeVirt's pods are called, in front of the VM's name.
const LAUNCHER: &str = "virt-launcher-";

/// The name of a pod without [`LAUNCHER`].
fn vm_of(pod: &str) -> &str {
    let name = pod.strip_prefix(LAUNCHER).filter(|name| !name.is_empty());
    name.unwrap_or(pod)
}

/// What a VM has to be; empty lists let everything through.
#[derive(Debug, Clone, Default, Args)]
pub struct VmFilter {
    /// Show only these VMs, given as namespace/name or name, in which * and ? may stand for characters, or as a UID or its first
    /// characters (at least 8). Default: all
    #[arg(value_name = "VM", value_parser = Pattern::parse)]
    pub patterns: Vec<Pattern>,
    /// Show only VMs of this namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub namespace: Option<String>,
    /// Show only VMs in these states, separated by commas
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = words(VmState::NAMES, VmState::parse))]
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

/// A VM by `namespace/name` or name, in which `*`, `?` and `[a-z]` stand for characters as in a shell, or by its UID or the beginning of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    namespace: Option<glob::Pattern>,
    name: glob::Pattern,
}

/// The shortest beginning of a UID: four characters are mostly a part of a name.
const MIN_UID_CHARS: usize = 8;

impl Pattern {
    /// # Errors
    /// It names nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            let expected = "NAMESPACE/NAME, NAME or UID, in which *, ? and [a-z] may stand for characters";
            return Err(format!("expected {expected}"));
        }
        let parse = |text| glob::Pattern::new(text).map_err(|error| error.to_string());
        Ok(Self {
            namespace: namespace.map(parse).transpose()?,
            name: parse(name)?,
        })
    }

    /// The name or the UID, where no namespace and no `*`, `?` or `[` says that several may be meant.
    pub(crate) fn bare(&self) -> Option<&str> {
        let name = self.name.as_str();
        (self.namespace.is_none() && !name.contains(['*', '?', '['])).then_some(name)
    }

    /// Whether it names this pod, with [`LAUNCHER`] or without.
    pub(crate) fn fits(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let is_name = || self.name.matches(name) || self.name.matches(vm_of(name));
        let is_uid = || self.name.as_str().len() >= MIN_UID_CHARS && uid.starts_with(self.name.as_str());
        match &self.namespace {
            Some(wanted) => wanted.matches(namespace) && is_name(),
            None => is_name() || is_uid(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_a_glob_or_the_beginning_of_a_uid() {
        let uid = "416de7c2-21de-472d-817c-fa9d4306cb00";
        let fits = |pattern: &str| Pattern::parse(pattern).unwrap().fits("team-a", "vm-005", uid);
        let yes = "vm-005 team-a/vm-005 vm-* *005 team-?/vm-* */vm-00? * 416de7c2-21de-472d-817c-fa9d4306cb00 416de7c2";
        assert_eq!(yes.split(' ').find(|pattern| !fits(pattern)), None);
        let no = "vm vm-00 team-b/vm-005 team-?/vm vm-*6 416d team-a/416de7c2 ?";
        assert_eq!(no.split(' ').find(|pattern| fits(pattern)), None);
        let launched = |pattern: &str| {
            let pattern = Pattern::parse(pattern).unwrap();
            pattern.fits("team-a", "virt-launcher-vm-005-x7k2p", uid)
        };
        for yes in ["team-a/vm-005-x7k2p", "vm-*", "virt-launcher-vm-005-x7k2p"] {
            assert!(launched(yes), "{yes}");
        }
        assert!(!launched("team-a/launcher-vm-005-x7k2p"));
        for wrong in ["", "/", "/vm", "team-a/", "a/b/c", "vm-["] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
