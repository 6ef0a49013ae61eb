//! The forms of an answer: text and JSON.

use super::*;

#[test]
fn json_is_pretty_short_or_off_and_its_value_needs_an_equals_sign() {
    let lines = |line: &[&str]| steliactl(no_vm().path(), line).unwrap().lines().count();
    assert_eq!(lines(&["--json=short", "list"]), 1);
    assert_eq!(lines(&["list", "--json=short"]), 1);
    assert!(lines(&["--json=pretty", "list"]) > 2);
    assert_eq!(lines(&["--json=off", "list"]), 2);
    // After a blank comes not the value of --json, but the command or its argument.
    assert!(lines(&["show", "--json", "web"]) > 2);
    assert!(is_refused(&["--json=yaml", "list"]) && is_refused(&["-o", "yaml", "list"]));
}

#[test]
fn a_form_is_asked_for_by_one_option() {
    let shown = |line: &[&str]| steliactl(no_vm().path(), line).unwrap();
    assert_eq!(shown(&["list", "-o", "json"]), shown(&["list", "--json"]));
    assert_eq!(shown(&["list", "-o", "table"]), shown(&["list"]));
    let wide = shown(&["list", "-o", "wide"]);
    assert!(
        wide.lines().next().unwrap().contains("  CONTAINER  UID  ") && wide.contains(UID),
        "{wide}"
    );
}

#[test]
fn a_form_that_makes_no_sense_is_refused_before_anything_is_done() {
    for line in [
        &["export", "topology", "-o", "wide"][..],
        &["export", "metrics", "-o", "json"],
        &["ledger", "web", "--html", "-o", "json"],
    ] {
        assert_eq!(cli(line).output_options().unwrap_err().exit_code(), 2, "{line:?}");
    }
}
