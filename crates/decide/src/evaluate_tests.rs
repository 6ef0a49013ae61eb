use proptest::prelude::*;
use rstest::rstest;
use stelia_api::ErrorKind;
use stelia_cpus::CpuSet;
use stelia_cpus::testing::Shape;
use stelia_koordinator::allocator::evaluate::score::ScoringStrategy;
use stelia_koordinator::allocator::evaluate::score::ScoringStrategy::{
    BalancedAllocation, LeastAllocated, MostAllocated,
};
use stelia_koordinator::allocator::evaluate::*;
use stelia_koordinator::allocator::{
    AllocatorPolicies, CpuBindPolicy, NumaAllocateStrategy, NumaTopologyAlignmentPolicy, Qos,
};
use stelia_kubelet::QosClass;

use crate::allocator::allot;
use crate::testing::evaluation::{allocator_node, any_host, any_request, facts, hold, host, ours};

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn shape(nodes: u32, cores: u32) -> Shape {
    Shape {
        nodes,
        cores,
        threads: 2,
        interleaved: false,
    }
}

fn of_cpus(cpus: u32, scoring_strategy: ScoringStrategy) -> EvaluateRequest {
    let mut request = EvaluateRequest::default();
    request.allocation.cpus = Some(cpus);
    request.options.scoring_strategy = scoring_strategy;
    request
}

#[rstest]
#[case(LeastAllocated, 75)]
#[case(MostAllocated, 25)]
fn the_documents_example_scores_as_it_says(#[case] strategy: ScoringStrategy, #[case] score: u32) {
    // 8 NUMA nodes, 4 CPUs on 2 of them; no alignment policy, so no A.
    let unaligned = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::None,
        ..ours()
    };
    let allocator_node = allocator_node(&host(shape(8, 1)), &unaligned);
    let mut request = of_cpus(4, strategy);
    request.allocation.cpu_bind_policy = Some(CpuBindPolicy::FullPcpus);
    let answer = answer(&allocator_node, &request).unwrap();
    assert_eq!(answer.numa_nodes, [0, 1].into());
    assert_eq!(
        (answer.score.numa, answer.score.cpus, answer.score.sum),
        (0, score, score)
    );
}

#[rstest]
#[case(MostAllocated, 50, 50)]
#[case(LeastAllocated, 25, 50)]
#[case(BalancedAllocation, 62, 62)]
fn a_is_the_least_of_the_nodes_that_have_room(#[case] strategy: ScoringStrategy, #[case] a: u32, #[case] b: u32) {
    // Two nodes of 8 CPUs: 2 of node 0's are held. With 4 more it is 6 of 8 there, or 4 of 8 on node 1.
    let mut host = host(shape(2, 4));
    let held = allot(
        &of_cpus(2, strategy).wanted(),
        &EvaluateRequest::default().requester(),
        &host,
        &facts(&host, &ours()),
        &ours(),
    )
    .unwrap();
    assert_eq!(held.0.difference(&cpus("0-7")), CpuSet::new());
    hold(&mut host, 1, held);
    let node = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        ..ours()
    };
    let answer = answer(&allocator_node(&host, &node), &of_cpus(4, strategy)).unwrap();
    // BalancedAllocation: 75 and 0 percent used, 37.5 about their mean; on node 1 it would be 25 and 50.
    assert_eq!(answer.numa_nodes, [0].into());
    assert_eq!((answer.score.numa, answer.score.cpus), (a, b));
}

#[test]
fn an_instance_on_several_nodes_is_scored_by_its_parts() {
    let node = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::BestEffort,
        bind: CpuBindPolicy::SpreadByPcpus,
        strategy: NumaAllocateStrategy::LeastAllocated,
        reserved: cpus("0-1"),
        ..ours()
    };
    // Nodes of 4 CPUs, 2 of the first reserved: 3 CPUs of two others each.
    let answer = answer(&allocator_node(&host(shape(4, 2)), &node), &of_cpus(6, MostAllocated)).unwrap();
    assert_eq!(answer.numa_nodes.len(), 2);
    assert_eq!(answer.score, Score::new(75, 50));
    assert!(!answer.aligned);
}

