//! What `steliactl plan` says of a manifest before kubelet has it, kubelet does after: with each policy of the Topology Manager.

use serde_json::{Value, json};

use crate::real::kubelet::frame::{beside_kubelet, start, stop};
use crate::real::kubelet::manifest::{Verdict, apply, delete, pod, sleeper, verdict};
use crate::support::*;

const FILE: &str = "/run/kubelet-node/planned.yaml";

enum Step {
    /// kubelet gets a pod with this name and these containers.
    Admit(&'static str, &'static [Container]),
    /// The same with a pod whose requests, with those of the others, are more than the node has. kubelet counts them after it has chosen
    /// CPUs. Its files do not say what pods of the shared pool request, and the plan leaves that to the scheduler (docs/planner.md).
    Beyond(&'static str, &'static [Container]),
    End(&'static str),
}

/// Name, CPUs, memory; a name that begins with `init-` is that of an init container.
type Container = (&'static str, &'static str, &'static str);

use Step::{Admit, Beyond, End};

/// The static memory manager, with what it needs.
fn with_memory(mut settings: Value) -> Value {
    settings["memoryManagerPolicy"] = "Static".into();
    settings["systemReserved"] = json!({"memory": "400Mi"});
    settings["reservedMemory"] = json!([
        {"numaNode": 0, "limits": {"memory": "300Mi"}}, {"numaNode": 1, "limits": {"memory": "200Mi"}},
    ]);
    settings
}

fn manifest(name: &str, containers: &[Container]) -> Value {
    let (init, app): (Vec<_>, Vec<_>) = containers.iter().partition(|(name, ..)| name.starts_with("init-"));
    let made = |(name, cpus, memory): &Container| sleeper(name, cpus, memory);
    let app: Vec<Value> = app.into_iter().map(made).collect();
    let mut init: Vec<Value> = init.into_iter().map(made).collect();
    let mut manifest = pod(name, &app);
    for container in &mut init {
        container["command"] = json!(["/busybox", "true"]);
    }
    manifest["spec"]["initContainers"] = init.into();
    manifest
}

/// The verdict that `steliactl plan` predicts, and what it assumed.
pub fn predicted(manifest: &Value) -> (Verdict, Value) {
    put(FILE, manifest.to_string());
    let (answer, _) = printed(&["steliactl", "plan", "-o", "json", FILE]);
    if answer["admitted"] == false {
        let rejection = &answer["rejection"];
        let rejected = Verdict::Rejected(text(&rejection["reason"]), text(&rejection["message"]));
        return (rejected, answer);
    }
    let containers = answer["containers"].as_array().into_iter().flatten();
    let exclusive = containers.filter(|container| container["cpus"].is_string());
    let cpus = exclusive.map(|one| (text(&one["container"]), text(&one["cpus"])));
    (Verdict::Admitted(cpus.collect()), answer)
}

/// kubelet's message has words before the manager's.
fn agree(predicted: &Verdict, real: &Verdict) -> bool {
    use Verdict::Rejected;
    match (predicted, real) {
        (Rejected(reason, message), Rejected(given, said)) => reason == given && said.contains(message),
        _ => predicted == real,
    }
}

/// Takes each step; answers how many pods kubelet decided on, and where the two differ.
fn play(policy: &str, steps: &[Step]) -> (usize, Vec<String>) {
    let (mut decided, mut different) = (0, Vec::new());
    for step in steps {
        let (name, containers) = match step {
            End(name) => {
                delete(name);
                continue;
            }
            Admit(name, containers) | Beyond(name, containers) => (name, containers),
        };
        let manifest = manifest(name, containers);
        let (predicted, answer) = predicted(&manifest);
        apply(&manifest);
        let real = verdict(name);
        let line = format!("{policy}: {name} {containers:?}: plan {predicted:?}, kubelet {real:?}");
        println!("  {line}; assumed {}, faults {}", answer["assumed"], answer["faults"]);
        if matches!(step, Beyond(..)) {
            assert!(matches!(predicted, Verdict::Admitted(_)), "{line}");
            // A static pod would preempt others.
            let Verdict::Rejected(_, message) = &real else {
                panic!("{line}")
            };
            assert_says(message, &["preemption: error finding a set of pods to preempt"]);
            continue;
        }
        decided += 1;
        if !agree(&predicted, &real) {
            different.push(line);
        }
    }
    (decided, different)
}

#[test]
fn a_plan_says_what_kubelet_decides_with_each_policy_of_the_topology_manager() {
    let rounds = rounds();
    let (mut decided, mut different) = (0, Vec::new());
    beside_kubelet(&rounds[0].1, || {
        for (number, (policy, settings, steps)) in rounds.iter().enumerate() {
            if number > 0 {
                stop();
                start(settings, "");
            }
            wait_until("kubelet has no pod", || kubelet_state()["entries"].is_null());
            let (count, others) = play(policy, steps);
            decided += count;
            different.extend(others);
        }
        println!("  {decided} pods decided on");
        assert!(different.is_empty(), "{different:#?}");
        assert!(decided >= 20, "{decided}");
    });
}

type Round = (&'static str, Value, &'static [Step]);

/// CPUs 0 and 1 are reserved; the cores are 0-1, 2-3 in NUMA node 0, 4-5, 6-7 in node 1.
fn rounds() -> [Round; 6] {
    [
        (
            "none",
            json!({}),
            &[
                Admit("one", &[("a", "1", "64Mi")]),
                Admit("three", &[("a", "3", "64Mi")]),
                Admit("half", &[("a", "500m", "64Mi")]),
                Admit("two-containers", &[("a", "1", "64Mi"), ("b", "500m", "64Mi")]),
                Admit("too-many", &[("a", "2", "64Mi")]),
                End("three"),
                Admit("in-the-gap", &[("a", "2", "64Mi")]),
            ],
        ),
        (
            "best-effort, full-pcpus-only",
            json!({"topologyManagerPolicy": "best-effort", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
            &[
                Admit("odd", &[("a", "3", "64Mi")]),
                Admit("core", &[("a", "2", "64Mi")]),
                Admit("two-cores", &[("a", "2", "64Mi"), ("b", "2", "64Mi")]),
                Admit("too-many", &[("a", "2", "64Mi")]),
                Beyond("shared", &[("a", "200m", "64Mi")]),
            ],
        ),
        (
            "restricted, scope pod, memory",
            with_memory(json!({
                "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            })),
            &[
                Admit("much-memory", &[("a", "1", "1200Mi")]),
                Admit("node-1", &[("a", "3", "200Mi")]),
                Admit("across", &[("a", "3", "100Mi")]),
                Admit("two", &[("a", "1", "64Mi"), ("b", "1", "64Mi")]),
                End("node-1"),
                Admit("with-init", &[("init-a", "2", "64Mi"), ("a", "2", "300Mi")]),
            ],
        ),
        (
            "single-numa-node, memory",
            with_memory(json!({"topologyManagerPolicy": "single-numa-node"})),
            &[
                Admit("two", &[("a", "2", "300Mi")]),
                Admit("five", &[("a", "5", "64Mi")]),
                Admit("three", &[("a", "3", "1200Mi")]),
                Admit("no-memory", &[("a", "1", "700Mi")]),
                Beyond("one-and-more", &[("a", "1", "64Mi"), ("b", "100m", "64Mi")]),
                End("one-and-more"),
                Admit("one", &[("a", "1", "64Mi")]),
            ],
        ),
        (
            "best-effort, distribute-cpus-across-numa",
            json!({"topologyManagerPolicy": "best-effort", "cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"}}),
            &[
                Admit("five", &[("a", "5", "64Mi")]),
                Admit("one", &[("a", "1", "64Mi")]),
            ],
        ),
        (
            "best-effort, scope pod, strict-cpu-reservation",
            json!({
                "topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod",
                "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"},
            }),
            &[
                Admit("three", &[("a", "2", "64Mi"), ("b", "1", "64Mi")]),
                Admit("two", &[("a", "2", "64Mi")]),
                Admit("shared", &[("a", "100m", "64Mi")]),
            ],
        ),
    ]
}
