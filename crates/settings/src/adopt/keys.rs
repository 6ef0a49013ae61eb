//! Every key of a rule: its name, check and printing.

use toml::Value;

use super::{AdoptKind, AdoptPartition, AdoptPlacement, AdoptRule, Pattern, ThreadName};
use crate::key::{Key, choice, key};
use crate::{Isolation, TreeChoice};

/// Limit of the patterns in one list.
const MAX_PATTERNS: usize = 64;
/// Limit of a rule's name, in bytes.
const MAX_RULE_NAME_BYTES: usize = 64;

const NAMES: [&str; 1] = ["a list of 1 to 64 names, in which * matches any text"];

/// Every key but `use`, in the order of `--print-config`.
pub(crate) const RULE_KEYS: [Key<AdoptRule>; 12] = [
    key!(
        "name",
        ["1 to 64 letters, digits and - . _"],
        name,
        |value| value.as_str().filter(|name| is_name(name)).map(str::to_owned),
        |name| name.as_str().into()
    ),
    key!("namespaces", NAMES, namespaces, patterns, |list| printed(list)),
    key!("pods", NAMES, pods, patterns, |list| printed(list)),
    key!("containers", NAMES, containers, patterns, |list| printed(list)),
    choice!("kind", AdoptKind, kind),
    key!("vmm", NAMES, vmm, patterns, |list| printed(list)),
    key!(
        "threads",
        ["the name of a thread, at most 15 bytes, with {n} in place of the vCPU's number"],
        threads,
        |value| ThreadName::parse(value.as_str()?),
        |threads| threads.to_string().into()
    ),
    choice!(
        "placement",
        AdoptPlacement[["keep", "auto", "guest", "full-pcpus", "spread-by-pcpus", "linear"]],
        placement
    ),
    key!(
        "container-may-refuse",
        ["true", "false"],
        container_may_refuse,
        Value::as_bool,
        |may| (*may).into()
    ),
    choice!("tree", TreeChoice, tree),
    choice!("partition", AdoptPartition, partition),
    key!(
        "isolation",
        ["vcpus (of a rule for VMs)", "container"],
        isolation,
        |value| Isolation::parse(value.as_str()?),
        |isolation| isolation.name().into()
    ),
];

/// The keys that a rule of this kind has: one for whole containers names no VMM.
pub(super) fn keys_of(kind: AdoptKind) -> impl Iterator<Item = &'static Key<AdoptRule>> {
    let of_vms = |key: &Key<AdoptRule>| matches!(key.name, "vmm" | "threads");
    RULE_KEYS
        .iter()
        .filter(move |key| kind == AdoptKind::Vm || !of_vms(key))
}

/// The keys that a file may give to such a rule.
pub(crate) fn effective_keys(rule: &AdoptRule) -> impl Iterator<Item = &'static Key<AdoptRule>> {
    let (kind, isolation) = (rule.kind, rule.isolation);
    RULE_KEYS
        .iter()
        .filter(move |key| no_effect(key.name, kind, isolation).is_none())
}

/// Why a key has no effect on a rule, beginning with the key of that rule which makes it so; `None`: it has an effect.
pub(super) fn no_effect(key: &str, kind: AdoptKind, isolation: Isolation) -> Option<&'static str> {
    match (key, kind, isolation) {
        ("vmm" | "threads", AdoptKind::Container, _) => {
            Some("kind = \"container\": the container is adopted, and no VM is looked for in it")
        }
        ("placement", AdoptKind::Container, _) => Some("kind = \"container\": no vCPU is placed"),
        ("tree", _, Isolation::Container) => Some(
            "isolation = \"container\": the container's own cgroup is the partition, and no other cgroups are made",
        ),
        _ => None,
    }
}

/// What a key is where neither the file nor a ready-made rule says; `None`: it must be given.
pub(super) fn default(key: &str) -> Option<Value> {
    match key {
        "namespaces" | "pods" | "containers" => Some(vec!["*"].into()),
        "kind" => Some(AdoptKind::Vm.name().into()),
        "placement" => Some(AdoptPlacement::Auto.name().into()),
        "container-may-refuse" => Some(true.into()),
        "tree" => Some(TreeChoice::Auto.name().into()),
        "partition" => Some(AdoptPartition::Auto.name().into()),
        _ => None,
    }
}

/// The rule with these values.
///
/// # Errors
/// The first key, in their order, whose value is missing or not allowed.
pub(super) fn rule(value: &dyn Fn(&str) -> Option<Value>) -> Result<AdoptRule, &'static Key<AdoptRule>> {
    let mut rule = AdoptRule::default();
    let is_container = value("kind").as_ref().and_then(Value::as_str) == Some(AdoptKind::Container.name());
    let (kind, isolation) = if is_container {
        (AdoptKind::Container, Isolation::Container)
    } else {
        (AdoptKind::Vm, Isolation::Vcpus)
    };
    for key in keys_of(kind) {
        let default = || (key.name == "isolation").then(|| isolation.name().into());
        value(key.name)
            .or_else(default)
            .and_then(|value| (key.set)(&mut rule, &value))
            // The vCPU threads of a container that is adopted without its VM are not known.
            .filter(|()| !is_container || key.name != "isolation" || rule.isolation == isolation)
            .ok_or(key)?;
    }
    Ok(rule)
}

/// Whether rules and cache classes may be called so.
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=MAX_RULE_NAME_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

fn patterns(value: &Value) -> Option<Vec<Pattern>> {
    let words = value
        .as_array()
        .filter(|words| (1..=MAX_PATTERNS).contains(&words.len()))?;
    words.iter().map(|word| Pattern::parse(word.as_str()?)).collect()
}

fn printed(patterns: &[Pattern]) -> Value {
    let words: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
    words.into()
}
