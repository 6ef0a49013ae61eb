//! What kubelet makes of `$(NAME)` in a container's command and arguments: by `env`, as far as the pod itself says what a variable is.

use std::collections::BTreeMap;

use serde_json::Value;
use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;

/// Limit of a text, in bytes: variables that name each other twice double with each one.
const MAX_TEXT: usize = 4096;
/// Limit of the variables of a container.
const MAX_VARIABLES: usize = 4096;

/// A variable, or a word in which variables were replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    Known(String),
    /// It depends on something that only the node or the API server knows: the text as it is written, and on what.
    Unknown {
        written: String,
        on: String,
    },
}

/// A container's variables.
#[derive(Debug, Default)]
pub(super) struct Environment {
    variables: BTreeMap<String, Text>,
    /// `envFrom` may have any other one.
    is_open: bool,
}

impl Environment {
    /// Reads the environment of a Pod's container, JSON as the API server sends it.
    pub(super) fn of(pod: &Value, container: &Value) -> Self {
        let mut environment = Self::default();
        // A value is expanded by the variables before it in the list, and not by those of `envFrom`.
        let env = container["env"].as_array().map_or(&[][..], Vec::as_slice);
        for variable in env.iter().take(MAX_VARIABLES) {
            let Some(name) = variable["name"].as_str() else {
                continue;
            };
            let value = match &variable["valueFrom"] {
                Value::Null => environment.expand(variable["value"].as_str().unwrap_or_default()),
                source => from_source(pod, container, name, source),
            };
            environment.variables.insert(name.to_owned(), value);
        }
        let from = container["envFrom"].as_array();
        environment.is_open = env.len() > MAX_VARIABLES || from.is_some_and(|all| !all.is_empty());
        environment
    }

    /// Kubernetes' expansion: `$(NAME)` is a variable's value, or stays where there is none; `$$` is `$`.
    pub(super) fn expand(&self, text: &str) -> Text {
        let (mut expanded, mut rest, mut unknown) = (String::new(), text, None);
        while let Some((before, after)) = rest.split_once('$').filter(|_| expanded.len() <= MAX_TEXT) {
            expanded.push_str(before);
            let mut following = after.chars();
            rest = match following.next() {
                Some('$') => {
                    expanded.push('$');
                    following.as_str()
                }
                Some('(') => match following.as_str().split_once(')') {
                    Some((name, rest)) => {
                        match self.variables.get(name) {
                            Some(Text::Known(value)) => expanded.push_str(value),
                            Some(Text::Unknown { on, .. }) => unknown = unknown.or(Some(on.clone())),
                            None if self.is_open => {
                                let may = || format!("variable {} may be one of envFrom", excerpt::name(name));
                                unknown = unknown.or_else(|| Some(may()));
                            }
                            None => expanded.push_str(&format!("$({name})")),
                        }
                        rest
                    }
                    None => {
                        expanded.push_str("$(");
                        following.as_str()
                    }
                },
                Some(other) => {
                    expanded.push('$');
                    expanded.push(other);
                    following.as_str()
                }
                None => {
                    expanded.push('$');
                    ""
                }
            };
        }
        if expanded.len() + rest.len() > MAX_TEXT {
            unknown = unknown.or_else(|| Some(format!("with its variables it is longer than {MAX_TEXT} bytes")));
        }
        match unknown {
            Some(on) => Text::Unknown {
                written: text.to_owned(),
                on,
            },
            None => Text::Known(expanded + rest),
        }
    }
}

