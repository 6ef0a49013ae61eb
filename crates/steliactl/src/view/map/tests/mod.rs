//! Maps of nodes from one with 8 CPUs to one with 512 and 100 pods, as text, JSON and SVG.

mod boxes;
mod nodes;

use nodes::{host, map_of};
use stelia_api::{Reason, ReasonCode, State};
use stelia_kubelet::PodName;

use super::picture::svg;
use super::{Map, gather};
use crate::shared::daemon::Selected;
use crate::shared::daemon::node::testing::{PODS, allocated, instance_mut, node};
use crate::shared::kernel::Roots;
use crate::shared::output::{Render, TextStyle, columns as width_of};
use crate::tests::fixtures::{columns, holds, never_says, says, selection};

/// Ends an attribute, an element, a comment, a style; begins a script; turns writing round; controls a terminal.
const HOSTILE: &str =
    "\"'>]]></title></svg></style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u{202e}\x1b[2J\u{ffff}";

/// The text for a terminal of 80 columns, below the heading, which has the time.
fn body(map: &Map) -> String {
    let text = map.text(columns(80));
    text.split_once("\n\n").expect("a heading").1.to_owned()
}

#[test]
fn what_steliad_gave_is_its_vms_and_not_kubelets() {
    insta::assert_snapshot!(body(&map_of(&allocated())));
}

#[test]
fn every_cpu_is_drawn_once_with_the_mark_of_its_owner_and_a_degraded_vm_keeps_it() {
    insta::assert_snapshot!(body(&map_of(&node())));
}

#[test]
fn an_evicted_vm_has_none_of_the_cpus_that_another_pod_was_given() {
    let mut description = node();
    let evicted = instance_mut(&mut description, PODS[0]);
    (evicted.state, evicted.exclusive) = (State::Evicted, "4-6".parse().unwrap());
    let json = serde_json::to_value(map_of(&description)).unwrap();
    holds(
        &json,
        serde_json::json!({
            "/pods/1/pod_uid": PODS[0], "/pods/1/state": "evicted", "/pods/1/cpus": "4-5", "/cores/2/cpus/0/mark": "B%",
            "/pods/2/cpus": "6", "/cores/3/cpus/0/mark": "C*",
        }),
    );
}

#[test]
fn pods_that_are_not_selected_have_no_mark_and_the_others_keep_their_letters() {
    let selected = Selected::of(&selection(&[PODS[0]]), node()).unwrap();
    let map = gather(&selected, &Roots::below(std::path::Path::new("/nonexistent")));
    let text = body(&map);
    says(&text, &["[x .]", "[B  ]", "x not selected"]);
    never_says(&text, &[PODS[1]]);
}

#[test]
fn the_heading_has_the_host_the_time_and_what_there_is() {
    let mut map = map_of(&node());
    (map.host, map.time_us) = ("worker-1".to_owned(), 951_827_696_000_007);
    let heading = "worker-1  2000-02-29 12:34:56 UTC, 8 CPUs, 2 sockets, 2 NUMA nodes\n\n";
    assert!(map.text(columns(80)).starts_with(heading));
    let without = map.text(TextStyle::default());
    assert!(without.starts_with("socket 0, NUMA 0\n"));
    never_says(&without, &["isolated", PODS[0]]);
}

#[test]
fn memory_and_caches_are_where_they_are() {
    let map = host(8, 4, 2).map_of(&node());
    let parts = ["socket 1, NUMA 1, 2.0 GiB, L3 8.0 MiB\n L3 CPU 4 [B   ]\n L3 CPU 6 [C* .]\n"];
    says(&body(&map), &parts);
    says(&svg(&map).unwrap(), &[">socket 1, NUMA 1, 2.0 GiB, L3 8.0 MiB<"]);
}

#[test]
fn colours_only_where_asked_for_and_they_mean_trouble() {
    let map = map_of(&node());
    assert!(!map.text(columns(80)).contains('\x1b'));
    let coloured = map.text(TextStyle {
        coloured: true,
        ..columns(80)
    });
    says(&coloured, &["\x1b[31mA!\x1b[0m", "\x1b[32mB\x1b[0m", "\x1b[2m.\x1b[0m"]);
}

#[test]
fn cpus_of_unknown_owners_say_so_below_the_problem_of_the_node() {
    let mut description = node();
    description.node.pool = None;
    description.problems = vec![Reason::of_node(ReasonCode::KubeletUnusable, "/a/path: checksum")];
    let text = map_of(&description).text(columns(80));
    assert!(text.starts_with("NODE  cpu_manager_state is unusable: "), "{text}");
    says(&text, &["? owner unknown"]);
    never_says(&text, &["/a/path"]);
}

#[test]
fn a_large_node_fits_a_terminal_and_lists_only_vms_in_trouble() {
    let sys = host(512, 64, 16);
    let map = sys.map_of(&nodes::busy(512, 2, 8, 100, 40));
    for width in [60, 80, 200] {
        let text = map.text(columns(width));
        assert!(text.lines().all(|line| width_of(line) <= width), "{text}");
        assert!(text.lines().count() < 160, "{text}");
        says(&text, &["[CV+ ", "other pods not listed: steliactl map -l"]);
        // The isolated ones are only drawn.
        says(&text, &["[A  "]);
        never_says(&text, &["\nA  "]);
    }
    // Without a limit all are, isolated or not.
    let whole = map.text(TextStyle::from(true));
    says(&whole, &["\nA    ", "\nCV+  "]);
    never_says(&whole, &["not listed"]);
    let cpus = map.cores.iter().flat_map(|core| &core.cpus);
    let marks: std::collections::HashSet<&str> = cpus.map(|cpu| cpu.mark.text.as_str()).collect();
    // Those of 100 VMs, and reserved.
    assert_eq!(marks.len(), 101);
}

