//! A node's description, as `steliactl plan --node` reads it: JSON or YAML. And the node in one attribute.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_koordinator::allocator::evaluate::{EvaluateRequest, evaluate};
use stelia_koordinator::allocator::{CpuBindPolicy, NumaTopologyAlignmentPolicy, Qos};
use stelia_koordinator::report::compact::Compact;
use stelia_koordinator::report::{ApiVersion, described, report};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    match Compact::parse(text) {
        Ok(compact) => {
            let again = Compact::parse(&compact.text()).unwrap();
            same(&again, &compact, "written and read again");
        }
        Err(error) => fits(&error),
    }
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
    same(
        &again.allocator_node().is_ok(),
        &facts.allocator_node().is_ok(),
        "who chooses",
    );
    let Ok(node) = facts.allocator_node() else { return };
    let of = |cpus, qos| {
        let mut request = EvaluateRequest::default();
        request.allocation.cpus = cpus;
        request.allocation.qos = Some(qos);
        request.allocation.numa_topology_alignment_policy = Some(NumaTopologyAlignmentPolicy::BestEffort);
        request
    };
    let mut burst = of(None, Qos::Ls);
    burst.allocation.cpu_bind_policy = Some(CpuBindPolicy::ConstrainedBurst);
    burst.allocation.cpu_limit = Some(1500);
    let requests = [of(Some(1), Qos::Lse), of(Some(3), Qos::Lsr), of(None, Qos::Be), burst];
    for answer in evaluate(&node, &requests) {
        match answer {
            Ok(answer) => {
                assert!(answer.cpus.is_subset(&facts.shared), "{} is assigned", answer.cpus);
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
