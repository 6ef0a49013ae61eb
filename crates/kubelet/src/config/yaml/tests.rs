use rstest::rstest;
use serde_json::json;

use super::*;

fn value(text: &str) -> Value {
    parse(text).unwrap().value
}

/// Each as go-yaml v2 and sigs.k8s.io/yaml make JSON of it.
#[rstest]
#[case("a: yes\nb: Off\nc: 'no'\nd: y", json!({"a": true, "b": false, "c": "no", "d": true}))]
#[case("a: 0x1F\nb: 010\nc: 0o17\nd: 0b11\ne: 1_000", json!({"a": 31, "b": 8, "c": 15, "d": 3, "e": 1000}))]
#[case("a: 1e3\nb: 1.0\nc: 1.5\nd: .5\ne: 08", json!({"a": 1000, "b": 1, "c": 1.5, "d": 0.5, "e": 8}))]
#[case("a: -1\nb: +2\nc: 0\nd: 18446744073709551615", json!({"a": -1, "b": 2, "c": 0, "d": 18446744073709551615u64}))]
#[case("a: 0-3\nb: 1,2\nc: 1:30\nd: 2026-11-25\ne: 500m", json!({"a": "0-3", "b": "1,2", "c": "1:30", "d": "2026-11-25", "e": "500m"}))]
#[case("a:\nb: ~\nc: Null\nd: \"\"", json!({"a": null, "b": null, "c": null, "d": ""}))]
#[case("a: !!str 3\nb: !!int \"3\"\nc: !other 3", json!({"a": "3", "b": 3, "c": "3"}))]
#[case("1: a\non: b\n1.5: c", json!({"1": "a", "true": "b", "1.5": "c"}))]
#[case("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\ne: {<<: [{f: 1}, {f: 2, g: 3}]}",
    json!({"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"f": 1, "g": 3}}))]
#[case("\u{feff}a: 1\r\nb: |\r\n  x\r\n", json!({"a": 1, "b": "x\n"}))]
#[case("# nothing\n", json!(null))]
#[case("a:\tb\t# c\n", json!({"a": "b"}))]
#[case(" \n {\"a\": 1e3,\n\t\"b\": 2}", json!({"a": 1e3, "b": 2}))]
fn a_text_is_what_it_is_for_kubelet(#[case] text: &str, #[case] expected: Value) {
    assert_eq!(value(text), expected);
}

#[test]
fn of_several_documents_the_first_counts_and_of_keys_the_last() {
    let document = parse("---\na: 1\nb: {c: 1, c: 2}\na: 3\n---\na: 4\nthis is: no: YAML\n").unwrap();
    assert_eq!(document.value, json!({"a": 3, "b": {"c": 2}}));
    assert_eq!(
        (document.twice, document.others),
        (vec!["b.c".to_owned(), "a".to_owned()], true)
    );
    assert!(!parse("a: 1\n...\n").unwrap().others);
    let document = parse(r#"{"a": 1, "b": {"c": 1, "c": 2}}"#).unwrap();
    assert_eq!(
        (document.value, document.twice),
        (json!({"a": 1, "b": {"c": 2}}), vec!["b.c".to_owned()])
    );
}

#[rstest]
#[case("a: [", "it is not YAML")]
#[case("a: {\n  b: 1", "it is not YAML")]
#[case("a:\n\tb: secret", "line 2")]
#[case("a: secret: x", "line 1")]
#[case("a: *secret", "line 1")]
#[case("a: &x [*x]", "contains the anchor")]
#[case("a: .inf", "not finite")]
#[case("~: 1", "a key is not")]
#[case("a: {<<: secret}", "<< has neither")]
#[case("%YAML 1.2\n---\na: 1", "another version than 1.1")]
#[case("a: !!int secret", "its tag names")]
#[case("{a: 1}", "it is not JSON")]
#[case("{\"a\": 1}\nb: 2", "it is not JSON")]
fn what_kubelet_does_not_read_is_told_without_a_quotation(#[case] text: &str, #[case] reason: &str) {
    let Malformed { cause, is_limit } = parse(text).unwrap_err();
    assert!(!is_limit);
    assert!(cause.contains(reason) && !cause.contains("secret"), "{cause}");
}
