//! What is printed, checked against the rules of the formats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::definitions::{all, up};
use super::replace;
use super::text::{classic, openmetrics};
use crate::shared::daemon::node::Description;
use crate::shared::daemon::node::testing::{allocation, described as given, instance_mut};
use crate::shared::kernel::sample::{InstanceCounts, Sample, ThreadCounts};

const POD: &str = "aaaaaaaa-0000-4000-8000-000000000000";

/// 8 CPUs: 4-5 of an instance, 6 of another pod, 0-1 reserved; two vCPUs, the second of which shares its CPU, and an
/// I/O thread.
fn description() -> String {
    let cpus: Vec<String> = (0..8)
        .map(|cpu| format!(r#""{cpu}":{{"package":0,"core":{cpu},"node":0}}"#))
        .collect();
    let timed = |first: u64| format!(r#"{{"counts":[{first},1,0,0,0,0,0,0,0,0,0,0,0,1],"sum_us":12500000}}"#);
    format!(
        r#"{{"version":"0.1.0","problems":[{{"code":"kubelet-unusable","text":"","fix":""}}],"node":{{"pool":"0-3,7","offline":"8-9","kubelet_modified_us":1699999999000000,"entries":{{"{POD}":{{"vm":"4-5"}},"cccccccc-0000-4000-8000-000000000000":{{"db":"6"}}}},
        "topology":{{"cpus":{{{cpus}}}}},"slice_exclusive":"4-5","counters":{{"drift_found":3,"drift_repaired":2}},
        "unreadable":[["x.scope","schema 9"]],
        "quiet":{{"steering":"shared","remaining":[{{"irq":130,"name":"nvme0q3","cpus":"5","why":"managed","text":"","count":3}},{{"irq":31,"cpus":"7"}}],
        "threads_remaining":[{{"id":9,"name":"kworker/R-x","cpus":"0-7","text":""}}],
        "caches":{{"{POD}":{{"class":"","llc_bytes":1048576,"memory_bytes":9000000}}}}}},
        "ledger":{{"enabled":true,"key":"q1w2","seq":40112,"hash":"8f3a","day":"2026-10-31","bytes":5242880,"vms":{{"{POD}":{{"other_tasks_least":3,
        "other_tasks_most":7,"devices":12,"delay_ns":41000000,"promised_us":172800000000,"covered_us":172799000000,"intruded":2}}}}}},
        "publishing":{{"profile":"nrt","problem":null,"written_us":1700000000000000}},
        "instances":{{"{POD}":{{"pod_namespace":"team-a","pod_name":"vm","container":"v\"m\\\n","state":"isolated","degraded":[{{"code":"cpus-offline","text":"CPUs 5 are offline","fix":""}}],"exclusive":"4-5",
        "float":"0-1","scope":"/stelia.slice/a.scope","registered_us":1700000000000000,"isolated_us":1700000001500000,"vcpus":[
        {{"index":0,"task":{{"id":70,"start":9}},"cpu":4}},{{"index":1,"task":{{"id":71,"start":9}},"cpu":null}},
        {{"index":2147483648,"task":{{"id":72,"start":9}},"cpu":5}}]}}}}}},
        "locality":{{"instances":{{"{POD}":{{"nodes":[0],"allowed":"","devices":[],"memory":{{"0":{{"anon":300}},"1":{{"huge":100}}}}}}}}}},
        "usage":{{"{POD}":{{"memory_bytes":4096,"origin_memory_bytes":1024,"cpu_usec":5}}}},
        "kubelet_config":{{"reservedSystemCPUs":"0-1"}},
        "metrics":{{"started_us":1700000000000000,"steps":40,"writes":20,"moves":5,"failed":1,"passes":{{"audit":{audit},"event":{event}}},
        "calls":{{"register":{audit}}},"refusals":{{"Busy":0,"NoAnchor":2}},"follow":{event},
        "kubelet_since_us":1700000000000000}}}}"#,
        cpus = cpus.join(","),
        audit = timed(4),
        event = timed(0),
    )
}

