//! Which rules apply to a container, by its names alone.

use stelia_kubelet::PodName;
use stelia_settings::{AdoptKind, AdoptRule, MAX_THREAD_NAME_BYTES, Pattern};

use crate::adopt::{Accelerator, NotAdopted};

/// What the runtime's configuration says of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub pod: Option<PodName>,
    pub container: Option<String>,
    /// Its environment has `STELIA_ADOPT=no`.
    pub refuses: bool,
}

/// The rules that match this container and that it does not refuse, in their order; not empty.
///
/// # Errors
/// [`NotAdopted::Unnamed`], [`NotAdopted::Sandbox`], [`NotAdopted::NoRule`], [`NotAdopted::ContainerRefuses`].
pub fn rules_for<'r>(names: &Names, rules: &'r [AdoptRule]) -> Result<Vec<&'r AdoptRule>, NotAdopted> {
    if rules.is_empty() {
        return Err(NotAdopted::NoRule);
    }
    let (pod, container) = match (&names.pod, &names.container) {
        (Some(pod), Some(container)) => (pod, container),
        (Some(_), None) => return Err(NotAdopted::Sandbox),
        (None, _) => return Err(NotAdopted::Unnamed),
    };
    let matches = |rule: &&AdoptRule| {
        one_fits(&rule.namespaces, pod.namespace())
            && one_fits(&rule.pods, pod.name())
            && one_fits(&rule.containers, container)
    };
    let mut found: Vec<&AdoptRule> = rules.iter().filter(matches).collect();
    let Some(first) = found.first() else {
        return Err(NotAdopted::NoRule);
    };
    let rule = first.name.clone();
    found.retain(|rule| !(names.refuses && rule.container_may_refuse));
    if found.is_empty() {
        Err(NotAdopted::ContainerRefuses { rule })
    } else {
        Ok(found)
    }
}

/// What the rules of a container, as [`rules_for`] returns them, adopt of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesFor<'r> {
    /// The whole container, by its first rule.
    Container(&'r AdoptRule),
    /// The VM in it, by the rules for VMs before the first for containers. A later rule for containers does not apply: the container has
    /// its VM only some time after its start.
    Vm(Vec<&'r AdoptRule>),
}

impl<'r> RulesFor<'r> {
    pub fn of(rules: &[&'r AdoptRule]) -> Self {
        match rules.first() {
            Some(rule) if rule.kind == AdoptKind::Container => Self::Container(rule),
            _ => Self::Vm(
                rules
                    .iter()
                    .take_while(|rule| rule.kind == AdoptKind::Vm)
                    .copied()
                    .collect(),
            ),
        }
    }
}

/// Whether a process may be the VMM of one of the rules, by its name (`comm`) or its program (`argv[0]`). That both say so is
/// asked by [`crate::adopt::vm()`], which can then say what does not fit.
pub fn is_vmm(rules: &[&AdoptRule], name: &str, program: &str) -> bool {
    rules.iter().any(|rule| {
        let named = NameMatch::of(rule, name, program);
        named.name || named.program
    })
}

/// Whether a thread is named as a vCPU's by one of the rules, or as one of a guest that rules do not adopt, which is reported.
pub fn is_vcpu(rules: &[&AdoptRule], name: &str) -> bool {
    rules.iter().any(|rule| rule.threads.index(name).is_some()) || Accelerator::of(name).is_some()
}

/// Which of a process's two names a rule names.
pub(crate) struct NameMatch {
    pub(crate) name: bool,
    pub(crate) program: bool,
}

impl NameMatch {
    pub(crate) fn of(rule: &AdoptRule, name: &str, program: &str) -> Self {
        let program = program.rsplit('/').next().unwrap_or_default();
        let fits = one_fits(&rule.vmm, program);
        Self {
            // The kernel takes a process's name from its program's and cuts it.
            name: one_fits(&rule.vmm, name) || fits && !name.is_empty() && cut(program) == name.as_bytes(),
            program: fits,
        }
    }
}

fn cut(program: &str) -> &[u8] {
    let bytes = program.as_bytes();
    bytes.get(..MAX_THREAD_NAME_BYTES).unwrap_or(bytes)
}

fn one_fits(patterns: &[Pattern], text: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(text))
}
