//! What people see of accounts.

use std::fs;

use serde_json::json;
use stelia_api::attribution::Attribution;
use stelia_ledger::account::{Account, Gap, Range};
use stelia_ledger::entry::{Closed, Entry};
use stelia_ledger::ring::{Limits, Ring as Writer};
use stelia_ledger::verdict::{Fault, Verdict};
use stelia_table::testing::Documented;
use tempfile::TempDir;

use super::testing::{good, october, quiet};
use super::verification::Verification;
use super::*;
use crate::shared::output::manual::explained;
use crate::shared::output::{Form, Render, TextStyle};
use crate::tests::fixtures::{columns, headings, never_says, says, text, wide};

fn page(account: Account, verdict: Verdict) -> String {
    page_of(account, &verdict, "q1w2e3r4", "node-7", 1_793_600_000_000_000).unwrap()
}

#[test]
fn a_month_of_a_vm_is_a_table_a_customer_understands() {
    insta::assert_snapshot!(VmAccount::of(october()).text(wide()));
    insta::assert_snapshot!("a_month_on_80_columns", VmAccount::of(october()).text(columns(80)));
}

#[test]
fn what_did_not_happen_has_no_table_and_what_there_is_not_no_number() {
    let quiet = text(&VmAccount::of(quiet()));
    says(
        &quiet,
        &[
            "kept: 0 other tasks, 0 device interrupts",
            "100% of the guaranteed time\n",
        ],
    );
    never_says(&quiet, &["worst", "not covered"]);
    let empty = text(&Verification(Verdict::default()));
    says(&empty, &["Entries:", "none"]);
    never_says(&empty, &["0 to 0"]);
}

