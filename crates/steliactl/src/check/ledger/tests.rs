//! What people see of accounts.

use stelia_api::attribution::Attribution;
use stelia_ledger::account::{Account, Gap, Range};
use stelia_ledger::entry::Closed;
use stelia_ledger::verdict::{Fault, Verdict};

use super::proof::Proof;
use super::testing::{good, october, quiet};
use super::*;
use crate::shared::output::Form;
use crate::shared::output::manual::explained;
use crate::tests::fixtures::{headings, never_says, says, wide};

fn page(account: Account, verdict: Verdict) -> String {
    page_of(account, verdict, "q1w2e3r4", "node-7", 1_793_600_000_000_000)
}

#[test]
fn a_month_of_a_vm_is_a_table_a_customer_understands() {
    insta::assert_snapshot!(VmAccount::of(october()).text(wide()));
}

#[test]
fn a_quiet_month_says_zero_and_that_all_is_covered() {
    let text = VmAccount::of(quiet()).text(TextStyle::from(true));
    assert!(
        text.starts_with(
            "In what was read, no other task ran on the VM's CPUs, and no interrupt of another device reached them. 100% of the time \
             is covered.\n"
        ),
        "{text}"
    );
    assert!(!text.contains("worst") && !text.contains("Not covered"), "{text}");
}

#[test]
fn an_empty_ring_has_no_entries() {
    let text = Proof::of(Verdict::default(), false, false).text(TextStyle::from(true));
    says(&text, &["Entries", "none"]);
    never_says(&text, &["0 to 0"]);
    assert!(text.contains("The ring is empty."), "{text}");
}

#[test]
fn each_vm_is_a_line() {
    let mut unnamed = quiet();
    (unnamed.vm, unnamed.name) = ("0123".to_owned(), String::new());
    let all = All(vec![VmAccount::of(october()), VmAccount::of(unnamed)]);
    insta::assert_snapshot!(all.text(wide()));
    assert_eq!(all.names().len(), 2);
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
    assert!(
        vm_account(5, 0)
            .text(TextStyle::from(true))
            .starts_with("Nothing is known of this time")
    );
    assert!(
        vm_account(0, 0)
            .text(TextStyle::from(true))
            .starts_with("The VM had no CPUs of its own")
    );
    for unknown in [vm_account(5, 0), vm_account(0, 0)] {
        assert!(page(unknown.account, good()).contains("class=\"headline unknown\""));
    }
    // All but a microsecond of a year is not all.
    assert_eq!(words::covered(31_557_600_000_000, 31_557_599_999_999), "99.99%");
}

#[test]
fn what_is_an_interval_is_told_as_one() {
    let with = |least, most| {
        let mut account = quiet();
        account.totals.other_tasks = Range { least, most };
        words::headline(&account)
    };
    assert!(with(3, 3).contains("began to run on the VM's CPUs 3 times"));
    assert!(with(0, 1).contains("at most 1 time,"));
    assert!(with(3, 7).contains("between 3 and 7 times"));
    assert_eq!(words::range(Range { least: 3, most: 7_000 }), "3…7,000");
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
    let text = VmAccount::of(account).text(TextStyle::from(true));
    says(
        &text,
        &["other tasks began to run on the container's CPUs at most 7 times"],
    );
    says(&text, &["The container's own threads", "0…7"]);
    assert!(text.contains("the container's CPUs changed"), "{text}");
    for words in ["VM's", "irtual CPU", "The VM", "the VM"] {
        assert!(!text.contains(words), "{words}: {text}");
        assert!(!html.contains(words), "{words}: {html}");
    }
    assert!(html.contains("How often the container's tasks began to run"), "{html}");
}

#[test]
fn a_time_that_is_a_bound_is_rounded_up() {
    let times = [
        0,
        1,
        999,
        1_001,
        1_000_001,
        61_000_000_001,
        3_600_000_000_001,
        86_400_000_000_001,
    ];
    assert_eq!(
        times.map(words::duration),
        ["0", "1 ns", "999 ns", "1.1 µs", "1.1 ms", "1min 2s", "1h 1min", "1d 1h"]
    );
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
        (head.day, head.signature) = ("<u>".to_owned(), "<u>".to_owned());
    }
    account.days[0].day = "<u>".to_owned();
    account.gaps[0].cpus = "<u>".to_owned();
    account.attributions[0].problems.push("<u>".to_owned());
    let html = page_of(account, verdict, "<u>", "<u>", 1);
    never_says(&html, &["<img", "<u>", "<i>", "<b>", "\u{1b}"]);
}

