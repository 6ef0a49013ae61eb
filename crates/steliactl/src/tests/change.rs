//! `release` and `reconcile`.

use super::*;

#[test]
fn release_takes_a_name_or_uid_and_says_what_it_did() {
    for vm in ["team-a/web", "web", UID] {
        let shown = steliactl(no_vm().path(), &["release", vm]).unwrap();
        assert!(
            shown.starts_with("team-a/web (3ceda12c-") && shown.contains("released CPUs 2-3"),
            "{vm}: {shown}"
        );
    }
    let planned = steliactl(no_vm().path(), &["release", "web", "--dry-run"]).unwrap();
    assert!(planned.contains("would release CPUs 2-3"), "{planned}");
    let shown = steliactl(no_vm().path(), &["--json=short", "release", UID]).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
        serde_json::json!({"pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web"})
    );
}

#[test]
fn the_beginning_of_a_uid_releases_nothing() {
    for vm in ["3", "3ceda12c"] {
        let refused = steliactl(no_vm().path(), &["release", vm]).unwrap_err();
        assert_eq!(refused.exit_code(), 3, "{vm}: {refused}");
    }
}

#[test]
fn reconcile_prints_the_report() {
    let text = steliactl(no_vm().path(), &["reconcile"]).unwrap();
    assert!(text.starts_with("Nothing to change"), "{text}");
    let json = steliactl(no_vm().path(), &["reconcile", "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["pass"], serde_json::json!(7));
}