#[test]
fn classes_without_cpus_of_their_own_are_scored_by_a_alone() {
    let node = AllocatorPolicies {
        alignment: NumaTopologyAlignmentPolicy::SingleNumaNode,
        ..ours()
    };
    let allocator_node = allocator_node(&host(shape(2, 4)), &node);
    let of = |qos, limit| {
        let mut request = EvaluateRequest::default();
        request.allocation.qos = Some(qos);
        request.allocation.cpu_limit = Some(limit);
        request.options.scoring_strategy = LeastAllocated;
        request
    };
    let ls = answer(&allocator_node, &of(Qos::Ls, 3500)).unwrap();
    assert_eq!((ls.cpus, ls.runs_on.to_string().as_str()), (CpuSet::new(), "0-7"));
    assert_eq!(ls.score, Score::new(50, 0));
    let be = answer(&allocator_node, &of(Qos::Be, 3500)).unwrap();
    assert_eq!((be.runs_on, be.score), (cpus("0-15"), Score::new(0, 0)));
    let refused = answer(&allocator_node, &of(Qos::Ls, 9000)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotAllocated);
}

#[test]
fn a_pods_kubernetes_class_bounds_it_and_its_limit_is_its_number() {
    let allocator_node = allocator_node(&host(shape(2, 4)), &ours());
    let of = |class: QosClass, limit: u32| {
        let mut request = EvaluateRequest::default();
        request.options.kubernetes_class = Some(class);
        request.allocation.cpu_limit = Some(limit);
        request.allocation.qos = Some(Qos::Lse);
        request
    };
    assert_eq!(
        answer(&allocator_node, &of(QosClass::Guaranteed, 4000))
            .unwrap()
            .cpus
            .len(),
        4
    );
    for (request, says) in [
        (of(QosClass::Burstable, 4000), "a Burstable pod cannot be of class LSE"),
        (
            of(QosClass::Guaranteed, 2500),
            "whole number of CPUs as limit, the container's is 2500m",
        ),
    ] {
        let refused = answer(&allocator_node, &request).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotGuaranteed);
        assert!(refused.text.contains(says), "{refused}");
    }
    let told = EvaluateAnswer::from(answer(&allocator_node, &of_cpus(99, MostAllocated)));
    assert_eq!(
        (told.fit, told.error.as_deref(), told.place),
        (false, Some("NotAllocated"), None)
    );
    assert!(told.reason.unwrap().contains("99 CPUs are wanted, 16 are available"));
}

#[test]
fn requests_are_read_strictly() {
    let read = |text: &str| serde_json::from_str::<EvaluateRequest>(text);
    let mut first = of_cpus(4, LeastAllocated);
    first.allocation.qos = Some(Qos::Lsr);
    let text = r#"{"cpus": 4, "qos": "LSR", "scoring-strategy": "LeastAllocated"}"#;
    assert_eq!(read(text).unwrap(), first);
    assert_eq!(read("{}").unwrap(), EvaluateRequest::default());
    for (text, says) in [
        (r#"{"cpu": 4}"#, "unknown field `cpu`"),
        (r#"{"scheduled-cpuset": "1"}"#, "unknown field `scheduled-cpuset`"),
        (r#"{"qos": "lse"}"#, "unknown variant `lse`"),
        (r#"{"cpus": -1}"#, "invalid value"),
    ] {
        let told = read(text).unwrap_err().to_string();
        assert!(told.contains(says), "{told}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_fits_is_admitted_with_the_same_cpus_and_nothing_else_is(
        (host, node) in any_host(), requests in proptest::collection::vec(any_request(), 1..6),
    ) {
        let allocator_node = allocator_node(&host, &node);
        let answers = evaluate(&allocator_node, &requests);
        prop_assert_eq!(answers.len(), requests.len());
        for (request, told) in requests.iter().zip(&answers) {
            let admitted = allot(&request.wanted(), &request.requester(), &host, &facts(&host, &node), &node);
            prop_assert_eq!(told, &answer(&allocator_node, request), "each alone");
            match (told, admitted) {
                (Err(refusal), Err(same)) => prop_assert_eq!(refusal, &same),
                (Ok(told), Ok((cpus, allocation))) => {
                    prop_assert_eq!((&told.cpus, told.qos), (&cpus, allocation.qos));
                    prop_assert!(told.score.numa <= 100 && told.score.cpus <= 100);
                    prop_assert_eq!(told.score.cpus > 0 && told.qos == Qos::Ls, false);
                    prop_assert!(!told.runs_on.is_empty());
                    let mut with = host.clone();
                    hold(&mut with, 99, (cpus, allocation));
                    let pools = facts(&with, &node).pools().cloned().unwrap();
                    prop_assert!(told.qos.is_exclusive() == pools.shared.is_disjoint(&told.runs_on));
                }
                (told, admitted) => prop_assert!(false, "{:?} is told, {:?} is admitted", told, admitted),
            }
        }
    }
}