/// The value of a variable that is taken from elsewhere.
fn from_source(pod: &Value, container: &Value, name: &str, source: &Value) -> Text {
    let known = match (&source["fieldRef"]["fieldPath"], &source["resourceFieldRef"]) {
        (Value::String(path), _) => field(pod, path),
        (_, reference @ Value::Object(_)) => cpus(pod, container, reference),
        _ => None,
    };
    if let Some(known) = known.filter(|value| value.len() <= MAX_TEXT) {
        return Text::Known(known);
    }
    let kind = source.as_object().and_then(|source| source.keys().next());
    let kind = excerpt::name(kind.map_or("nothing", String::as_str));
    let of = [
        &source["fieldRef"]["fieldPath"],
        &source["resourceFieldRef"]["resource"],
    ];
    let of = of.into_iter().find_map(Value::as_str);
    let of = of.map_or_else(String::new, |of| format!(" {}", excerpt::name(of)));
    let name = excerpt::name(name);
    Text::Unknown {
        written: String::new(),
        on: format!("variable {name} comes from {kind}{of}, which is not read"),
    }
}

/// A field of the pod that is known before it is bound; a label or an annotation that it does not have is empty.
fn field(pod: &Value, path: &str) -> Option<String> {
    let metadata = &pod["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (map, key) = match path {
        "metadata.name" => return Some(text(&metadata["name"])),
        "metadata.namespace" => return Some(text(&metadata["namespace"])),
        "spec.serviceAccountName" => return Some(text(&pod["spec"]["serviceAccountName"])),
        path => path.strip_prefix("metadata.")?.split_once('[')?,
    };
    let key = key.strip_suffix(']')?;
    let quoted = |quote: char| key.strip_prefix(quote)?.strip_suffix(quote);
    let key = quoted('\'').or(quoted('"'))?;
    ["labels", "annotations"]
        .contains(&map)
        .then(|| text(&metadata[map][key]))
}

/// A container's own CPUs, in units of the divisor and rounded up.
fn cpus(pod: &Value, container: &Value, reference: &Value) -> Option<String> {
    let of = match reference["containerName"].as_str().filter(|name| !name.is_empty()) {
        None => container,
        Some(name) => super::container(pod, name)?,
    };
    let resources = &of["resources"];
    // The API server sets requests that are missing by the limits.
    let amount = match reference["resource"].as_str()? {
        "limits.cpu" => quantity(&resources["limits"]["cpu"])?,
        "requests.cpu" => quantity(&resources["requests"]["cpu"]).or(quantity(&resources["limits"]["cpu"]))?,
        _ => return None,
    };
    let divisor = quantity(&reference["divisor"]).filter(|milli| *milli > 0);
    Some(amount.div_ceil(divisor.unwrap_or(1000)).to_string())
}

