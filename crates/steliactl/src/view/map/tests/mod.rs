//! Maps of nodes from one with 8 CPUs to one with 512 and 100 pods, as text, JSON and SVG.

mod boxes;
mod nodes;

use std::sync::Arc;

use nodes::{host, map_of};
use stelia_api::{Reason, ReasonCode};
use stelia_kubelet::{PodName, PodUid};

use super::text::{Paper, draw};
use super::{Map, marks};
use crate::shared::daemon::node::testing::{PODS, allocated, described, instance_mut, node};
use crate::tests::fixtures::says;

const PLAIN: Paper = Paper {
    width: 80,
    cut: false,
    coloured: false,
    legend: true,
};

/// Ends an attribute, an element, a comment, a style; begins a script; turns writing round; controls a terminal.
const HOSTILE: &str =
    "\"'>]]></title></svg></style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u{202e}\x1b[2J\u{ffff}";

/// The text below the heading, which has the time.
fn body(map: &Map, paper: &Paper) -> String {
    let text = draw(map, paper);
    match text.split_once("\n\n") {
        Some((_, body)) if paper.legend => body.to_owned(),
        _ => text,
    }
}

#[test]
fn what_steliad_gave_is_its_instances_and_not_kubelets() {
    let map = map_of(&allocated());
    assert_eq!(
        body(&map, &PLAIN),
        "socket 0 node 0\n [0r  1. ] [2A= 3. ]\nsocket 1 node 1\n [4B  5B ] [6k  7. ]\n\n\
         . shared   r reserved   k held by kubelet   A isolated   A= pinned\n\n\
         MARK  POD                                   CPUS  STATE\n\
         A     bbbbbbbb-0000-4000-8000-000000000000  2     pinned, LSR\n\
         B     aaaaaaaa-0000-4000-8000-000000000000  4-5   isolated, LSE\n\
         C     cccccccc-0000-4000-8000-000000000000  -     floating, LS\n"
    );
}

#[test]
fn every_cpu_is_drawn_once_with_the_mark_of_its_owner_and_a_degraded_vm_keeps_it() {
    assert_eq!(
        body(&map_of(&node()), &PLAIN),
        "socket 0 node 0\n [0r  1r ] [2A! 3. ]\nsocket 1 node 1\n [4B  5B ] [6C* 7. ]\n\n\
         . shared   r reserved   A isolated   A! degraded   A* of a pod without instance\n\n\
         MARK  POD                                   CPUS  STATE\n\
         A     bbbbbbbb-0000-4000-8000-000000000000  2     floating, degraded\n\
         B     aaaaaaaa-0000-4000-8000-000000000000  4-5   isolated\n\
         C     cccccccc-0000-4000-8000-000000000000  6     no instance\n"
    );
}

#[test]
fn a_cpu_that_device_interrupts_reach_has_a_sign_of_its_own() {
    let mut description = node();
    let left = stelia_api::quiet::Remaining {
        // CPU 3 is shared: there they may be.
        cpus: "2-4".parse().unwrap(),
        ..Default::default()
    };
    Arc::make_mut(&mut description.node.quiet).report.remaining = vec![left];
    let map = map_of(&description);
    let text = body(&map, &PLAIN);
    assert!(
        text.starts_with("socket 0 node 0\n [0r   1r  ] [2A#! 3.  ]\nsocket 1 node 1\n [4B#  5B  ] [6C*  7.  ]\n\n"),
        "{text}"
    );
    assert!(text.contains("A# reached by device interrupts\n"), "{text}");
    assert!(
        map.svg()
            .contains("CPU 4: aaaaaaaa-0000-4000-8000-000000000000, isolated; device interrupts reach it")
    );
}

#[test]
fn the_heading_has_the_host_the_time_and_what_there_is() {
    let mut map = map_of(&node());
    (map.host, map.time_us) = ("worker-1".to_owned(), 951_827_696_000_007);
    let text = draw(&map, &PLAIN);
    assert_eq!(
        text.lines().next().unwrap(),
        "worker-1  2000-02-29 12:34:56 UTC  8 CPUs, 2 sockets, 2 NUMA nodes"
    );
    let without = Paper { legend: false, ..PLAIN };
    assert!(draw(&map, &without).starts_with("socket 0 node 0\n"));
    assert!(!draw(&map, &without).contains("MARK"));
}

