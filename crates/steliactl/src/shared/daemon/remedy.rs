//! What an operator does about a reason of degradation.

use stelia_api::ReasonKind;

/// What `docs/troubleshooting.md` has for each message about kubelet's file, under "kubelet's file cannot be used".
const KUBELET_FILE: [(&str, &str); 7] = [
    (
        "No such file",
        "kubelet never ran here, or has another root directory: kubelet-home of steliactl doctor",
    ),
    (
        "which is kubelet's root directory is not clear",
        "remove an earlier installation's cpu_manager_state, or set kubelet-root",
    ),
    ("CPU manager policy is", "/usr/share/doc/steliad/kubelet.md"),
    (
        "the file is empty",
        "the node lost power: drain it, stop kubelet, remove the file, start kubelet",
    ),
    (
        "has checksum",
        "somebody edited the file: drain the node, stop kubelet, remove the file, start kubelet",
    ),
    ("no known schema", "kubelet is newer: upgrade steliad"),
    (
        "gives CPUs to containers",
        "remove the driver, or cpu-source = \"kubelet\"",
    ),
];

/// The remedy of a reason. That of an unusable file of kubelet's depends on its message.
pub(crate) fn remedy(kind: ReasonKind, text: &str) -> &'static str {
    let of_message = KUBELET_FILE.iter().find(|(message, _)| text.contains(message));
    match (kind, of_message) {
        (ReasonKind::KubeletUnusable, Some((_, remedy))) => remedy,
        _ => kind.cure().text,
    }
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
    fn the_message_decides_only_about_kubelets_file() {
        let text = "kubelet's state cannot be used: the file has checksum 1, its content gives 2";
        assert_eq!(
            remedy(ReasonKind::KubeletUnusable, text),
            "somebody edited the file: drain the node, stop kubelet, remove the file, start kubelet"
        );
        assert_eq!(remedy(ReasonKind::NotDone, text), ReasonKind::NotDone.cure().text);
        assert_eq!(
            remedy(ReasonKind::KubeletUnusable, "read it: Input/output error"),
            ReasonKind::KubeletUnusable.cure().text
        );
    }
}
