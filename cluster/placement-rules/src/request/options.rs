//! The options of `stelia-runner` in a container's command that concern the allocation.

use serde_json::{Map, Value};
use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;
use stelia_koordinator::allocator::AllocationRequest;

use super::environment::Text;

/// The options of [`AllocationRequest`], by their names in its text form and on the command line.
pub(super) const NAMES: [&str; 8] = [
    "qos",
    "cpus",
    "cpu-bind-policy",
    "required-cpu-bind-policy",
    "cpu-limit",
    "cpu-exclusive-policy",
    "numa-allocate-strategy",
    "numa-topology-alignment-policy",
];

/// What a command says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) allocation: AllocationRequest,
    /// `--resource-spec`: the pod's annotation is read.
    pub(super) has_spec: bool,
    /// `--resource-status`: the runner follows what a scheduler chose.
    pub(super) has_status: bool,
}

/// Reads the words of a command, their variables replaced, up to `--`, behind which the VMM's begin. Other options, and commands of other programs, are
/// passed over: the runner checks its own. So is a word that is unknown from its beginning.
///
/// # Errors
/// A value that the runner would refuse, or that is not known here.
pub(super) fn parse(words: &[Text]) -> Result<Options, String> {
    let (mut options, mut found) = (Options::default(), Map::new());
    let end = |word: &&Text| matches!(word, Text::Known(text) if text == "--");
    let mut words = words.iter().take_while(|word| !end(word));
    while let Some(word) = words.next() {
        let (Text::Known(written) | Text::Unknown { written, .. }) = word;
        let Some(option) = written.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        options.has_spec |= name == "resource-spec";
        options.has_status |= name == "resource-status";
        if !NAMES.contains(&name) {
            continue;
        }
        // In the same word, or the next one.
        let source = match value {
            Some(_) => Some(word),
            None => words.next(),
        };
        let value = match (source, value) {
            (None, _) => return Err(format!("option --{name} has no value")),
            (Some(Text::Unknown { on, .. }), _) => return Err(format!("option --{name}: {on}")),
            (Some(Text::Known(_)), Some(value)) => value,
            (Some(Text::Known(value)), None) => value,
        };
        let parsed = value_of(name, value).ok_or_else(|| format!("option --{name}: {:?}", excerpt::excerpt(value)))?;
        found.insert(name.to_owned(), parsed);
    }
    options.allocation = serde_json::from_value(Value::Object(found))
        .map_err(|cause| format!("its options: {}", excerpt::cause(&cause)))?;
    Ok(options)
}

/// An option's value in the request's text form.
fn value_of(name: &str, value: &str) -> Option<Value> {
    match name {
        "cpus" => value.parse::<u32>().ok().filter(|cpus| *cpus > 0).map(Value::from),
        "cpu-limit" => {
            let limit: Quantity = value.parse().ok()?;
            let milli = u32::try_from(limit.milli()).ok().filter(|milli| *milli > 0);
            milli.map(Value::from)
        }
        _ => Some(Value::from(value)),
    }
}
