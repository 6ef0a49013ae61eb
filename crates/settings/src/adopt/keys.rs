//! Every key of a rule: its name, check and printing.

use toml::Value;

use super::{AdoptPartition, AdoptPlacement, AdoptRule, AdoptTree, Pattern, ThreadName};

/// Limit of the patterns in one list.
const MAX_PATTERNS: usize = 64;
/// Limit of a rule's name, in bytes.
const MAX_RULE_NAME_BYTES: usize = 64;

/// A key of an `[[adopt]]` table.
pub(crate) struct RuleKey {
    pub(crate) name: &'static str,
    /// What the value may be, the last behind an "or".
    pub(crate) allowed: &'static [&'static str],
    set: fn(&mut Draft, &Value) -> Option<()>,
    pub(crate) get: fn(&AdoptRule) -> Value,
}

/// A rule that is being read.
#[derive(Default)]
struct Draft {
    name: String,
    namespaces: Vec<Pattern>,
    pods: Vec<Pattern>,
    containers: Vec<Pattern>,
    vmm: Vec<Pattern>,
    threads: Option<ThreadName>,
    placement: Option<AdoptPlacement>,
    container_may_refuse: bool,
    tree: Option<AdoptTree>,
    partition: Option<AdoptPartition>,
}

const NAMES: &[&str] = &["a list of 1 to 64 names, in which * stands for anything"];

/// A key whose value is a list of patterns.
macro_rules! patterns {
    ($key:literal, $field:ident) => {
        RuleKey {
            name: $key,
            allowed: NAMES,
            set: |draft, value| {
                draft.$field = patterns(value)?;
                Some(())
            },
            get: |rule| printed(&rule.$field),
        }
    };
}

/// Every key but `use`, in the order of `--print-config`.
pub(crate) const RULE_KEYS: [RuleKey; 10] = [
    RuleKey {
        name: "name",
        allowed: &["1 to 64 letters, digits and - . _"],
        set: |draft, value| {
            let name = value.as_str().filter(|name| is_name(name))?;
            name.clone_into(&mut draft.name);
            Some(())
        },
        get: |rule| rule.name.as_str().into(),
    },
    patterns!("namespaces", namespaces),
    patterns!("pods", pods),
    patterns!("containers", containers),
    patterns!("vmm", vmm),
    RuleKey {
        name: "threads",
        allowed: &["the name of a thread, at most 15 bytes, with {n} in place of the vCPU's number"],
        set: |draft, value| {
            draft.threads = Some(ThreadName::parse(value.as_str()?)?);
            Some(())
        },
        get: |rule| rule.threads.to_string().into(),
    },
    RuleKey {
        name: "placement",
        allowed: &["keep", "auto", "guest", "full-pcpus", "spread-by-pcpus", "linear"],
        set: |draft, value| {
            draft.placement = Some(AdoptPlacement::parse(value.as_str()?)?);
            Some(())
        },
        get: |rule| rule.placement.name().into(),
    },
    RuleKey {
        name: "container-may-refuse",
        allowed: &["true", "false"],
        set: |draft, value| {
            draft.container_may_refuse = value.as_bool()?;
            Some(())
        },
        get: |rule| rule.container_may_refuse.into(),
    },
    RuleKey {
        name: "tree",
        allowed: &["auto", "in-place", "slice"],
        set: |draft, value| {
            draft.tree = Some(AdoptTree::parse(value.as_str()?)?);
            Some(())
        },
        get: |rule| rule.tree.name().into(),
    },
    RuleKey {
        name: "partition",
        allowed: &["auto", "member"],
        set: |draft, value| {
            draft.partition = Some(AdoptPartition::parse(value.as_str()?)?);
            Some(())
        },
        get: |rule| rule.partition.name().into(),
    },
];

/// What a key is where neither the file nor a ready-made rule says; `None`: it must be given.
pub(super) fn default(key: &str) -> Option<Value> {
    match key {
        "namespaces" | "pods" | "containers" => Some(vec!["*"].into()),
        "placement" => Some(AdoptPlacement::Auto.name().into()),
        "container-may-refuse" => Some(true.into()),
        "tree" => Some(AdoptTree::Auto.name().into()),
        "partition" => Some(AdoptPartition::Auto.name().into()),
        _ => None,
    }
}

/// The rule with these values.
///
/// # Errors
/// The first key, in their order, whose value is missing or not allowed.
pub(super) fn rule(value: &dyn Fn(&str) -> Option<Value>) -> Result<AdoptRule, &'static RuleKey> {
    let mut draft = Draft::default();
    for key in &RULE_KEYS {
        value(key.name)
            .and_then(|value| (key.set)(&mut draft, &value))
            .ok_or(key)?;
    }
    let [.., threads, placement, _, tree, partition] = &RULE_KEYS;
    Ok(AdoptRule {
        name: draft.name,
        namespaces: draft.namespaces,
        pods: draft.pods,
        containers: draft.containers,
        vmm: draft.vmm,
        threads: draft.threads.ok_or(threads)?,
        placement: draft.placement.ok_or(placement)?,
        container_may_refuse: draft.container_may_refuse,
        tree: draft.tree.ok_or(tree)?,
        partition: draft.partition.ok_or(partition)?,
    })
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
