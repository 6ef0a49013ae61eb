//! The pods that are asked for.

use serde_json::{Value, json};
use std::time::Duration;

use super::random::Random;

/// A pod that the simulation will create.
#[derive(Debug, Clone)]
pub(crate) struct PlannedPod {
    pub(crate) number: usize,
    pub(crate) cpus: u32,
    pub(crate) lives: Duration,
    /// After the one before it.
    pub(crate) after: Duration,
}

/// Sizes of VMs: an odd one now and then, which whole cores do not take.
const SIZES: [u32; 12] = [2, 2, 2, 4, 4, 4, 4, 6, 8, 8, 12, 14];

/// The load, which depends on the seed alone.
pub(crate) fn load(random: &mut Random, pods: usize, nodes: usize) -> Vec<PlannedPod> {
    // A pod has 6 CPUs and lives 60 s on average, a node has 28: so the cluster is nearly full after a minute.
    let pause = 60_000 * 6 / (28 * nodes as u64);
    let wanted = |number| PlannedPod {
        number,
        cpus: *random.of(&SIZES),
        lives: random.between(20_000, 100_000),
        after: random.between(pause / 2, pause * 3 / 2),
    };
    (0..pods).map(wanted).collect()
}

/// Two VMs that fill a node, one of them for long, and a third one that waits for the end of the other.
pub(crate) fn quiet() -> Vec<PlannedPod> {
    let lives = [30, 600, 10];
    let wanted = |(number, lives)| PlannedPod {
        number,
        cpus: 14,
        lives: Duration::from_secs(lives),
        after: Duration::from_secs(8),
    };
    lives.into_iter().enumerate().map(wanted).collect()
}

/// The pod as its author writes it. It follows what is chosen for it.
pub(crate) fn pod(name: &str, uid: &str, cpus: u32, vm: bool) -> Value {
    let mut limits = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    if vm {
        limits["stelia.io/vm"] = "1".into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "vms", "name": name, "uid": uid},
        "spec": {
            "schedulerName": if vm { "stelia-scheduler" } else { "default-scheduler" },
            "restartPolicy": "Never",
            "containers": [{
                "name": "vm",
                "image": "vm",
                "command": ["stelia-runner", "run", "--resource-status", "/podinfo/status", "--", "qemu"],
                "resources": {"limits": limits, "requests": limits},
            }],
        },
        "status": {"phase": "Pending"},
    })
}

/// A UID by a number.
pub(crate) fn uid(number: u64, kind: u64) -> String {
    let spread = u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) ^ u128::from(kind);
    let digits = format!("{spread:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}