/// In thousandths.
fn quantity(value: &Value) -> Option<u64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    text.parse::<Quantity>().ok().map(Quantity::milli)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn environment(env: Value) -> Environment {
        let pod = json!({
            "metadata": {
                "name": "vm-1", "namespace": "tenant",
                "labels": {"koordinator.sh/qosClass": "LSR"}, "annotations": {"cpus": "3"},
            },
            "spec": {"containers": [{"name": "other", "resources": {"limits": {"cpu": "1500m"}}}]},
        });
        let container = json!({"name": "vm", "env": env, "resources": {"limits": {"cpu": "4"}}});
        Environment::of(&pod, &container)
    }

    fn known(env: Value, text: &str) -> String {
        match environment(env).expand(text) {
            Text::Known(text) => text,
            Text::Unknown { on, .. } => panic!("{on}"),
        }
    }

    #[rstest]
    #[case("$(A)", "LSE")]
    #[case("--qos=$(A)$(A)", "--qos=LSELSE")]
    #[case("$$(A)", "$(A)")]
    #[case("$$$(A)", "$LSE")]
    #[case("$$$$(A)", "$$(A)")]
    #[case("$(B)", "$(B)")]
    #[case("$(A", "$(A")]
    #[case("$A", "$A")]
    #[case("cost: 5$", "cost: 5$")]
    #[case("$()", "$()")]
    #[case("${A}", "${A}")]
    #[case("$(A)$(", "LSE$(")]
    fn variables_are_replaced_as_kubelet_does(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(known(json!([{"name": "A", "value": "LSE"}]), text), expected);
    }

    #[test]
    fn a_value_is_expanded_by_those_before_it_and_a_later_one_replaces() {
        let env = json!([
            {"name": "A", "value": "$(B)"}, {"name": "B", "value": "b"}, {"name": "C", "value": "$(B)-$$(B)"},
            {"name": "B", "value": "last"}, {"name": "E"},
        ]);
        assert_eq!(known(env, "$(A) $(B) $(C) [$(E)]"), "$(B) last b-$(B) []");
    }

    #[rstest]
    #[case(json!({"fieldRef": {"fieldPath": "metadata.labels['koordinator.sh/qosClass']"}}), "LSR")]
    #[case(json!({"fieldRef": {"fieldPath": "metadata.annotations['cpus']"}}), "3")]
    #[case(json!({"fieldRef": {"fieldPath": "metadata.annotations['none']"}}), "")]
    #[case(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}), "vm-1")]
    #[case(json!({"fieldRef": {"fieldPath": "metadata.namespace"}}), "tenant")]
    #[case(json!({"resourceFieldRef": {"resource": "limits.cpu"}}), "4")]
    #[case(json!({"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}), "4000")]
    #[case(json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "other"}}), "2")]
    fn what_the_pod_itself_says_is_read(#[case] source: Value, #[case] expected: &str) {
        assert_eq!(known(json!([{"name": "A", "valueFrom": source}]), "$(A)"), expected);
    }

    #[rstest]
    #[case(json!({"secretKeyRef": {"name": "s", "key": "k"}}), "variable A comes from secretKeyRef, which is not read")]
    #[case(json!({"configMapKeyRef": {"name": "s", "key": "k"}}), "comes from configMapKeyRef")]
    #[case(json!({"fieldRef": {"fieldPath": "spec.nodeName"}}), "comes from fieldRef spec.nodeName")]
    #[case(json!({"resourceFieldRef": {"resource": "limits.memory"}}), "comes from resourceFieldRef limits.memory")]
    fn what_it_does_not_say_is_named(#[case] source: Value, #[case] why: &str) {
        let env = json!([{"name": "A", "valueFrom": source}, {"name": "B", "value": "b$(A)"}]);
        for text in ["--qos=$(A)", "$(B)"] {
            match environment(env.clone()).expand(text) {
                Text::Unknown { written, on } => assert!(written == text && on.contains(why), "{on}"),
                Text::Known(known) => panic!("{known}"),
            }
        }
    }

    /// Kubernetes itself would make terabytes of these.
    #[test]
    fn variables_that_double_are_bounded() {
        let mut env = vec![json!({"name": "V0", "value": "xx"})];
        let double =
            |number: usize| json!({"name": format!("V{number}"), "value": format!("$(V{0})$(V{0})", number - 1)});
        env.extend((1..5000).map(double));
        let environment = environment(env.into());
        assert_eq!(environment.expand("$(V3)"), Text::Known("x".repeat(16)));
        for name in ["V20", "V40", "V4999"] {
            let Text::Unknown { on, .. } = environment.expand(&format!("$({name})")) else {
                panic!("{name}")
            };
            assert!(on.contains("longer than 4096 bytes") || on.contains("envFrom"), "{on}");
        }
        // Long texts that are of no concern are cut nowhere, and passed over.
        assert!(matches!(environment.expand(&"y".repeat(5000)), Text::Unknown { .. }));
    }

    #[test]
    fn env_from_may_have_every_other_variable() {
        let container =
            json!({"name": "vm", "env": [{"name": "A", "value": "a$(B)"}], "envFrom": [{"secretRef": {"name": "s"}}]});
        let environment = Environment::of(&json!({}), &container);
        assert_eq!(environment.expand("$(A)"), Text::Known("a$(B)".to_owned()));
        let Text::Unknown { on, .. } = environment.expand("$(B)") else {
            panic!("it may be there")
        };
        assert_eq!(on, "variable B may be one of envFrom");
    }
}