fn described() -> Description {
    given(&description())
}

fn sampled() -> Sample {
    let thread = |(index, cpu)| {
        let thread = ThreadCounts {
            cpu,
            run_ns: Some(5_000_000_000),
            delay_ns: Some(1_250_000),
            involuntary: Some(3),
            ..ThreadCounts::default()
        };
        (index, thread)
    };
    let instance = InstanceCounts {
        float_us: Some(7_500_000),
        device_interrupts: Some(1234),
        vcpus: [(0, Some(4)), (1, None), (1 << 31, Some(5))].map(thread).into(),
        ..InstanceCounts::default()
    };
    Sample {
        instances: [(POD.to_owned(), instance)].into(),
        ..Sample::default()
    }
}

fn printed() -> String {
    openmetrics(all(&described(), &sampled())).unwrap()
}

/// The rules common to both formats, beside what the encoder ensures: a family is declared once, before its samples, which stand together; no
/// series occurs twice; a counter, which the older format names with its ending, ends in `_total`. Returns the families with their types.
fn check(text: &str) -> BTreeMap<&str, &str> {
    let (mut families, mut series) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut kind) = ("", "");
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            (family, kind) = declared.split_once(' ').unwrap();
            // "info" and others would make node-exporter refuse the file.
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(family, kind).is_none(), "{family} is declared twice");
        } else if !line.starts_with('#') {
            let (of, value) = line.rsplit_once(' ').unwrap();
            assert!(series.insert(of) && value.parse::<f64>().is_ok(), "{line}");
            let name = of.split('{').next().unwrap();
            let ending = name.strip_prefix(family);
            let ending = ending.unwrap_or_else(|| panic!("{line} after {family}"));
            let is_good = match kind {
                "gauge" => ending.is_empty(),
                "counter" => name.ends_with("_total") && ["", "_total"].contains(&ending),
                _ => ["_bucket", "_count", "_sum"].contains(&ending),
            };
            assert!(is_good, "{line} in a {kind}");
        }
    }
    families
}

#[test]
fn both_formats_are_as_specified() {
    let text = printed();
    assert!(text.ends_with("\n# EOF\n"));
    let newer = check(&text);
    for name in newer.keys() {
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit));
        let mut lines = text.lines();
        let declared = lines.find_map(|line| line.strip_prefix(&format!("# UNIT {name} ")));
        assert_eq!(declared, unit, "{name}");
    }
    let text = classic(&text);
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    let older = check(&text);
    assert_eq!(older.len(), newer.len());
    for name in newer
        .iter()
        .filter(|(_, kind)| **kind == "counter")
        .map(|(name, _)| name)
    {
        assert_eq!(older[format!("{name}_total").as_str()], "counter");
        assert!(text.contains(&format!("# HELP {name}_total ")));
    }
}

#[test]
fn the_text_of_a_node() {
    insta::assert_snapshot!(printed());
}

#[test]
fn what_is_not_known_is_not_told() {
    let less = description().replace("isolated_us", "other");
    let text = openmetrics(all(&given(&less), &Sample::default())).unwrap();
    check(&text);
    let has = |start: &str| text.lines().any(|line| line.starts_with(start));
    assert!(has("stelia_up 1") && has("stelia_instance_registered_timestamp_seconds{"));
    assert!(!has("stelia_vcpu_run_seconds_total") && !has("stelia_instance_isolated_timestamp_seconds{"));
    assert!(!has("stelia_instance_float_cpu_seconds_total"));
}

#[test]
fn an_instance_that_is_to_float_is_told_from_one_that_lost_its_cpus() {
    let mut described = described();
    instance_mut(&mut described, POD).allocation = Some(allocation(stelia_koordinator::allocator::Qos::Ls));
    let text = openmetrics(all(&described, &sampled())).unwrap();
    assert!(text.contains("state=\"isolated\",class=\"LS\"} 1\n"), "{text}");
}

