//! What is said of the ledger.

use stelia_api::ledger::LedgerSummary;

use super::*;

fn kept() -> Facts {
    Facts {
        ledger: Some(LedgerSummary {
            enabled: true,
            key: "q1w2".to_owned(),
            day: "2026-10-31".to_owned(),
            bytes: 5 << 20,
            ..LedgerSummary::default()
        }),
        ..fit()
    }
}

fn said(facts: &Facts) -> (Verdict, String) {
    let all = checks(facts);
    let one = all.iter().find(|check| check.check == "ledger").unwrap();
    (one.verdict, one.found.clone())
}

#[test]
fn a_ledger_that_is_kept_and_signed_passes() {
    assert_eq!(
        said(&kept()),
        (Verdict::Ok, "written: 5.0 MiB, last signed for 2026-10-31".to_owned())
    );
}

#[test]
fn what_keeps_it_from_being_kept_or_signed_is_told() {
    let with = |change: fn(&mut Facts)| {
        let mut facts = kept();
        change(&mut facts);
        said(&facts)
    };
    let full = with(|facts| facts.ledger.as_mut().unwrap().problem = Some("no space left".to_owned()));
    assert_eq!(full, (Verdict::Warning, "no space left".to_owned()));
    assert_eq!(
        with(|facts| facts.ledger.as_mut().unwrap().key.clear()).0,
        Verdict::Warning
    );
    assert_eq!(
        with(|facts| facts.ledger.as_mut().unwrap().enabled = false).0,
        Verdict::Advice
    );
    assert_eq!(with(|facts| facts.tracing = false).0, Verdict::Advice);
    let mut facts = kept();
    facts.ledger = None;
    assert!(said(&facts).1.starts_with("not known"));
}