#[test]
fn a_day_without_a_reading_is_not_called_zero_and_a_long_time_ends_with_its_last_days() {
    let days = |since_us, until_us| {
        let account = Account {
            since_us,
            until_us,
            ..october()
        };
        let rows = rows::days(&account).grid.rows.into_iter();
        rows.map(|row| row.into_iter().map(|cell| cell.text).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let october = october();
    let month = days(october.since_us, october.until_us);
    assert_eq!(month.len(), 31);
    assert_eq!(month[9], "2026-10-10 not known 0.00% - - -");
    let since_ever = days(0, october.until_us);
    assert_eq!((since_ever.len(), &since_ever[0]), (31, &month[0]));
    assert_eq!(days(1, u64::MAX).len(), 400);
}

#[test]
fn each_vm_is_a_line() {
    let mut unnamed = quiet();
    (unnamed.vm, unnamed.name) = ("0123".to_owned(), String::new());
    let all = All(vec![VmAccount::of(october()), VmAccount::of(unnamed)]);
    insta::assert_snapshot!(all.text(wide()));
    assert!(All(Vec::new()).text(TextStyle::from(true)).starts_with("No VM had"));
}

#[test]
fn nothing_known_is_never_told_as_zero() {
    let vm_account = |promised_us, covered_us| {
        VmAccount::of(Account {
            promised_us,
            covered_us,
            ..Account::default()
        })
    };
    for (promised, words) in [(5, "not known: no reading"), (0, "had no CPUs of its own")] {
        let unknown = vm_account(promised, 0);
        says(&text(&unknown), &[words]);
        never_says(&text(&unknown), &["0 other tasks"]);
        assert!(page(unknown.said, good()).contains("class=\"headline unknown\""));
    }
}

#[test]
fn a_containers_account_claims_no_virtual_cpus() {
    let mut account = quiet();
    account.is_container = true;
    account.totals.other_tasks = Range { least: 0, most: 7 };
    account.gaps = [Closed::Ended, Closed::Moved, Closed::NotRead, Closed::Restarted]
        .into_iter()
        .map(|why| Gap {
            cpus: "2-3".to_owned(),
            from_us: 1,
            until_us: 2,
            why,
        })
        .collect();
    let html = page(account.clone(), good());
    says(&html, &["<dt>Container</dt>"]);
    let text = text(&VmAccount::of(account));
    says(&text, &["0–7", "moved to other CPUs"]);
    for text in [text, html] {
        never_says(&text, &["VM's", "irtual CPU", "The VM", "the VM"]);
    }
}

#[test]
fn a_time_that_is_a_bound_is_rounded_up() {
    for (ns, words) in [
        (0, "0"),
        (999, "999 ns"),
        (1_001, "1.1 µs"),
        (61_000_000_001, "1.1 min"),
        (86_400_000_000_001, "1.1 d"),
        (38_000_000, "38 ms"),
    ] {
        assert_eq!(rows::duration(ns), words);
    }
}

#[test]
fn the_page_needs_nothing_else_and_runs_nothing() {
    let html = page(october(), good());
    insta::assert_snapshot!(html);
    let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
    for forbidden in [
        "<script", "http:", "https:", "src=", "href", "url(", "@import", "onload",
    ] {
        assert!(!without_namespace.contains(forbidden), "{forbidden}");
    }
    assert!(html.contains("default-src 'none'"));
}

#[test]
fn names_of_the_node_do_not_become_markup() {
    let mut account = october();
    account.name = "team-a/<img src=x>".to_owned();
    account.hash = "\"><b>".to_owned();
    let mut verdict = good();
    for head in &mut verdict.heads {
        (head.day, head.signature) = ("<u>".to_owned(), "<u>\u{202e}".to_owned());
    }
    account.days[0].day = "<u>".to_owned();
    account.gaps[0].cpus = "<u>".to_owned();
    account.attributions[0].problems.push("<u>\u{1b}".to_owned());
    account.attributions[0].cpus = "<u>".to_owned();
    let html = page_of(account, &verdict, "<u>", "<u>", 1).unwrap();
    never_says(&html, &["<img", "<u>", "<i>", "<b>", "\u{1b}", "\u{202e}"]);
}

#[test]
fn the_signature_of_a_report_is_the_first_that_covers_it() {
    assert!(page(october(), good()).contains("2026-10-31, up to entry 40300"));
    let mut later = october();
    later.seq = 50_000;
    says(
        &page(later, good()),
        &["2026-10-31, up to entry 40300", "does not cover the last entries"],
    );
    assert!(page(october(), Verdict::default()).contains("none yet"));
}

fn broken() -> Verdict {
    let mut verdict = good();
    verdict.heads[1].good = false;
    verdict.faults.push(Fault {
        segment: "00000000000000000001.ledger".to_owned(),
        line: 17,
        text: "the line is not what its hash says".to_owned(),
    });
    verdict
}

#[test]
fn a_ledger_that_was_modified_fails_and_says_where() {
    let proof = Verification(broken());
    insta::assert_snapshot!(text(&proof));
    assert_eq!(proof.failure().unwrap(), "the ledger was modified: 1 fault");
    assert!(page(october(), broken()).contains("The ledger was modified: 1 fault."));
}

#[test]
fn a_ledger_that_is_good_succeeds_and_a_copy_without_a_key_is_verified_by_nothing() {
    assert_eq!(Verification(good()).failure(), None);
    insta::assert_snapshot!(text(&Verification(good())));
    let verdict = Verdict {
        vouched_seq: 40_300,
        vouched_by: "q1w2".to_owned(),
        ..good()
    };
    says(
        &text(&Verification(verdict)),
        &["key q1w2, up to entry 40300", "entries 40301 to 40400"],
    );
}

#[test]
fn a_ledger_that_nothing_verifies_is_a_failure_and_not_called_modified() {
    let mut verdict = good();
    verdict.faults.push(Fault::from("no entry is verified".to_owned()));
    let proof = Verification(verdict);
    assert!(!proof.failure().unwrap().contains("modified"));
    says(&text(&proof), &["FAIL  no entry is verified"]);
}

#[test]
fn who_ran_is_told_over_all_cpus_and_what_was_dropped_too() {
    let watched = Watched {
        pod: Pod::unnamed("aaaaaaaa"),
        said: october().attributions.remove(0),
    };
    insta::assert_snapshot!(text(&watched));
}

#[test]
fn an_attribution_that_failed_says_nothing_of_who_ran() {
    let locked = "tracefs is locked (lockdown)".to_owned();
    let mut account = october();
    account.attributions = vec![Attribution {
        cpus: "4-11".to_owned(),
        problems: vec![locked.clone()],
        ..Attribution::default()
    }];
    let html = page(account.clone(), good());
    let table = VmAccount::of(account).text(wide());
    for text in [html, table] {
        says(&text, &["Unknown.", &locked]);
        never_says(&text, &["Nothing else ran"]);
    }
}

#[test]
fn json_identifies_the_vm_as_every_answer_does_and_has_the_account() {
    let json: serde_json::Value = serde_json::from_str(&Form::Json.write(&VmAccount::of(october())).unwrap()).unwrap();
    assert_eq!(
        (
            &json["pod_name"],
            &json["totals"]["other_tasks"]["most"],
            &json["worst"][0]["class"]
        ),
        (&"web".into(), &15_008.into(), &"devices".into())
    );
}

#[test]
fn every_column_is_explained() {
    let columns = |part| explained("COLUMNS", Some(part));
    assert_eq!(columns("ledger"), headings(&rows::SUMS));
    assert_eq!(columns("ledger: classes"), headings(&rows::CLASSES));
    assert_eq!(columns("ledger: windows"), headings(&rows::WINDOWS));
    assert_eq!(columns("ledger: gaps"), headings(&rows::GAPS));
    assert_eq!(columns("ledger: NUMA nodes"), headings(&rows::LOCATED));
    assert_eq!(columns("ledger: who ran"), headings(&rows::RAN));
}

#[test]
fn every_member_of_the_json_is_documented() {
    let documented = Documented::of(include_str!("../../../../../docs/json.md"));
    let watched = Watched {
        pod: Pod::default(),
        said: october().attributions.remove(0),
    };
    for (section, value) in [
        ("ledger VM", json!(VmAccount::of(october()))),
        ("ledger VM --watch", json!(watched)),
        ("ledger verify", json!(Verification(broken()))),
    ] {
        assert_eq!(documented.wrong(section, &value), Vec::<String>::new(), "{section}");
    }
}

const MINUTE: u64 = 60_000_000;

/// A VM on CPU 2, read at minute 1 and at minute 2; meanwhile three other tasks ran.
fn ring() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("ledger");
    let limits = Limits {
        bytes: 1 << 20,
        segment_bytes: 1 << 16,
    };
    let (mut ring, _) = Writer::open(&folder, limits).unwrap();
    let opened = json!({"event": "opened", "seat": 1, "vm": "aaa", "name": "team-a/web", "cpus": "2",
        "threads": [{"id": 10, "start": 1}]});
    let entries = [
        json!({"seq": 0, "at": MINUTE, "up": MINUTE, "events": [{"event": "boot", "id": "b"}, opened],
            "readings": [{"s": 1, "n": [100, 90, 0, 5, 6, 0], "f": true}]}),
        json!({"seq": 0, "at": 2 * MINUTE, "up": 2 * MINUTE, "readings": [{"s": 1, "n": [113, 100, 0, 50, 66, 0]}]}),
    ];
    let mut hash = String::new();
    for entry in entries {
        let mut entry: Entry = serde_json::from_value(entry).unwrap();
        hash = ring.append(&mut entry).unwrap().hash;
    }
    (directory, hash)
}

#[test]
fn a_copied_ring_has_its_accounts() {
    let (directory, hash) = ring();
    let folder = directory.path().join("ledger");
    let accounts = of_copy(&folder, (0, 3 * MINUTE)).unwrap();
    let [account] = accounts.as_slice() else {
        panic!("{accounts:?}")
    };
    assert_eq!((account.name.as_str(), account.covered_us), ("team-a/web", MINUTE));
    let other = account.totals.other_tasks;
    assert_eq!((other.least, other.most, account.totals.delay_ns), (3, 3, 60));
    assert_eq!(account.hash, hash);

    let known = |hash: &str| (account.seq, hash.to_owned());
    assert!(verdict(&folder, &[], Some(&known(&hash))).unwrap().is_good());
    assert!(!verdict(&folder, &[], Some(&known(&"0".repeat(64)))).unwrap().is_good());
}

#[test]
fn of_a_ring_that_was_changed_no_account_is_made() {
    let (directory, _) = ring();
    let folder = directory.path().join("ledger");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "ledger"));
    let file = file.unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("113", "110")).unwrap();
    let failure = of_copy(&folder, (0, 0)).unwrap_err();
    assert_eq!(failure.exit_code(), 1);
    assert!(failure.to_string().contains("no account is made of it"), "{failure}");
    assert!(!verdict(&folder, &[], None).unwrap().is_good());
}

