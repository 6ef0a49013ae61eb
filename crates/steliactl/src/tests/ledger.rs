//! `ledger`, its report and its proof.

use super::*;

#[test]
fn the_ledger_of_a_vm_is_asked_of_its_object_and_of_one_that_ended_of_the_manager() {
    let shown = |line: &[&str]| -> serde_json::Value {
        let text = steliactl(no_vm().path(), &[line, &["-o", "json"]].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let own = shown(&["ledger", "web", "--month", "2024-10"]);
    assert_eq!((&own["promised_us"], &own["pod_name"]), (&json!(8), &json!("web")));
    // October 2024, as the daemon takes it.
    assert_eq!(
        (&own["since_us"], &own["until_us"]),
        (&json!(1_727_740_800_000_000u64), &json!(1_730_419_200_000_000u64))
    );
    let ended = shown(&["ledger", "gone", "--since", "-7d"]);
    assert_eq!((&ended["pod_uid"], &ended["until_us"]), (&json!("gone"), &json!(0)));
    assert_eq!(shown(&["ledger"]).as_array().unwrap().len(), 2);
    assert_eq!(shown(&["ledger", "g*"])[0]["pod_uid"], json!("gone"));
    let none = steliactl(no_vm().path(), &["ledger", "x*"]).unwrap_err();
    assert_eq!(none.exit_code(), 3, "{none}");
    assert_eq!(shown(&["ledger", "key"]), json!({"key": "q1w2e3r4"}));
    assert_eq!(shown(&["ledger", "web", "--watch", "2min"])["until_us"], json!(120));
    let failure = steliactl(no_vm().path(), &["ledger", "nobody"]).unwrap_err();
    assert_eq!(failure.exit_code(), 3, "{failure}");
}

#[test]
fn a_ring_with_a_head_that_is_not_good_fails() {
    let failure = steliactl(no_vm().path(), &["ledger", "verify"]).unwrap_err();
    let Failure::Partial { printed, reason, .. } = &failure else {
        panic!("{failure:?}")
    };
    assert_eq!(failure.exit_code(), 1);
    assert!(
        printed.contains("2026-10-31") && reason.contains("modified"),
        "{printed}{reason}"
    );
}

#[test]
fn a_report_is_a_page_and_nothing_else() {
    let html = ["ledger", "web", "--html", "--month", "2024-10"];
    let page = steliactl(no_vm().path(), &html).unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("q1w2e3r4"),
        "{page}"
    );
    for line in [
        &["ledger", "web", "--html", "-o", "json"][..],
        &["ledger", "--since", "2999-01-01"],
        &["ledger", "--since", "2024-10-02", "--until", "2024-10-01"],
    ] {
        assert_eq!(steliactl(no_vm().path(), line).unwrap_err().exit_code(), 2, "{line:?}");
    }
    for line in [
        &["ledger", "--html"][..],
        &["ledger", "--watch", "60s"],
        &["ledger", "web", "--watch", "2"],
        &["ledger", "web", "--since", "noon"],
        &["ledger", "web", "--month", "2024-10", "--since", "-7d"],
        &["ledger", "verify", "--key", "x"],
        &["ledger", "web", "verify"],
    ] {
        assert!(is_refused(line), "{line:?}");
    }
    /// 32 bytes as `ledger key` prints them.
    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for line in [
        &["ledger", "verify", "--json"][..],
        &["--json", "ledger", "verify"],
        &["ledger", "--json", "verify"],
        &["ledger", "verify", "--directory", "x", "--key", KEY],
        &["ledger", "team-a/web", "--since", "-1h30min", "--until", "now"],
    ] {
        assert!(!is_refused(line), "{line:?}");
    }
}
