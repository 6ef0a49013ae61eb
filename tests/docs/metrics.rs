//! What is written about metrics, held to what `steliactl export metrics` prints: the page, the alerts, the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use stelia_api::ReasonCode;

use crate::{hold, read};

fn text(path: &str) -> String {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// A metric as it is printed.
struct Metric {
    name: String,
    kind: String,
    help: String,
    labels: Vec<String>,
}

/// All metrics: a test of steliactl holds this snapshot, of a node of which everything is known.
static ALL: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let folder = "crates/steliactl/src/export/metrics/snapshots";
    let printed = text(&format!(
        "{folder}/steliactl__export__metrics__tests__the_text_of_a_node.snap"
    ));
    let metrics: Vec<Metric> = printed.split("# HELP ").skip(1).map(Metric::read).collect();
    assert!(metrics.len() > 40);
    metrics
});

impl Metric {
    fn read(family: &str) -> Self {
        let mut lines = family.lines().filter(|line| !line.starts_with("# UNIT "));
        let (name, help) = lines.next().and_then(|line| line.split_once(' ')).expect("a help");
        let kind = lines.next().and_then(|line| line.rsplit(' ').next()).expect("a type");
        let labels = lines
            .next()
            .and_then(|sample| sample.split_once('{'))
            .map_or("", |(_, labels)| labels);
        let mut labels: Vec<&str> = labels.split("=\"").collect();
        labels.pop();
        let labels = labels.iter().filter_map(|part| part.rsplit(',').next());
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            help: help.to_owned(),
            labels: labels.filter(|label| *label != "le").map(str::to_owned).collect(),
        }
    }

    fn samples(&self) -> Vec<String> {
        let endings: &[&str] = match self.kind.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        endings.iter().map(|ending| format!("{}{ending}", self.name)).collect()
    }
}

/// Every sample's name, with the labels it may be selected by: its own, and what Prometheus adds.
fn samples() -> BTreeMap<String, BTreeSet<&'static str>> {
    let all = ALL.iter().flat_map(|definition| {
        let labels: BTreeSet<&str> = definition
            .labels
            .iter()
            .map(String::as_str)
            .chain(["instance"])
            .collect();
        let named = definition.samples().into_iter();
        named.map(move |name| {
            let bucket = name.ends_with("_bucket").then_some("le");
            (name, labels.iter().copied().chain(bucket).collect())
        })
    });
    let joined = ["node", "created_by_kind", "created_by_name"];
    let info = ALL.iter().find(|definition| definition.name == "stelia_instance_info");
    let info = info
        .expect("defined")
        .labels
        .iter()
        .map(String::as_str)
        .chain(["instance"]);
    let others = [
        // What the rules record.
        (RECORDED, info.chain(joined).collect()),
        // node-exporter's own, and kube-state-metrics'.
        ("node_textfile_mtime_seconds", BTreeSet::from(["file", "instance"])),
        ("kube_node_status_allocatable", BTreeSet::from(["resource", "node"])),
        ("kube_node_info", BTreeSet::from(["node"])),
        ("kube_deployment_spec_replicas", BTreeSet::from(["deployment"])),
        (
            "kube_daemonset_status_desired_number_scheduled",
            BTreeSet::from(["daemonset"]),
        ),
        (
            "kube_pod_info",
            ["uid", "namespace", "pod"].into_iter().chain(joined).collect(),
        ),
    ];
    let cluster = CLUSTER.iter().map(|(name, labels, ..)| {
        let labels = labels.iter().copied().chain(["instance"]);
        ((*name).to_owned(), labels.collect())
    });
    all.chain(others.map(|(name, labels)| (name.to_owned(), labels)))
        .chain(cluster)
        .collect()
}

