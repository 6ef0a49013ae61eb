//! What an operator does about a reason of degradation.

use stelia_api::ReasonCode;
use stelia_cpus::CpuSet;

/// The remedy where the file has less than kubelet wrote.
const NOT_WRITTEN_TO_ITS_END: &str = "the file was not written to its end (power loss, full disk): drain the node, stop kubelet, remove the file, start kubelet";

/// The remedy where the checksum is not that of the content.
const CONTENT_CHANGED: &str = "its content was changed after kubelet wrote it (an edit, a damaged disk): drain the node, stop kubelet, remove the file, start kubelet";

/// The remedy where the file is JSON of what kubelet never writes.
const NOT_KUBELETS: &str = "no kubelet writes such content (an edit, a damaged disk): drain the node, stop kubelet, remove the file, start kubelet";

/// What `docs/troubleshooting.md` has for each message about kubelet's file, under "kubelet's file cannot be used". The first message that is in
/// a text counts.
const KUBELET_FILE: [(&str, &str); 15] = [
    (
        "No such file",
        "kubelet never ran here, or has another root directory: kubelet-home of steliactl doctor",
    ),
    (
        "which is kubelet's root directory is not clear",
        "remove an earlier installation's cpu_manager_state, or set kubelet-root",
    ),
    ("CPU manager policy is", "/usr/share/doc/steliad/kubelet.md"),
    ("the file is empty", NOT_WRITTEN_TO_ITS_END),
    // serde_json's words where a file ends early; a file of zeroes is no object. Neither is a newer schema.
    ("while parsing", NOT_WRITTEN_TO_ITS_END),
    ("not a JSON object", NOT_WRITTEN_TO_ITS_END),
    ("has checksum", CONTENT_CHANGED),
    // serde_json's words for an object without kubelet's oldest members, and for a number that is too large.
    ("missing field", NOT_KUBELETS),
    ("expected u32", NOT_KUBELETS),
    ("CPU list", NOT_KUBELETS),
    ("is not a pod UID", NOT_KUBELETS),
    ("are in the default set too", NOT_KUBELETS),
    ("no known schema", "kubelet is newer: upgrade steliad"),
    (
        "gives CPUs to containers",
        "remove the driver, or cpu-source = \"kubelet\"",
    ),
    (
        "the shared pool is empty",
        "set reservedSystemCPUs; with strict-cpu-reservation leave CPUs unassigned",
    ),
];

/// The remedy of an unusable file of kubelet's by its message; `None` where the page has none for it.
pub(crate) fn remedy_of_file(message: &str) -> Option<&'static str> {
    let of_message = KUBELET_FILE.iter().find(|(known, _)| message.contains(known));
    of_message.map(|(_, remedy)| *remedy)
}

/// The remedy of a reason. That of an unusable file of kubelet's depends on its message.
fn remedy(kind: ReasonCode, text: &str) -> &'static str {
    match (kind, remedy_of_file(text)) {
        (ReasonCode::KubeletUnusable, Some(remedy)) => remedy,
        _ => kind.cure().text,
    }
}

/// The remedy of a reason; where CPUs are offline, a command for the shell that sets them online.
pub(crate) fn to_do(kind: ReasonCode, text: &str) -> String {
    let cure = remedy(kind, text);
    let offline = named_cpus(text).filter(|_| kind == ReasonCode::CpusOffline);
    let numbers: Vec<String> = offline
        .iter()
        .flat_map(CpuSet::iter)
        .map(|cpu| cpu.to_string())
        .collect();
    match numbers.as_slice() {
        [] => cure.to_owned(),
        [one] => cure.replace("cpuN", &format!("cpu{one}")),
        many => format!(
            "for n in {}; do {}; done",
            many.join(" "),
            cure.replace("cpuN", "cpu$n")
        ),
    }
}

/// "CPUs 4-5 are offline: …" names 4 and 5.
fn named_cpus(text: &str) -> Option<CpuSet> {
    let (cpus, _) = text.strip_prefix("CPUs ")?.split_once(" are offline")?;
    cpus.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_message_and_its_remedy_in_one_row() {
        let page = include_str!("../../../../../docs/troubleshooting.md").replace('`', "");
        let page = page.replace("docs/", "/usr/share/doc/steliad/");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        for (message, remedy) in KUBELET_FILE {
            assert!(
                rows.iter().any(|row| row.contains(message) && row.contains(remedy)),
                "{message}: {remedy}"
            );
        }
    }

    #[test]
    fn what_no_kubelet_writes_and_a_file_that_ends_early_are_not_called_a_newer_kubelets() {
        let remedy_of = |bytes: &[u8]| {
            let refused = stelia_kubelet::CpuManagerState::parse(bytes).unwrap_err();
            remedy(ReasonCode::KubeletUnusable, &refused.to_string())
        };
        let too_large = r#"{"policyName":"static","defaultCpuSet":"","checksum":9999999999}"#;
        for text in ["{}", too_large] {
            assert_eq!(remedy_of(text.as_bytes()), NOT_KUBELETS, "{text}");
        }
        let beyond = "the default set: CPU list \"8-9999\": \"8-9999\" is beyond the highest CPU number 8191";
        assert_eq!(remedy_of_file(beyond), Some(NOT_KUBELETS));
        let whole = r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1,"slices":{}}"#;
        assert_eq!(remedy_of(whole.as_bytes()), "kubelet is newer: upgrade steliad");
        // The file ends within a key, a string or the object, with a newline or without one; or it is of zeroes.
        for end in [1, 10, 40, 60] {
            let cut = &whole[..end];
            for bytes in [cut.to_owned(), format!("{cut}\n"), "\0".repeat(end)] {
                assert_eq!(remedy_of(bytes.as_bytes()), NOT_WRITTEN_TO_ITS_END, "{bytes:?}");
            }
        }
    }

    #[test]
    fn the_command_names_the_cpus_that_are_offline() {
        for (text, cure) in [
            ("CPUs 40 are offline", "echo 1 > /sys/devices/system/cpu/cpu40/online"),
            (
                "CPUs 4-5,9 are offline: the vCPUs run on shared CPUs until one of them is online",
                "for n in 4 5 9; do echo 1 > /sys/devices/system/cpu/cpu$n/online; done",
            ),
            // The words of another daemon, and of another kind.
            ("CPU forty is offline", "echo 1 > /sys/devices/system/cpu/cpuN/online"),
        ] {
            assert_eq!(to_do(ReasonCode::CpusOffline, text), cure);
        }
        assert_eq!(
            to_do(ReasonCode::StepFailed, "CPUs 4 are offline"),
            ReasonCode::StepFailed.cure().text
        );
    }
}
