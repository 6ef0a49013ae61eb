//! What schedulers are told before: the answer is what is given then.

use std::fs;

use serde_json::Value;

use super::{Sleeper, nodes, on_allocator};
use crate::support::*;

/// Ask the daemon, or the node that `node` describes; the answers, and the exit code.
fn evaluate(node: &[&str], words: &[&str]) -> (Value, Option<i32>) {
    let (answers, out) = printed(&[&["steliactl", "--json=short", "plan"], node, words].concat());
    (answers, out.status.code())
}

#[test]
fn what_schedulers_are_told_is_what_is_given_and_a_description_answers_the_same() {
    on_allocator("reserved-cpus = \"0\"\ncpu-exclusive-policy = \"PCPULevel\"", || {
        let [one, two] = ["one", "two"].map(|name| Sleeper::start(name, &[]));
        let first = one.get("cpus=2 qos=LSR");
        let described = "/run/described.json";
        put(described, run("steliactl export topology --node-name worker-1"));
        for (asked, registered) in [
            ("--cpus 2", "cpus=2"),
            (
                "--cpus 3 --cpu-bind-policy FullPCPUs",
                "cpus=3 cpu-bind-policy=FullPCPUs",
            ),
            (
                "--cpus 3 --scoring-strategy LeastAllocated --numa-topology-alignment-policy SingleNUMANode",
                "cpus=3 numa-topology-alignment-policy=SingleNUMANode",
            ),
        ] {
            let (told, code) = evaluate(&[], &words(asked));
            assert_eq!((told["admitted"].as_bool(), code), (Some(true), Some(0)), "{told}");
            let placement = &told["placement"];
            assert_eq!(
                &evaluate(&["--node", described], &words(asked)).0["placement"],
                placement
            );
            let promised = cpus(placement["cpus"].as_str().unwrap_or_else(|| panic!("{told}")));
            let given = two.get(registered);
            assert_eq!(given, promised, "{registered}");
            assert!(given.is_disjoint(&first) && !given.contains(0), "{given}");
            let told_nodes = placement["numa-nodes"].as_array().map(Vec::len);
            assert_eq!(told_nodes, Some(nodes(&given).len()), "{told}");
            two.give_back();
        }
        // What does not fit is refused in the words that were told.
        let (told, code) = evaluate(&[], &["--cpus", "6"]);
        assert_eq!(
            (told["rejection"]["reason"].as_str(), code),
            (Some("NotAllocated"), Some(1)),
            "{told}"
        );
        let same = evaluate(&["--node", described], &["--cpus", "6"]).0;
        assert_eq!(same["rejection"], told["rejection"]);
        two.assert_not_allocated("cpus=6", told["rejection"]["message"].as_str().unwrap_or_default());
        // Nobody need be root to ask.
        let asked = run(
            "setpriv --reuid=65534 --regid=65534 --clear-groups busctl call io.stelia.Isolation1 \
             /io/stelia/Isolation1 io.stelia.Isolation1.Manager EvaluatePlacement aa{sv}a{sv} 1 1 cpus u 2 0",
        );
        assert!(asked.contains("\"fit\" b true"), "{asked}");
        fs::remove_file(described).expect(described);
        one.give_back();
    });
}
