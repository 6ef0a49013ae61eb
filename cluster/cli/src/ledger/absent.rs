//! What is said where no ring has the VM: the period, what the rings have instead, and which are not counted.

use std::collections::BTreeSet;

use stelia_table::{counted, printable};

use super::{ReadRing, clock};
use crate::reasons::{Refusal, groups};

/// Limit of the causes that are named.
const MAX_CAUSES: usize = 3;
/// Limit of the pods that are named.
const MAX_PODS: usize = 2;

/// That no ring has a VM in a period. `now_us` is the end of one that has none.
pub fn absent(rings: &[ReadRing], (since_us, until_us): (u64, u64), now_us: u64) -> String {
    let end = match until_us {
        u64::MAX => now_us,
        until => until,
    };
    let period = match since_us {
        0 => format!("until {} (UTC)", clock(end)),
        since => format!("from {} to {} (UTC)", clock(since), clock(end)),
    };
    let ring = if rings.iter().any(|ring| ring.problem.is_some()) {
        "no counted ring"
    } else {
        "no ring"
    };
    format!(
        "{ring} has such a VM {period}{}{}",
        instead(rings).unwrap_or_default(),
        not_counted(rings)
    )
}

/// What counted rings have.
fn instead(rings: &[ReadRing]) -> Option<String> {
    let good = || rings.iter().filter(|ring| ring.problem.is_none());
    let accounts = good().flat_map(|ring| &ring.accounts);
    let pods: BTreeSet<&str> = accounts
        .map(|account| {
            if account.name.is_empty() {
                account.vm.as_str()
            } else {
                account.name.as_str()
            }
        })
        .collect();
    if !pods.is_empty() {
        let named: Vec<String> = pods.iter().take(MAX_PODS).map(|pod| printable(pod)).collect();
        let named = named.join(" and ");
        return Some(match pods.len() {
            all if all <= MAX_PODS => format!("; in that time {named} ran on the nodes"),
            all => format!("; in that time {all} pods ran on the nodes, such as {named}"),
        });
    }
    let verdicts = || good().map(|ring| &ring.verdict).filter(|verdict| verdict.entries > 0);
    let first = verdicts().map(|verdict| verdict.first_us).min()?;
    let last = verdicts().map(|verdict| verdict.last_us).max()?;
    Some(format!(
        "; the rings have entries from {} to {}",
        clock(first),
        clock(last)
    ))
}

/// Why rings are not counted, each cause once. The VM may be in those rings.
fn not_counted(rings: &[ReadRing]) -> String {
    let problems = rings.iter().filter_map(|ring| {
        let place = format!("{} ({})", ring.node, ring.directory.display());
        Some((place, Refusal::new(ring.problem.clone()?, "")))
    });
    let problems: Vec<(String, Refusal)> = problems.collect();
    let causes = groups(problems.iter().map(|(place, problem)| (place.as_str(), problem)));
    let named = causes.iter().take(MAX_CAUSES);
    let mut text: String = named
        .map(|cause| format!("; {}: {}", cause.such_as(), cause.reason))
        .collect();
    let more: u64 = causes.iter().skip(MAX_CAUSES).map(|cause| cause.nodes).sum();
    if more > 0 {
        text += &format!("; {} not counted for other causes", counted(more, "more ring"));
    }
    text
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::Account;
    use stelia_ledger::day::{DAY_US, Month};

    use super::*;

    /// 2026-10-01.
    const OCTOBER: u64 = 1_790_812_800_000_000;

    fn ring(node: &str, problem: Option<&str>, pods: &[&str]) -> ReadRing {
        let account = |pod: &&str| Account {
            name: (*pod).to_owned(),
            ..Account::default()
        };
        let mut ring = ReadRing {
            node: node.to_owned(),
            directory: format!("rings/{node}").into(),
            problem: problem.map(str::to_owned),
            accounts: pods.iter().map(account).collect(),
            ..ReadRing::default()
        };
        ring.verdict.entries = 2;
        (ring.verdict.first_us, ring.verdict.last_us) = (OCTOBER, OCTOBER + DAY_US);
        ring
    }

    #[test]
    fn the_period_what_the_rings_have_and_why_some_are_not_counted_are_named() {
        let december = Month::parse("2026-12").unwrap().period();
        let of = |node: &str, pods: &[&str]| ring(node, None, pods);
        let wrong = |cause: &str| ring("n1", Some(cause), &[]);
        let key = (0..40).map(|number| ring(&format!("n{number}"), Some("unknown key"), &[]));
        for (rings, rest) in [
            (
                vec![of("n1", &[])],
                "; the rings have entries from 2026-10-01 00:00 to 2026-10-02 00:00",
            ),
            (
                vec![of("n1", &["a/web"]), of("n2", &["a/web", "b/db"])],
                "; in that time a/web and b/db ran on the nodes",
            ),
            (
                vec![of("n1", &["a/web"]), of("n2", &["c/db", "b/db"])],
                "; in that time 3 pods ran on the nodes, such as a/web and b/db",
            ),
            (
                key.collect(),
                "; n0 (rings/n0), n1 (rings/n1), n2 (rings/n2), …: unknown key",
            ),
            (vec![wrong("it was changed")], "; n1 (rings/n1): it was changed"),
            (
                ["a", "b", "c", "d", "e"].map(wrong).to_vec(),
                "; n1 (rings/n1): a; n1 (rings/n1): b; n1 (rings/n1): c; 2 more rings not counted for other causes",
            ),
        ] {
            let ring = if rest.contains("n1 (") {
                "no counted ring"
            } else {
                "no ring"
            };
            let said = absent(&rings, december, OCTOBER);
            assert_eq!(
                said,
                format!("{ring} has such a VM from 2026-12-01 00:00 to 2027-01-01 00:00 (UTC){rest}")
            );
        }
        let said = absent(&[of("n1", &[])], (0, u64::MAX), OCTOBER);
        assert!(
            said.starts_with("no ring has such a VM until 2026-10-01 00:00 (UTC)"),
            "{said}"
        );
    }
}