#[test]
fn memory_caches_and_devices_are_where_they_are() {
    let mut description = node();
    description.locality = described(&format!(
        r#"{{"locality":{{"instances":{{"{}":{{"nodes":[1],"allowed":"","memory":{{}},"devices":[
            {{"name":"nvidia.com/gpu","node":1,"count":2}},{{"name":"devices.kubevirt.io/kvm","node":null,"count":1}},
            {{"name":"example.com/memory","node":7,"count":1}}]}}}},
            "devices_unknown":null}}}}"#,
        PODS[0]
    ))
    .locality;
    let sys = host(8, 4, 2);
    let map = sys.map_of(&description);
    assert_eq!(
        body(&map, &PLAIN).split("\n\n").next().unwrap(),
        "socket 0 node 0, 2.0 GiB\n L3 8.0 MiB, CPUs 0-1\n  [0r  1r ]\n L3 8.0 MiB, CPUs 2-3\n  [2A! 3. ]\n\
         socket 1 node 1, 2.0 GiB\n L3 8.0 MiB, CPUs 4-5\n  [4B  5B ]\n L3 8.0 MiB, CPUs 6-7\n  [6C* 7. ]\n \
         (nvidia.com/gpu B×2)\ndevices on NUMA nodes without CPUs\n (example.com/memory B^)"
    );
    let picture = map.svg();
    says(
        &picture,
        &[
            "NUMA node 1 2.0 GiB",
            "L3 8.0 MiB, shared by CPUs 6-7",
            "nvidia.com/gpu ×2, NUMA node 1: aaaaaaaa-0000-4000-8000-000000000000",
            "example.com/memory, NUMA node 7, remote from its CPUs: aaaaaaaa-0000-4000-8000-000000000000",
            "Machine 4.0 GiB",
        ],
    );
    let key = draw(&map, &PLAIN);
    assert!(key.contains("A^ device on another NUMA node than the CPUs"), "{key}");
    assert!(!picture.contains("kubevirt"), "{picture}");
}

#[test]
fn one_cache_of_several_numa_nodes_says_so_in_each() {
    let map = host(8, 4, 8).map_of(&node());
    let text = body(&map, &PLAIN);
    for node in 0..2 {
        let heading = format!("socket {node} node {node}, 2.0 GiB, L3 8.0 MiB of several NUMA nodes\n [");
        assert!(text.contains(&heading), "{text}");
    }
    assert_eq!(
        map.svg()
            .matches("L3 8.0 MiB of several NUMA nodes, shared by CPUs 0-7")
            .count(),
        2
    );
}

#[test]
fn a_narrow_terminal_gets_more_lines_and_the_same_map() {
    let map = map_of(&node());
    let quiet = |width| Paper {
        width,
        legend: false,
        ..PLAIN
    };
    let (wide, narrow) = (draw(&map, &quiet(80)), draw(&map, &quiet(12)));
    let lines = narrow.lines().take_while(|line| !line.starts_with('A'));
    assert!(
        lines.clone().count() > 4 && lines.clone().all(|line| line.len() <= 15),
        "{narrow}"
    );
    let cells = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(&wide), cells(&narrow));
}

#[test]
fn colours_only_where_asked_for_and_another_for_each_vm() {
    let map = map_of(&node());
    assert!(!draw(&map, &PLAIN).contains('\x1b'));
    let coloured = draw(
        &map,
        &Paper {
            coloured: true,
            ..PLAIN
        },
    );
    for cell in [
        "\x1b[38;5;33m2A\x1b[0m\x1b[1;31m!\x1b[0m",
        "\x1b[38;5;172m4B\x1b[0m",
        "\x1b[2m3.\x1b[0m",
    ] {
        assert!(coloured.contains(cell), "{cell:?} in {coloured:?}");
    }
    let mut plain = coloured.clone();
    while let Some(start) = plain.find('\x1b') {
        let end = start + plain[start..].find('m').unwrap();
        plain.replace_range(start..=end, "");
    }
    assert_eq!(plain, draw(&map, &PLAIN));
}

#[test]
fn a_node_of_512_cpus_and_100_vms_fits_a_terminal_and_every_vm_is_told_apart() {
    let sys = host(512, 64, 16);
    let map = sys.map_of(&nodes::busy(512, 2, 8, 100, 40));
    for width in [80, 200] {
        let paper = Paper {
            width,
            cut: true,
            ..PLAIN
        };
        let text = draw(&map, &paper);
        let widest = text.lines().map(marks::columns).max().unwrap();
        assert!(widest <= width && widest > width - 12, "{widest} of {width}:\n{text}");
        assert!(text.lines().count() < 300, "{text}");
        says(&text, &["[  0r     1r  ]", "506CV+", " 20C~"]);
    }
    let marks: std::collections::HashSet<String> = map.cpus().map(|cpu| marks::tail(&map, cpu)).collect();
    // Those of 100 VMs, and reserved.
    assert_eq!(marks.len(), 101);
}

#[test]
fn without_a_terminal_nothing_is_cut() {
    let map = map_of(&nodes::busy(16, 1, 1, 2, 253));
    let name = map.pods[0].pod.to_string();
    assert!(draw(&map, &PLAIN).contains(&name));
    let cut = draw(&map, &Paper { cut: true, ..PLAIN });
    assert!(!cut.contains(&name) && cut.contains('…'), "{cut}");
    assert!(cut.lines().all(|line| marks::columns(line) <= 80), "{cut}");
}

