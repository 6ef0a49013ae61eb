//! A simulated cluster: the program as it is, an API server in memory, nodes that decide by kubelet's planner and by the allocator
//! on their own full state, a scheduler's loop, and whatever goes wrong. Time is tokio's, paused; what is random follows a seed.

mod delayed_watch;
mod hostile_author;
pub(crate) mod instance;
mod kubelet;
pub(crate) mod load;
pub(crate) mod node;
pub(crate) mod node_kind;
pub(crate) mod random;
pub(crate) mod run;
mod scheduler;
mod table;

use rstest::rstest;
use run::{Outcome, Plan, Scheduling, run};

/// Pods placed in `cargo test`; `STELIA_PLACEMENTS` overrides the number (`make sim-placement`).
fn placements(usual: usize) -> usize {
    std::env::var("STELIA_PLACEMENTS").map_or(usual, |number| number.parse().expect("STELIA_PLACEMENTS: a number"))
}

/// Nodes of the cluster; `STELIA_PLACEMENT_NODES` overrides the number.
fn nodes() -> usize {
    std::env::var("STELIA_PLACEMENT_NODES")
        .map_or(12, |number| number.parse().expect("STELIA_PLACEMENT_NODES: a number"))
}

/// Runs a plan, and prints its outcome.
fn outcome_of(plan: Plan) -> Outcome {
    let outcome = run(plan);
    println!("{}", table::whole(std::slice::from_ref(&outcome)));
    outcome
}

/// By default `usual` pods.
fn plan(usual: usize, seed: u64) -> Plan {
    Plan {
        nodes: nodes(),
        pods: placements(usual),
        seed,
        ..Plan::default()
    }
}

#[rstest]
#[case::where_all_whole_cpu_pods_come_through_it(plan(240, 1))]
#[case::although_it_is_killed_and_objects_are_late(Plan { kills: true, late: true, dying: true, ..plan(160, 2) })]
#[case::whatever_authors_make_of_their_pods(Plan { hostile: true, ..plan(160, 4) })]
fn nothing_is_refused(#[case] plan: Plan) {
    let outcome = outcome_of(plan);
    assert_eq!((outcome.refused, outcome.claimed_twice, outcome.leaked), (0, 0, 0));
    assert!(outcome.bound >= plan.pods, "{outcome:?}");
    assert!(outcome.kills > 2 || !plan.kills, "{outcome:?}");
}

/// A binding that a frozen leader sent arrives when the next one has begun: a node may refuse a pod, and no leader promises a CPU twice.
#[test]
fn a_frozen_leader_costs_refusals_at_most() {
    let mut frozen = 0;
    for seed in 1..=3 {
        let plan = Plan {
            freezes: true,
            ..plan(100, seed)
        };
        let outcome = outcome_of(plan);
        assert_eq!(outcome.refused, outcome.refused_frozen, "{outcome:?}");
        assert_eq!((outcome.claimed_twice, outcome.leaked), (0, 0));
        assert!(outcome.bound >= plan.pods, "{outcome:?}");
        frozen += outcome.frozen;
    }
    assert!(frozen > 0, "no binding of a frozen leader came late");
}

#[test]
fn every_refusal_beside_another_scheduler_is_booked_to_it() {
    let plan = Plan {
        late: true,
        foreign: true,
        ..plan(160, 3)
    };
    let outcome = outcome_of(plan);
    assert_eq!(outcome.refused, outcome.refused_foreign, "{outcome:?}");
    assert_eq!((outcome.claimed_twice, outcome.leaked), (0, 0));
    assert!(outcome.foreign > 5, "{outcome:?}");
}

#[test]
fn the_same_load_by_counting_beside_it() {
    let run = |way| run(Plan { way, ..plan(160, 1) });
    let outcomes = [Scheduling::Placement, Scheduling::Zones, Scheduling::Counting].map(run);
    println!("{}", table::whole(&outcomes));
    let [placement, zones, counting] = &outcomes;
    assert_eq!(placement.refused, 0);
    assert!(counting.refused > zones.refused, "{outcomes:?}");
}

/// The end of a VM is seen first by the API server, then in the node's object; nothing happens afterwards that a scheduler watches.
#[test]
fn a_vm_that_waits_is_placed_soon_after_its_node_has_room() {
    for seed in 1..=4 {
        let plan = Plan {
            nodes: 1,
            pods: 3,
            seed,
            quiet: true,
            ..Plan::default()
        };
        let outcome = outcome_of(plan);
        assert_eq!((outcome.bound, outcome.refused, outcome.leaked), (3, 0, 0));
        // It waits for 22 s until the other one ends, up to 8 s until that is published, and as long as a scheduler's longest backoff.
        assert!(outcome.longest < std::time::Duration::from_secs(60), "{outcome:?}");
    }
}
