//! `deregister` and `reconcile`.

use super::*;

#[test]
fn deregister_takes_a_name_or_a_beginning_and_says_nothing() {
    for vm in ["3ced", "team-a/web", "web", UID] {
        assert_eq!(steliactl(no_vm().path(), &["deregister", vm]).unwrap(), "", "{vm}");
    }
    let told = steliactl(no_vm().path(), &["--json=short", "deregister", "3"]).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&told).unwrap(),
        serde_json::json!({"pod_uid": UID, "pod_namespace": "team-a", "pod_name": "web"})
    );
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
degraded:  a; b
"
    );
    let json = steliactl(no_vm().path(), &["reconcile", "--json"]).unwrap();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&value["pass"], &value["degraded"]),
        (&serde_json::json!(7), &serde_json::json!(["a", "b"]))
    );
}
