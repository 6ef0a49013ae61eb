use std::path::Path;

use serde_json::json;

use super::*;
use crate::shared::daemon::node::testing::node;
use crate::shared::output::Meaning;
use crate::tests::fixtures::{block_on, folder, holds, never_says, says, text};

#[derive(serde::Serialize)]
struct Failing;

impl Render for Failing {
    fn text(&self, _: TextStyle) -> String {
        "\n".to_owned()
    }

    fn failure(&self) -> Option<String> {
        Some("2 disturbances\x1b".to_owned())
    }
}

#[test]
fn the_text_has_every_section_and_no_control_characters_and_json_a_member_for_each() {
    let mut report = Report::default();
    let kubelet = json!({
        "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "featureGates": {},
    });
    report.add("status", "Node", Ok(Status::of(&node(), String::new())));
    report.add("kubelet_config", "kubelet's configuration", Ok(Listing(kubelet)));
    report.add("journal", "Journal", Ok(Listing(json!("a\x1b[2J\nb\n"))));
    report.add::<Listing>("ledger", "Ledger", Err(Failure::Other("it is off\x1b".to_owned())));
    let block = |label, subject: &str, fact: &str| Block::new(label, subject, fact, "", "");
    let mut find = |heading: &str, blocks: Vec<Block>| {
        report.add_with("x", heading, Ok(Listing(json!(""))), |_, _| blocks);
    };
    find(
        "Readiness",
        vec![
            block(FAIL, "kubelet-state", "cut"),
            block(("NOTE", Meaning::Plain), "kvm", "b"),
        ],
    );
    find(
        "Verification",
        ["node: cut", "web: a", "db: a"]
            .map(|one| one.split_once(": ").unwrap())
            .map(|(subject, fact)| block(FAIL, subject, fact))
            .into(),
    );
    report.add("noise", "Noise", Ok(Failing));
    let text = text(&report);
    assert!(
        text.starts_with(
            "== What is wrong ==\nReadiness: kubelet-state: cut\nVerification: web: a\nVerification: db: a\nNoise: 2 disturbances?\n\n== Node =="
        ),
        "{text}"
    );
    let parts = [
        "== Node ==\n",
        "== kubelet's configuration ==\ncpuManagerPolicy:         static\n\
         cpuManagerPolicyOptions:  {\"full-pcpus-only\":\"true\"}\n",
        "== Journal ==\na?[2J\nb\n",
        "== Not in this report ==\nLedger: it is off?\n",
    ];
    let mut rest = text.as_str();
    for part in parts {
        let (_, after) = rest
            .split_once(part)
            .unwrap_or_else(|| panic!("{part}\nis not in\n{rest}"));
        rest = after;
    }
    never_says(&text, &["featureGates", "\x1b"]);
    holds(
        &json!(report),
        json!({ "/kubelet_config/cpuManagerPolicy": "static", "/journal": "a\x1b[2J\nb\n", "/ledger": null }),
    );
}

#[test]
fn without_the_daemon_it_has_what_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    ledger::testing::ring_at(&root.path().join("var/lib/stelia/ledger"));
    let client = Err(Failure::Other("steliad does not run".to_owned()));
    let roots = Roots::below(root.path());
    let report = block_on(gather(client, &roots, root.path(), Duration::from_millis(1)));
    let text = text(&report);
    says(&text, &["== Host ==\n", "== Ledger files ==\n", "FAIL  cgroup: "]);
    says(&text, &["\nwhat the daemon knows: steliad does not run\n"]);
    // No kubelet runs below this directory, and a program's words are of another host.
    says(&text, &["\nkubelet's configuration: ", "\nJournal of steliad: "]);
    never_says(&text, &["== Node ==", "== kubelet's configuration =="]);
}

#[test]
fn a_program_that_is_missing_or_fails_is_told() {
    let printed = |command| block_on(printed(command));
    assert_eq!(printed("echo a").unwrap(), "a\n");
    for command in ["/nonexistent/program", "false", "true"] {
        says(&printed(command).unwrap_err().to_string(), &[command]);
    }
}

#[test]
fn a_host_is_read_and_what_is_missing_is_empty() {
    assert_eq!(host(Path::new("/nonexistent")).0["hostname"], Value::Null);
    let root = folder(&[
        ("proc/sys/kernel/hostname", "gpu3\n"),
        ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n"),
        ("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n"),
    ]);
    holds(
        &host(root.path()).0,
        json!({
            "/hostname": "gpu3", "/system": "Debian GNU/Linux 13", "/memory": "1024 kB", "/kernel": null, "/systemd": null,
        }),
    );
}
