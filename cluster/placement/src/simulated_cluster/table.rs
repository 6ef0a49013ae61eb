//! Outcomes as a table.

use super::run::{Outcome, Plan, Scheduling};

fn way(plan: Plan) -> &'static str {
    match plan.way {
        Scheduling::Placement => "stelia-placement",
        Scheduling::Zones => "free CPUs of a NUMA node, by the objects",
        Scheduling::Counting => "the sum of requests",
    }
}

fn trouble(plan: Plan) -> String {
    let all = [
        (plan.kills, "killed"),
        (plan.freezes, "frozen"),
        (plan.late, "late watches"),
        (plan.dying, "dying publishers"),
        (plan.foreign, "another scheduler"),
        (plan.hostile, "a hostile author"),
    ];
    let all: Vec<&str> = all.into_iter().filter(|(is, _)| *is).map(|(_, text)| text).collect();
    all.join(", ")
}

const HEAD: &str = "| placed by | trouble | pods | bound | refused by their nodes | of those booked to others | attempts | instances killed | waited on average | at most |\n\
                    |---|---|---|---|---|---|---|---|---|---|";

fn row(outcome: &Outcome) -> String {
    let plan = outcome.plan;
    let (refused, reasons) = (outcome.refused, &outcome.reasons);
    let mean = outcome.waited.as_secs_f64() / outcome.bound.max(1) as f64;
    format!(
        "| {} | {} | {} | {} | {refused} {reasons:?} | {} | {} | {} | {mean:.1} s | {:.0} s |",
        way(plan),
        trouble(plan),
        plan.pods,
        outcome.bound,
        outcome.refused_foreign,
        outcome.attempts,
        outcome.kills,
        outcome.longest.as_secs_f64()
    )
}

pub(super) fn whole(outcomes: &[Outcome]) -> String {
    let rows: Vec<String> = outcomes.iter().map(row).collect();
    format!("{HEAD}\n{}", rows.join("\n"))
}