#[test]
fn a_folder_without_a_ledger_is_not_a_good_one() {
    let empty = tempfile::tempdir().unwrap();
    for refused in [
        verdict(empty.path(), &[], None).map(|_| ()),
        of_copy(empty.path(), (0, 0)).map(|_| ()),
    ] {
        assert!(refused.unwrap_err().to_string().contains("no ledger files here"));
    }
    assert!(verdict(Path::new("/nonexistent"), &[], None).is_err());
}

fn vm_account(uid: &str, name: &str) -> VmAccount {
    VmAccount::of(Account {
        vm: uid.to_owned(),
        name: name.to_owned(),
        ..Account::default()
    })
}

#[test]
fn a_vm_that_ended_is_found_by_its_name_and_of_several_by_the_uid() {
    let all = || {
        vec![
            vm_account("aaa1", "t/web"),
            vm_account("aaa2", "t/web"),
            vm_account("bbb", "t/db"),
            vm_account("ccc", ""),
        ]
    };
    let uid = |asked| {
        All(all())
            .one(asked)
            .map(|vm_account| vm_account.pod.pod_uid)
            .map_err(|failure| failure.exit_code())
    };
    assert_eq!(uid("t/db"), Ok("bbb".to_owned()));
    assert_eq!(uid("db"), Ok("bbb".to_owned()));
    assert_eq!(uid("ccc"), Ok("ccc".to_owned()));
    assert_eq!(uid("aaa2"), Ok("aaa2".to_owned()));
    assert_eq!(
        [uid("web"), uid("aaa"), uid("nobody"), uid("")],
        [Err(2), Err(3), Err(3), Err(3)]
    );
}

#[test]
fn what_may_have_been_none_or_is_not_covered_is_not_above_the_guarantee() {
    for (least, devices, covered_us, above) in [
        (0, 0, 6, None),
        (0, 3, 6, Some("0–9")),
        (2, 0, 6, Some("2–9")),
        (2, 3, 0, None),
    ] {
        let mut account = quiet();
        account.covered_us = covered_us;
        account.totals.other_tasks = Range { least, most: 9 };
        account.totals.devices.insert("nvme0q3".to_owned(), devices);
        let sums = VmAccount::of(account).sums();
        let shown = rows::is_broken(&sums).then(|| rows::counts(&sums));
        assert_eq!(shown.as_deref().and_then(|above| above.split(' ').next()), above);
    }
}
