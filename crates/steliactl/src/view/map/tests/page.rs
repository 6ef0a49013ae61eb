//! The page, and text of others in it.

use stelia_api::{Reason, Word};

use super::nodes::{busy, map_of};
use crate::shared::daemon::node::testing::{PODS, instance_mut, node};

/// Ends an attribute, an element, a comment, a style; begins a script; turns writing round; controls a terminal.
const HOSTILE: &str =
    "\"'>]]></title></svg></style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u{202e}\x1b[2J\u{ffff}";

#[test]
fn the_page_needs_nothing_else_and_forbids_it() {
    let page = map_of(&busy(16, 1, 1, 3, 8)).html();
    assert!(page.starts_with("<!DOCTYPE html>"));
    let policy = "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\"";
    assert!(page.contains(policy));
    for word in [
        "<script",
        "javascript:",
        " src=",
        "url(",
        "@import",
        "<link",
        " on",
        "style=\"",
    ] {
        let found = page.find(word).map(|at| &page[at..(at + 60).min(page.len())]);
        // " on" also begins "on NUMA node".
        let is_text = found.is_some_and(|found| found.starts_with(" on NUMA node"));
        assert!(found.is_none() || is_text, "{found:?}");
    }
    for address in page.split("http").skip(1) {
        assert!(
            address.starts_with("://www.w3.org/2000/svg\"") || address.starts_with("-equiv"),
            "{address:.60}"
        );
    }
    assert!(page.split(" href=\"").skip(1).all(|rest| rest.starts_with("#v")));
}

#[test]
fn what_others_wrote_is_text_and_nothing_else() {
    let mut description = node();
    let instance = instance_mut(&mut description, PODS[0]);
    instance.container = HOSTILE.to_owned();
    instance.state = Word::Unknown(HOSTILE.to_owned());
    instance.degraded = vec![Reason {
        text: HOSTILE.to_owned(),
        ..Reason::default()
    }];
    let mut map = map_of(&description);
    map.host = HOSTILE.to_owned();
    map.devices_unknown = Some(HOSTILE.to_owned());
    for pod in &mut map.pods {
        let hostile = || HOSTILE.to_owned();
        let named = &mut pod.pod;
        (named.pod_uid, named.pod_namespace, named.pod_name) = (hostile(), hostile(), hostile());
        pod.devices = vec![stelia_node::locality::Device {
            name: HOSTILE.to_owned(),
            node: Some(0),
            count: 1,
        }];
    }
    for out in [map.html(), map.svg()] {
        for word in ["<script", "<img", "\u{202e}", "\x1b", "\u{ffff}", "'>]]"] {
            assert!(!out.contains(word), "{word:?}");
        }
        // What is written of it in each place begins like this.
        assert!(out.contains("&quot;&#39;&gt;]]&gt;&lt;/title&gt;&lt;/svg&gt;"));
        assert_eq!(out.matches("<title>").count(), out.matches("</title>").count());
        assert_eq!(out.matches("<svg").count(), out.matches("</svg>").count());
        assert_eq!(out.matches("</style>").count(), 1);
    }
}

#[test]
fn every_vm_has_a_row_a_panel_and_its_rules() {
    let map = map_of(&busy(512, 2, 8, 100, 8));
    let page = map.html();
    for n in 0..100 {
        for part in [
            format!("<tr class=\"v{n}\" id=\"v{n}\">"),
            format!("<aside id=\"p{n}\">"),
            format!("#p{n}{{display:block}}"),
        ] {
            assert_eq!(page.matches(&part).count(), 1, "{part}");
        }
    }
    assert!(page.contains("<dt>Degraded</dt><dd>kubelet gave CPU 2 away</dd>"));
    // The panel of a VM without reasons has no row for them.
    assert_eq!(page.matches("<dt>Degraded</dt>").count(), 14);
}

#[test]
fn dark_and_light_are_the_readers_choice() {
    let page = map_of(&node()).html();
    assert!(page.contains("<meta name=\"color-scheme\" content=\"light dark\">"));
    assert_eq!(page.matches("@media (prefers-color-scheme:dark)").count(), 2);
}