#[test]
fn the_head_of_a_report_is_the_first_that_covers_it() {
    assert!(page(october(), good()).contains("of 2026-10-31, entry 40300"));
    let mut later = october();
    later.seq = 50_000;
    let html = page(later, good());
    says(&html, &["of 2026-10-31", "does not cover the last entries"]);
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
fn a_ring_that_was_changed_fails_and_says_where() {
    let proof = Proof::of(broken(), false, true);
    insta::assert_snapshot!(proof.text(TextStyle::from(true)));
    assert_eq!(proof.failure().unwrap(), "the ring is not what was written: 1 fault");
    assert!(page(october(), broken()).contains("The ledger is not what was written: 1 fault."));
}

#[test]
fn a_ring_that_is_good_succeeds_and_a_copy_without_a_key_is_not_proved() {
    let proof = |is_copy, without| Proof::of(good(), is_copy, without);
    assert_eq!(proof(false, true).failure(), None);
    insta::assert_snapshot!(proof(true, true).text(TextStyle::from(true)));
    assert!(
        proof(true, true)
            .text(TextStyle::from(false))
            .contains("nobody vouches for any entry")
    );
    let by_key = |is_copy| {
        let verdict = Verdict {
            vouched_seq: 40_300,
            vouched_by: "q1w2".to_owned(),
            ..good()
        };
        Proof::of(verdict, is_copy, false).text(TextStyle::from(true))
    };
    assert!(
        by_key(true).contains("up to entry 40300 by the key q1w2"),
        "{}",
        by_key(true)
    );
    assert!(by_key(true).contains("entries 40301 to 40400"));
    assert!(!by_key(true).contains("nobody") && by_key(false).contains("by the node's own key"));
}

#[test]
fn what_vouches_for_nothing_is_a_failure_with_its_reason() {
    let mut verdict = good();
    verdict.faults.push(Fault {
        text: "no head that is here is signed with a known key: nobody vouches for any entry".to_owned(),
        ..Fault::default()
    });
    let failure = Proof::of(verdict, true, false).failure().unwrap();
    assert_eq!(
        failure,
        "the ring is not proved: no head that is here is signed with a known key: nobody vouches for any entry"
    );
}

#[test]
fn who_ran_is_told_over_all_cpus_and_what_was_dropped_too() {
    let watched = watch::Watched {
        pod: Pod::unnamed("aaaaaaaa"),
        attribution: october().attributions.remove(0),
    };
    insta::assert_snapshot!(watched.text(TextStyle::from(true)));
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
        assert!(text.contains("Not known.") && text.contains(&locked), "{text}");
        assert!(!text.contains("Nothing but the VM"), "{text}");
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
    assert_eq!(columns("ledger"), headings(&text::ALL));
    assert_eq!(columns("ledger: classes"), headings(&text::CLASSES));
    assert_eq!(columns("ledger: windows"), headings(&text::WORST_COLUMNS));
    assert_eq!(columns("ledger: gaps"), headings(&text::GAPS));
    assert_eq!(columns("ledger: NUMA nodes"), headings(&text::LOCATED));
    assert_eq!(columns("ledger: days"), headings(&text::DAYS));
    assert_eq!(columns("ledger: who ran"), headings(&text::RUN_COLUMNS));
    assert_eq!(columns("ledger: faults"), headings(&proof::FAULTS));
}

/// Names of members, also of objects below; names that are data are none.
fn members(value: &serde_json::Value, names: &mut std::collections::BTreeSet<String>) {
    const DATA: [&str; 5] = ["devices", "kernel_threads", "upkeep", "softirqs", "own_interrupts"];
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| members(item, names)),
        serde_json::Value::Object(object) => {
            for (name, value) in object {
                names.insert(name.clone());
                if !DATA.contains(&name.as_str()) {
                    members(value, names);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_member_of_the_json_is_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let report = report::of(october(), good(), "q1w2", "node-7", 1);
    let watched = watch::Watched {
        pod: Pod::default(),
        attribution: october().attributions.remove(0),
    };
    let proof = Proof::of(broken(), true, true);
    for (section, value) in [
        ("ledger VM", serde_json::to_value(&report).unwrap()),
        ("ledger VM --watch", serde_json::to_value(&watched).unwrap()),
        ("ledger verify", serde_json::to_value(&proof).unwrap()),
    ] {
        let (_, text) = page.split_once(&format!("\n## {section}\n")).unwrap();
        let text = text.split("\n## ").next().unwrap();
        let mut names = std::collections::BTreeSet::new();
        members(&value, &mut names);
        for name in names.iter().filter(|name| !name.starts_with("pod_")) {
            // A list or an object is known by its members.
            let before = ["`", ".", "["].into_iter();
            let mut all = before.flat_map(|before| ["`", "[", "."].map(|after| format!("{before}{name}{after}")));
            assert!(all.any(|one| text.contains(&one)), "{section}: {name}");
        }
    }
}