#[test]
fn a_pod_is_named_in_each_series_of_an_instance() {
    let text = printed();
    let series = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("stelia_instance_"));
        lines.map(str::to_owned).collect()
    };
    let named = r#"{pod_uid="aaaaaaaa-0000-4000-8000-000000000000",namespace="team-a",pod="vm""#;
    assert!(
        series(&text).len() >= 8 && series(&text).iter().all(|line| line.contains(named)),
        "{text}"
    );

    // A runtime that does not tell: the labels are there and empty.
    let nameless = description().replace(r#""pod_namespace":"team-a","pod_name":"vm","#, "");
    let text = openmetrics(all(&given(&nameless), &sampled())).unwrap();
    let unnamed = r#"{pod_uid="aaaaaaaa-0000-4000-8000-000000000000",namespace="",pod="""#;
    assert!(series(&text).iter().all(|line| line.contains(unnamed)), "{text}");
}

#[test]
fn what_is_left_on_a_vms_cpus_is_told_only_where_it_is_known() {
    let left = |described: &Description| -> [Option<String>; 2] {
        let text = openmetrics(all(described, &sampled())).unwrap();
        ["stelia_interrupts_remaining{", "stelia_kernel_threads_remaining{"].map(|start| {
            let line = text.lines().find(|line| line.starts_with(start))?;
            Some(line.rsplit_once(' ').unwrap().1.to_owned())
        })
    };
    let mut described = described();
    // Of the two interrupts that remain one reaches its CPUs.
    assert_eq!(left(&described), [Some("1".to_owned()), Some("1".to_owned())]);
    Arc::make_mut(&mut described.node.quiet).report.remaining.clear();
    assert_eq!(left(&described)[0].as_deref(), Some("0"));
    Arc::make_mut(&mut described.node.quiet).steering = "off".to_owned();
    assert_eq!(left(&described), [None, Some("1".to_owned())]);
    Arc::make_mut(&mut described.node.quiet).problem = Some("steliad-quiet does not answer".to_owned());
    assert_eq!(left(&described), [None, None]);
}

#[test]
fn a_ledger_that_is_not_kept_counts_nothing() {
    let series = |described: &Description| -> Vec<String> {
        let text = openmetrics(all(described, &sampled())).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("stelia_ledger_"));
        lines.map(str::to_owned).collect()
    };
    let mut described = described();
    assert_eq!(series(&described).len(), 10);
    Arc::make_mut(&mut described.node.ledger).problem = Some("no space left".to_owned());
    // What was counted remains true.
    assert!(series(&described).contains(&"stelia_ledger_kept 0".to_owned()) && series(&described).len() == 10);
    Arc::make_mut(&mut described.node.ledger).enabled = false;
    assert_eq!(series(&described), ["stelia_ledger_kept 0"]);
}

#[test]
fn what_the_cluster_is_told_is_measured_only_where_it_is_told() {
    let published = |described: &Description| {
        let text = openmetrics(all(described, &sampled())).unwrap();
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("stelia_published "));
        lines.next().map(str::to_owned)
    };
    let mut described = described();
    assert_eq!(published(&described).as_deref(), Some("1"));
    Arc::make_mut(&mut described.node.publishing).problem = Some("no space left".to_owned());
    assert_eq!(published(&described).as_deref(), Some("0"));
    Arc::make_mut(&mut described.node.publishing).profile = None;
    assert_eq!(published(&described), None);
}

#[test]
fn without_a_daemon_only_that_is_told() {
    let text = openmetrics(vec![up(false)]).unwrap();
    assert_eq!(check(&text).len(), 1);
    assert!(text.contains("\nstelia_up 0\n"), "{text}");
}

#[test]
fn the_file_is_replaced_readable_for_all_and_alone() {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steliad.prom");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    replace(&path, "new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let absent = folder.path().join("absent/x.prom");
    assert!(replace(&absent, "").is_err());
}