#[test]
fn json_names_the_place_the_owner_and_the_vm_of_each_cpu() {
    let mut description = node();
    let named = instance_mut(&mut description, PODS[0]);
    named.pod_name = PodName::new("team-a", "vm");
    let sys = host(8, 4, 2);
    let json = serde_json::to_value(sys.map_of(&description)).unwrap();
    assert_eq!(json["host"], "worker-1");
    assert!(json["time_us"].as_u64().unwrap() > 1_700_000_000_000_000);
    assert_eq!(
        json["nodes"][1],
        serde_json::json!({"node": 1, "memory_bytes": 2_147_483_648_u64})
    );
    let core = &json["cores"][2];
    assert_eq!(
        [&core["socket"], &core["node"], &core["core"], &core["l3"]],
        [&1.into(), &1.into(), &0.into(), &serde_json::Value::from("4-5")]
    );
    let own = serde_json::json!({"cpu": 4, "owner": "instance", "interrupted": false, "mark": "B", "pod_uid": "aaaaaaaa-0000-4000-8000-000000000000", "pod_namespace": "team-a",
        "pod_name": "vm", "container": "vm", "state": "isolated"});
    assert_eq!(core["cpus"][0], own);
    assert_eq!(
        json["cores"][1]["cpus"][1],
        serde_json::json!({"cpu": 3, "owner": "shared", "interrupted": false, "mark": null, "pod_uid": null, "pod_namespace": null, "pod_name": null,
            "container": null, "state": null})
    );
    assert_eq!(json["cores"][3]["cpus"][0]["owner"], "pod");
    assert_eq!(json["cores"][3]["cpus"][0]["state"], serde_json::Value::Null);
    assert_eq!(json["pods"][0]["degraded"][0], "kubelet gave CPU 2 away");
    let of_kubelets = serde_json::to_value(map_of(&allocated())).unwrap();
    assert_eq!(of_kubelets["cores"][3]["cpus"][0]["owner"], "kubelet");
    assert_eq!(of_kubelets["pods"][0]["class"], "LSR");
    assert_eq!(of_kubelets["cores"][0]["l3"], serde_json::Value::Null);
}

#[test]
fn more_pods_than_letters_have_two_letters() {
    let mut node = node();
    let entries = Arc::make_mut(&mut node.node.entries);
    let uid = |n: u32| format!("eeeeeeee-0000-4000-8000-0000000000{n:02}");
    for n in 0..60 {
        entries.insert(PodUid::parse(&uid(n)).unwrap(), Default::default());
    }
    let text = draw(&map_of(&node), &PLAIN);
    assert!(text.contains(&format!("BK    {}", uid(59))), "{text}");
}

#[test]
fn a_picture_goes_to_a_file_or_to_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("map.svg");
    assert_eq!(super::write("<svg/>".to_owned(), &path).unwrap(), "");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "<svg/>");
    assert_eq!(
        super::write("<svg/>".to_owned(), std::path::Path::new("-")).unwrap(),
        "<svg/>"
    );
    let failure = super::write(String::new(), directory.path()).unwrap_err();
    assert!(failure.to_string().starts_with("write /"), "{failure}");
}

#[test]
fn what_others_wrote_is_text_of_the_picture_and_nothing_else() {
    let mut description = node();
    let instance = instance_mut(&mut description, PODS[0]);
    instance.container = HOSTILE.to_owned();
    instance.degraded = vec![Reason::of_node(ReasonCode::StepFailed, HOSTILE)];
    let mut map = map_of(&description);
    map.host = HOSTILE.to_owned();
    map.devices_unknown = Some(HOSTILE.to_owned());
    for pod in &mut map.pods {
        let hostile = || HOSTILE.to_owned();
        let named = &mut pod.pod;
        (named.pod_uid, named.pod_namespace, named.pod_name) = (hostile(), hostile(), hostile());
        pod.devices = vec![stelia_kernel::locality::Device {
            name: HOSTILE.to_owned(),
            node: Some(0),
            count: 1,
        }];
    }
    let picture = map.svg();
    for word in ["<script", "<img", "\u{202e}", "\x1b", "\u{ffff}", "'>]]"] {
        assert!(!picture.contains(word), "{word:?}");
    }
    // What is written of it in each place begins like this.
    assert!(picture.contains("&quot;&#39;&gt;]]&gt;&lt;/title&gt;&lt;/svg&gt;"));
    assert_eq!(picture.matches("<title>").count(), picture.matches("</title>").count());
    assert_eq!(picture.matches("<svg").count(), picture.matches("</svg>").count());
    assert_eq!(picture.matches("</style>").count(), 1);
}
