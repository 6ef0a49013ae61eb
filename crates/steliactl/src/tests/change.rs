//! `release` and `reconcile`.

use super::*;

#[test]
fn release_takes_a_name_or_a_beginning_and_says_what_it_did() {
    for vm in ["3ceda12c", "team-a/web", "web", UID] {
        let told = steliactl(no_vm().path(), &["release", vm]).unwrap();
        assert!(told.starts_with("Deregistered team-a/web (3ceda12c-"), "{vm}: {told}");
        assert!(told.contains("no partition holds CPUs 2-3 any more"), "{vm}: {told}");
    }
    let told = steliactl(no_vm().path(), &["--json=short", "release", "3ceda12c-3"]).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&told).unwrap(),
        serde_json::json!({"pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web"})
    );
}

#[test]
fn a_few_characters_of_a_uid_release_nothing() {
    for vm in ["3", "3ced"] {
        let refused = steliactl(no_vm().path(), &["release", vm]).unwrap_err();
        assert_eq!(refused.exit_code(), 2, "{vm}: {refused}");
    }
}

#[test]
fn reconcile_prints_the_report() {
    assert_eq!(
        steliactl(no_vm().path(), &["reconcile"]).unwrap(),
        "\
pass:      7
steps:     0
writes:    0
moves:     0
repaired:  0
degraded:  a
degraded:  b
"
    );
    let json = steliactl(no_vm().path(), &["reconcile", "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["pass"], &value["degraded"]),
        (&serde_json::json!(7), &serde_json::json!(["a", "b"]))
    );
}
