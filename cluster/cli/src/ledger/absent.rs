//! What is said where no ring has the VM: the period, what the rings have instead, and which are not counted.

use std::collections::BTreeSet;

use stelia_table::{counted, printable};

use super::{ReadRing, clock};

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
    let mut causes: Vec<(&str, Vec<&ReadRing>)> = Vec::new();
    for ring in rings {
        let Some(problem) = ring.problem.as_deref() else {
            continue;
        };
        match causes.iter_mut().find(|(cause, _)| *cause == problem) {
            Some((_, same)) => same.push(ring),
            None => causes.push((problem, vec![ring])),
        }
    }
    let named = causes.iter().take(MAX_CAUSES).map(|(cause, same)| {
        let first = same.first();
        let first = first.map(|ring| format!("{} ({})", ring.node, ring.directory.display()));
        let first = first.unwrap_or_default();
        match same.len() {
            1 => format!("; {first}: {cause}"),
            all => format!("; {all} rings, such as {first}: {cause}"),
        }
    });
    let mut text: String = named.collect();
    let more: usize = causes.iter().skip(MAX_CAUSES).map(|(_, same)| same.len()).sum();
    if more > 0 {
        text += &format!("; {} not counted for other causes", counted(more as u64, "more ring"));
    }
    text
}

#[cfg(test)]
mod tests {
    use stelia_ledger::account::Account;
    use stelia_ledger::day::Month;

    use super::*;
    use crate::ledger::DAY_US;

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

    fn said(rings: &[ReadRing]) -> String {
        absent(rings, Month::parse("2026-12").unwrap().period(), OCTOBER)
    }

    #[test]
    fn the_period_and_what_the_rings_have_are_named() {
        let begin = "no ring has such a VM from 2026-12-01 00:00 to 2027-01-01 00:00 (UTC)";
        assert_eq!(
            said(&[ring("n1", None, &[])]),
            format!("{begin}; the rings have entries from 2026-10-01 00:00 to 2026-10-02 00:00")
        );
        let (one, two) = (ring("n1", None, &["a/web"]), ring("n2", None, &["a/web", "b/db"]));
        assert_eq!(
            said(&[one.clone(), two]),
            format!("{begin}; in that time a/web and b/db ran on the nodes")
        );
        let three = ring("n2", None, &["c/db", "b/db"]);
        assert_eq!(
            said(&[one.clone(), three]),
            format!("{begin}; in that time 3 pods ran on the nodes, such as a/web and b/db")
        );
        assert!(
            absent(&[one], (0, u64::MAX), OCTOBER).starts_with("no ring has such a VM until 2026-10-01 00:00 (UTC)")
        );
    }

    #[test]
    fn rings_that_are_not_counted_share_their_cause() {
        let key = Some("no head is signed with a known key");
        let fleet: Vec<ReadRing> = (0..40).map(|number| ring(&format!("n{number}"), key, &[])).collect();
        assert_eq!(
            said(&fleet),
            "no counted ring has such a VM from 2026-12-01 00:00 to 2027-01-01 00:00 (UTC); 40 rings, such as n0 (rings/n0): \
             no head is signed with a known key"
        );
        let one = said(&[ring("n1", Some("it was changed"), &[])]);
        assert!(one.ends_with("; n1 (rings/n1): it was changed"), "{one}");
        let causes = ["a", "b", "c", "d", "e"].map(|cause| ring("n1", Some(cause), &[]));
        let several = said(&causes);
        assert!(
            several.ends_with("; n1 (rings/n1): c; 2 more rings not counted for other causes"),
            "{several}"
        );
    }
}