/// Firmware numbers sockets and NUMA nodes as it likes, and a cache may have every other CPU.
#[test]
fn rows_are_in_the_order_of_their_cpus() {
    let mut description = node();
    description.node.instances.clear();
    for (cpu, place) in &mut std::sync::Arc::make_mut(&mut description.node.topology).cpus {
        (place.package, place.node, place.core) = (1 - cpu / 4, 1 - cpu / 4, *cpu);
    }
    let host = host(8, 4, 4);
    let cache = |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list");
    (0..4).for_each(|cpu| host.write(&cache(cpu), if cpu % 2 == 0 { "0,2\n" } else { "1,3\n" }));
    let text = body(&host.map_of(&description));
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("CPU ")).take(3).collect();
    let expected = [
        " L3 CPU 0 [r ] [A*]",
        " L3 CPU 1 [r ] [. ]",
        " L3 CPU 4 [B*] [B*] [C*] [. ]",
    ];
    assert_eq!(rows, expected, "{text}");
    // No core has two threads, and no sign is explained that is not there.
    let legend = "A row names its first CPU, L3 where a cache begins. . shared,\nA* no VM or released, r reserved\n";
    says(&text, &[legend]);
}

#[test]
fn a_cache_is_found_by_its_level_and_what_is_not_understood_is_left_out() {
    let host = host(4, 4, 2);
    for cpu in 0..4 {
        let own = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        host.write(&format!("{own}/index4/level"), "2\n");
        host.write(&format!("{own}/index4/shared_cpu_list"), "0-3\n");
    }
    let found = || {
        host.map_of(&node())
            .cores
            .iter()
            .map(|core| core.l3.clone())
            .collect::<Vec<_>>()
    };
    let lists = |found: &[Option<super::Cache>]| {
        found
            .iter()
            .flatten()
            .map(|cache| cache.cpus.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(lists(&found()), ["0-1", "2-3"]);
    assert_eq!(found()[0].as_ref().unwrap().title(), "L3 8.0 MiB");
    for size in ["1M", "K", "99999999999999999999K"] {
        host.write("sys/devices/system/cpu/cpu0/cache/index3/size", size);
        assert_eq!(found()[0].as_ref().unwrap().title(), "L3", "{size}");
    }
    host.write("sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "zero\n");
    host.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: much\n");
    let map = host.map_of(&node());
    assert_eq!(map.memory_bytes.values().flatten().count(), 0);
}

#[test]
fn without_a_terminal_nothing_is_cut() {
    let map = map_of(&nodes::busy(16, 1, 1, 2, 253));
    let name = map.pods[0].pod.to_string();
    says(&map.text(TextStyle::from(true)), &[&name]);
    let cut = map.text(columns(80));
    assert!(!cut.contains(&name) && cut.contains('…'), "{cut}");
    assert!(cut.lines().all(|line| width_of(line) <= 80), "{cut}");
}

#[test]
fn json_has_the_place_and_the_owner_of_each_cpu() {
    let mut description = node();
    instance_mut(&mut description, PODS[0]).pod_name = PodName::new("team-a", "vm");
    let json = serde_json::to_value(host(8, 4, 8).map_of(&description)).unwrap();
    holds(
        &json,
        serde_json::json!({
            "/host": "worker-1", "/memory_bytes/1": 2_147_483_648_u64,
            "/cores/2/socket": 1, "/cores/2/node": 1, "/cores/2/core": 0, "/cores/2/l3/cpus": "0-7",
            "/cores/2/cpus/0": {"cpu": 4, "mark": "B", "owner": "team-a/vm, isolated"},
            "/cores/1/cpus/1/owner": "shared", "/cores/3/cpus/0/mark": "C*",
        }),
    );
    let of_steliad = serde_json::to_value(map_of(&allocated())).unwrap();
    holds(
        &of_steliad,
        serde_json::json!({"/cores/3/cpus/0/owner": "held by kubelet", "/pods/0/state": "pinned LSR", "/cores/0/l3": null}),
    );
}

#[test]
fn what_others_wrote_is_text_of_the_picture_and_nothing_else() {
    let mut description = node();
    let instance = instance_mut(&mut description, PODS[0]);
    instance.container = HOSTILE.to_owned();
    instance.degraded = vec![Reason::of_node(ReasonCode::StepFailed, HOSTILE)];
    let mut map = map_of(&description);
    map.host = HOSTILE.to_owned();
    for pod in &mut map.pods {
        let hostile = || HOSTILE.to_owned();
        let named = &mut pod.pod;
        (named.pod_uid, named.pod_namespace, named.pod_name) = (hostile(), hostile(), hostile());
    }
    let text = map.text(TextStyle::from(true));
    says(&text, &["&amp;??[2J?  ", "&amp;??[2J?/\"'>"]);
    assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
    let picture = svg(&map).unwrap();
    for word in ["<script", "<img", "\u{202e}", "\x1b", "\u{ffff}", "'>]]"] {
        assert!(!picture.contains(word), "{word:?}");
    }
    // What is written of it in each place begins like this.
    assert!(picture.contains("&#34;&#39;&#62;]]&#62;&#60;/title&#62;&#60;/svg&#62;"));
    assert_eq!(picture.matches("<title>").count(), picture.matches("</title>").count());
    assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
    assert_eq!(picture.matches("</style>").count(), 1);
}

#[test]
fn every_column_is_explained() {
    let explained = crate::shared::output::manual::explained("COLUMNS", Some("map"));
    assert_eq!(explained, crate::tests::fixtures::headings(&super::text::PODS));
}