const PUBLISH: &str = "cluster/publish/src/metrics.rs";
const PLACEMENT: &str = "cluster/placement/src/extender/metrics.rs";
/// Samples of the cluster's programs that alerts ask for, with their labels and, in those programs' sources, the text that defines each.
const CLUSTER: [(&str, &[&str], &str, &str); 5] = [
    ("stelia_publish_settled", &[], PUBLISH, "\"settled\""),
    ("stelia_publish_problem", &["part"], PUBLISH, "\"problem\""),
    ("stelia_placement_ready", &[], PLACEMENT, "\"ready\""),
    ("stelia_placement_refused_total", &[], PLACEMENT, "\"refused\""),
    ("stelia_placement_silent_nodes", &[], PLACEMENT, "\"silent_nodes\""),
];

/// Each instance with what is known of its pod.
const RECORDED: &str = "stelia:instance:pod_info";

/// The metrics of a PromQL expression, each with the labels that its selector names.
fn selectors(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut found = Vec::new();
    let starts = ["stelia_", "stelia:", "node_textfile_", "kube_"];
    for (at, _) in starts.iter().flat_map(|start| expression.match_indices(start)) {
        let rest = &expression[at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let labels = inside.map_or("", |(inside, _)| inside).split(',');
        let labels = labels.filter_map(|label| label.split(['=', '!']).next());
        let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

/// Whether every metric and label of an expression is exported, and its brackets close. Answers the metrics.
fn check(expression: &str) -> BTreeSet<String> {
    let exported = samples();
    let mut open = Vec::new();
    for c in expression.chars() {
        match c {
            '(' | '{' | '[' => open.push(c),
            ')' => assert_eq!(open.pop(), Some('('), "{expression}"),
            '}' => assert_eq!(open.pop(), Some('{'), "{expression}"),
            ']' => assert_eq!(open.pop(), Some('['), "{expression}"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{expression}");
    let found = selectors(expression);
    assert!(!found.is_empty(), "{expression} asks for nothing");
    for (name, labels) in &found {
        let known = exported.get(name).unwrap_or_else(|| panic!("{name} of {expression}"));
        for label in labels {
            assert!(known.contains(label.as_str()), "{label} of {expression}");
        }
    }
    found.into_iter().map(|(name, _)| name).collect()
}

/// The metric a sample belongs to.
fn family(sample: &str) -> Option<&'static str> {
    let of = ALL
        .iter()
        .find(|definition| definition.samples().iter().any(|name| name == sample));
    of.map(|definition| definition.name.as_str())
}

#[test]
fn the_page_has_every_metric_as_it_is_printed() {
    let rows = ALL.iter().map(|metric| {
        let ending = if metric.kind == "counter" { "_total" } else { "" };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let Metric { name, kind, help, .. } = metric;
        format!("| `{name}{ending}` | {kind} | {} | {help} |", labels.join(", "))
    });
    let rows: Vec<String> = rows.collect();
    let page = text("docs/metrics.md");
    let (before, table) = page.split_at(page.find("| `stelia_").expect("the table's rows"));
    let (_, after) = table.split_once("\n\n").expect("the table's end");
    let made = format!("{before}{}\n\n{after}", rows.join("\n"));
    hold(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md"), &made);
}

/// The manifest of the same rules for the Prometheus operator: the rules file, its groups below `spec`.
fn prometheus_rule(rules: &str) -> String {
    let (_, groups) = rules.split_once("\ngroups:\n").expect("groups");
    let indented = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("  {line}\n"),
    };
    let groups: String = groups.lines().map(indented).collect();
    format!(
        "# steliad.rules.yml as an object of the Prometheus operator; a test writes it (STELIA_WRITE_DOCS=1 cargo test --test docs).\n\
         # metadata.labels must be what your Prometheus selects (ruleSelector).\n\
         apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: steliad\n  namespace: monitoring\n\
         spec:\n  groups:\n{groups}"
    )
}

#[test]
fn the_prometheus_operators_rules_are_the_rules_file() {
    let rules = text("packaging/prometheus/steliad.rules.yml");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus/prometheusrule.yaml");
    let expected = prometheus_rule(&rules);
    hold(&path, &expected);
    // As YAML, not as text: the same groups.
    let [object, rules]: [Value; 2] = [&expected, &rules].map(|yaml| serde_saphyr::from_str(yaml).expect("YAML"));
    assert_eq!(object["kind"], "PrometheusRule");
    assert_eq!(object["spec"]["groups"], rules["groups"]);
}

#[test]
fn what_scrapes_keeps_the_labels_of_a_vm_and_names_the_node() {
    let object = |path: &str| -> Value { serde_saphyr::from_str(&text(path)).expect("YAML") };
    let pods = object("packaging/prometheus/podmonitor.yaml");
    let nodes = object("packaging/prometheus/scrapeconfig.yaml");
    assert_eq!(
        (&pods["kind"], &nodes["kind"]),
        (&"PodMonitor".into(), &"ScrapeConfig".into())
    );
    // A target's own label `container` would hide the VM's.
    assert!(
        ALL.iter()
            .any(|definition| definition.labels.iter().any(|label| label == "container"))
    );
    for endpoint in [&pods["spec"]["podMetricsEndpoints"][0], &nodes["spec"]] {
        assert_eq!(endpoint["honorLabels"], true);
        let relabelings = endpoint["relabelings"].as_array().expect("relabelings");
        let last = relabelings.last().expect("one");
        let source = last["sourceLabels"][0].as_str().expect("a label");
        assert_eq!(
            (&last["targetLabel"], source.ends_with("_node_name")),
            (&"instance".into(), true)
        );
    }
    // The folder that its comment tells node-exporter to read is the one that the unit writes.
    let unit = text("systemd-units/steliad-metrics.service");
    let folder = unit
        .lines()
        .find_map(|line| line.strip_prefix("ConditionPathIsDirectory="));
    let mount = format!("hostPath: {{path: {},", folder.expect("a folder"));
    assert!(text("packaging/prometheus/podmonitor.yaml").contains(&mount), "{mount}");
}

#[test]
fn the_clusters_programs_are_scraped_at_ports_that_their_manifests_open() {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text("packaging/prometheus/podmonitors-cluster.yaml")).expect("YAML");
    let opened = [
        "packaging/cluster/kubernetes/components/metrics/flag.yaml",
        "packaging/cluster/kubernetes/placement/base/deployment.yaml",
    ];
    assert_eq!(documents.len(), opened.len());
    for (monitor, manifest) in documents.iter().zip(opened) {
        assert_eq!(monitor["kind"], "PodMonitor");
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        let port = endpoint["port"].as_str().expect("a port");
        assert!(
            text(manifest).contains(&format!("- name: {port}\n")),
            "{port} of {manifest}"
        );
        assert_eq!(endpoint["relabelings"][0]["targetLabel"], "instance");
        let label = &monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"];
        assert_eq!(label, &monitor["metadata"]["name"]);
    }
    for (name, _, source, definition) in CLUSTER {
        assert!(text(source).contains(definition), "{name} is not in {source}");
    }
}

#[test]
fn every_alert_asks_for_what_is_exported_and_says_what_to_do() {
    let rules: Value = serde_saphyr::from_str(&text("packaging/prometheus/steliad.rules.yml")).expect("YAML");
    let runbook = text("docs/troubleshooting.md");
    let anchors = crate::links::anchors(&runbook);
    let groups = rules["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .collect();
    let mut names = BTreeSet::new();
    let (records, rules): (Vec<&Value>, Vec<&Value>) = rules.iter().partition(|rule| rule["alert"].is_null());
    let recorded: Vec<_> = records.iter().map(|rule| rule["record"].as_str()).collect();
    assert_eq!(recorded, [Some(RECORDED)]);
    check(records[0]["expr"].as_str().expect("an expression"));
    let tested = text("tests/data/alerts.yml");
    for rule in &rules {
        let name = rule["alert"].as_str().expect("a name");
        assert!(name.starts_with("Steliad") && names.insert(name), "{name}");
        let asked = check(rule["expr"].as_str().expect("an expression"));
        // An alert about a VM names it, and is in the rules' own tests.
        if asked
            .iter()
            .any(|name| name.starts_with("stelia_instance_") || name == RECORDED)
        {
            assert!(asked.contains(RECORDED), "{name}: not joined with {RECORDED}");
            let said = rule["annotations"]["summary"].as_str().unwrap_or_default();
            let pod = "pod {{ $labels.namespace }}/{{ $labels.pod }} ({{ $labels.pod_uid }})";
            assert!(said.contains(pod), "{name}: {said}");
            assert!(tested.contains(&format!("alertname: {name}\n")), "{name}");
        }
        assert!(
            ["warning", "critical"]
                .map(Into::into)
                .contains(&rule["labels"]["severity"]),
            "{name}"
        );
        for part in ["summary", "description", "runbook"] {
            let said = rule["annotations"][part].as_str().unwrap_or_default();
            assert!(said.len() > 20, "{name} has no {part}");
            assert_eq!(said.matches("{{").count(), said.matches("}}").count(), "{name}");
        }
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        // The packages' page, or one below the address that Prometheus' external label names.
        let anchor = url.strip_prefix(
            r#"{{ or $externalLabels.stelia_docs "file:///usr/share/doc/steliad" }}/troubleshooting.md#"#,
        );
        let anchor = anchor.unwrap_or_else(|| panic!("{name}: {url}"));
        // Each code has a section.
        let asked: Vec<&str> = match anchor {
            "{{ $labels.code }}" => ReasonCode::NAMES.into_iter().filter(|code| *code != "detail").collect(),
            anchor => vec![anchor],
        };
        for anchor in asked {
            assert!(anchors.contains(anchor), "{name}: no section {anchor}");
        }
        if let Some(after) = rule["for"].as_str() {
            let number = after.strip_suffix('m').map(str::parse::<u8>);
            assert!(matches!(number, Some(Ok(_))), "{name}: {after}");
        }
    }
    for wanted in [
        "Down",
        "MetricsStale",
        "KubeletStateUnusable",
        "InstanceNotIsolated",
        "Drift",
        "Refusals",
        "RunDelay",
        "MetricsMissing",
        "AllMetricsMissing",
        "PublisherMissing",
        "PlacementMissing",
    ] {
        assert!(names.contains(format!("Steliad{wanted}").as_str()), "{wanted}");
    }
}

/// Where promtool is installed: make setup does not bring it.
#[test]
fn the_alerts_of_a_vm_say_what_their_tests_say() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let tests = ["alerts.yml", "alerts-of-days.yml", "alerts-of-removal.yml"].map(|name| data.join(name));
    match Command::new("promtool").args(["test", "rules"]).args(tests).output() {
        Err(missing) if missing.kind() == ErrorKind::NotFound => println!("promtool is not installed"),
        ran => {
            let ran = ran.expect("promtool");
            let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
            assert!(ran.status.success(), "{said}");
        }
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_nothing_else() {
    let dashboard: Value = serde_json::from_str(&text("packaging/grafana/steliad.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut shown = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().expect("id")), "{title}");
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let asked = target["expr"].as_str().expect("an expression");
            let names = check(asked);
            // What is about VMs follows the variables, and is shown by their names.
            if names.iter().any(|name| name.starts_with("stelia_instance_")) {
                assert!(asked.contains(r#"namespace=~"$namespace",pod=~"$pod""#), "{title}");
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                assert!(
                    legend.is_empty() || legend.starts_with("{{namespace}}/{{pod}}"),
                    "{title}"
                );
            }
            assert!(
                !names.contains(RECORDED),
                "{title}: the dashboard works without the rules"
            );
            shown.extend(names);
        }
        let place = |of: &str| panel["gridPos"][of].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{title}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(names, ["datasource", "node", "namespace", "pod"]);
    for variable in &variables[1..] {
        check(variable["definition"].as_str().expect("a query"));
    }
    let shown: BTreeSet<&str> = shown.iter().filter_map(|sample| family(sample)).collect();
    let all: BTreeSet<&str> = ALL.iter().map(|definition| definition.name.as_str()).collect();
    assert_eq!(shown, all);
}
