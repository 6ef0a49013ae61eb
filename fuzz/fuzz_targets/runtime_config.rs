//! A container runtime's `config.json`; behind a NUL the text of `/proc/devices`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stelia_kernel::runtime_config::{CONTAINERD, CRI_O, Config};
use stelia_kubelet::PodUid;

/// How many devices and classes every container may open.
const ALWAYS: usize = 10;
const DEVICES: &str = "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  7 loop\n";

fuzz_target!(|text: &str| {
    let (json, numbers) = text.split_once('\0').unwrap_or((text, DEVICES));
    let Some(config) = Config::parse(json) else {
        return;
    };
    let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").expect("a UID");
    let names = [CONTAINERD, CRI_O].map(|keys| config.container(keys, &pod).name);
    let devices = config.devices(numbers);
    // What is passed over is looked at less closely: a number that is too large is none for this parser.
    let Ok(file) = serde_json::from_str::<Value>(json) else {
        return;
    };
    for name in names.into_iter().flatten() {
        let annotations = file["annotations"].as_object().expect("the name is an annotation");
        assert!(annotations.values().any(|value| value.as_str() == Some(name.as_str())));
    }
    // A structure may be written as a list too: rules are looked at below only where they have keys.
    let none = Vec::new();
    let rules = file["linux"]["resources"]["devices"].as_array().unwrap_or(&none);
    let keyed = file.is_object() && file["linux"].is_object() && file["linux"]["resources"].is_object();
    if !keyed || !rules.iter().all(Value::is_object) {
        return;
    }
    let for_all = |rule: &&Value| rule["type"].as_str().is_none_or(|kind| kind == "a");
    let allows = |rule: &Value| rule["allow"] == Value::Bool(true);
    // Everything is allowed only where the last rule for all devices says so.
    let last = rules.iter().rev().find(for_all);
    assert_eq!(devices.policy == "auto", last.is_some_and(allows), "{devices:?}");
    if devices.policy == "auto" {
        return assert!(devices.allow.is_empty());
    }
    assert_eq!(devices.policy, "strict");
    // What is allowed is what rules after it allow, each a device or a class of devices, and what every container has.
    let after = rules.iter().rev().take_while(|rule| !for_all(rule));
    assert!(devices.allow.len() <= after.filter(|rule| allows(rule)).count() + ALWAYS);
    for (node, access) in &devices.allow {
        let kinds = ["/dev/char/", "/dev/block/", "char-", "block-"];
        assert!(
            kinds
                .iter()
                .any(|kind| node.strip_prefix(kind).is_some_and(|rest| !rest.is_empty())),
            "{node:?}"
        );
        assert!(
            access == "rwm" || access == "m" || rules.iter().any(|rule| rule["access"].as_str() == Some(access)),
            "{access:?}"
        );
    }
});
