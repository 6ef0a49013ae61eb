//! What the daemon says: of the ledger, and of the file for the cluster's publisher.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use stelia_api::ledger::LedgerSummary;
use stelia_api::publication::{DIRECTORY, FILE, LOCK};
use stelia_api::publishing::Publishing;

use super::*;

fn ledger(change: Change) -> (Verdict, String) {
    let mut facts = fit();
    facts.ledger = Some(LedgerSummary {
        enabled: true,
        key: "q1w2".to_owned(),
        day: "2026-10-31".to_owned(),
        bytes: 5 << 20,
        ..LedgerSummary::default()
    });
    change(&mut facts);
    said(&facts, "ledger")
}

fn summary(facts: &mut Facts) -> &mut LedgerSummary {
    facts.ledger.as_mut().unwrap()
}

#[test]
fn a_ledger_passes_that_is_kept_and_signed_and_what_keeps_it_from_that_is_told() {
    let (verdict, found) = ledger(|_| ());
    assert_eq!(verdict, Verdict::Ok);
    assert_eq!(found, "written: 5.0 MiB, last signed for 2026-10-31");
    let (verdict, found) = ledger(|facts| summary(facts).problem = Some("no space left".to_owned()));
    assert_eq!((verdict, found.as_str()), (Verdict::Warning, "no space left"));
    for (change, verdict) in [
        ((|facts| summary(facts).key.clear()) as Change, Verdict::Warning),
        (|facts| summary(facts).enabled = false, Verdict::Advice),
        (|facts| facts.tracing = false, Verdict::Advice),
        (|facts| facts.ledger = None, Verdict::Unknown),
    ] {
        assert_eq!(ledger(change).0, verdict);
    }
}

const TEXT: &str =
    r#"{"version":1,"node":"n","ready":{"status":true,"reason":"Ready","message":""},"pods":[],"events":[]}"#;

/// A node whose folder has this file, under a lock or not.
fn publishing(text: &str, locked: bool) -> Facts {
    let directory = DIRECTORY.trim_start_matches('/');
    let root = folder(&[(&format!("{directory}/{FILE}"), text)]);
    let lock = File::create(root.path().join(directory).join(LOCK)).unwrap();
    if locked {
        flock(&lock, FlockOperation::LockExclusive).unwrap();
    }
    Facts {
        publishing: Some(Publishing {
            profile: Some("nrt".to_owned()),
            ..Publishing::default()
        }),
        published: Published::read(root.path()),
        ..fit()
    }
}

#[test]
fn a_published_file_passes_that_a_daemon_says_is_true() {
    let of = |facts: &Facts| said(facts, "publish");
    let good = publishing(TEXT, true);
    assert_eq!(of(&good), (Verdict::Ok, "nrt: Ready, 0 VMs, 0 events".to_owned()));
    let (verdict, found) = of(&publishing(TEXT, false));
    assert_eq!(verdict, Verdict::Warning);
    assert!(found.ends_with("node.json is not locked by a daemon"), "{found}");
    let (_, found) = of(&publishing(r#"{"version":9}"#, true));
    assert!(found.ends_with("written by a newer steliad"), "{found}");
    let absent = Facts {
        published: fit().published,
        ..good.clone()
    };
    assert_eq!(of(&absent).0, Verdict::Warning);
    // The daemon's own words come first, and off is no fault.
    let mut facts = good;
    let problem = "write …: No space left on device";
    facts.publishing.as_mut().unwrap().problem = Some(problem.to_owned());
    assert_eq!(of(&facts), (Verdict::Warning, problem.to_owned()));
    facts.publishing = Some(Publishing::default());
    let (verdict, found) = of(&facts);
    assert!(verdict == Verdict::Ok && found.starts_with("off"), "{found}");
}
