//! A node's description, as `steliactl evaluate --node` reads it: JSON or YAML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_allocator::evaluate::{Request, evaluate};
use stelia_allocator::{CpuBindPolicy, NumaTopologyAlignmentPolicy, Qos};
use stelia_node_report::{ApiVersion, described, report};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    let facts = match described::read(text) {
        Ok(facts) => facts,
        Err(error) => return fits(&error),
    };
    let printed = |version| serde_json::to_string(&report(&facts, version)).unwrap();
    let version = match facts
        .kubelet
        .alignment
        .as_ref()
        .map(|alignment| alignment.policy.as_str())
    {
        // v1alpha1 has no name for others.
        None | Some("none" | "best-effort" | "restricted" | "single-numa-node") => ApiVersion::V1Alpha1,
        Some(_) => ApiVersion::V1Alpha2,
    };
    let again = described::read(&printed(version)).unwrap();
    same(
        &report(&again, version),
        &report(&facts, version),
        "printed and read again",
    );
    same(&again.ground().is_ok(), &facts.ground().is_ok(), "who chooses");
    let Ok(ground) = facts.ground() else { return };
    let of = |cpus, qos| Request {
        cpus,
        qos: Some(qos),
        numa_topology_alignment_policy: Some(NumaTopologyAlignmentPolicy::BestEffort),
        ..Request::default()
    };
    let burst = Request {
        cpu_bind_policy: Some(CpuBindPolicy::ConstrainedBurst),
        cpu_limit: Some(1500),
        ..of(None, Qos::Ls)
    };
    let requests = [of(Some(1), Qos::Lse), of(Some(3), Qos::Lsr), of(None, Qos::Be), burst];
    for answer in evaluate(&ground, &requests) {
        match answer {
            Ok(answer) => {
                assert!(answer.cpus.is_subset(&facts.shared), "{} is somebody's", answer.cpus);
                assert!(answer.cpus.is_disjoint(&facts.reserved), "{} is reserved", answer.cpus);
                assert!(
                    answer.score.numa <= 100 && answer.score.cpus <= 100,
                    "{:?}",
                    answer.score
                );
            }
            Err(refusal) => assert!(!refusal.text.is_empty()),
        }
    }
});
