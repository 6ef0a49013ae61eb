//! What is written about metrics, held to what `steliactl metrics` prints: the page, the alerts, the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use steliactl::metrics::definitions::{ALL, Kind};

use crate::read;

fn text(path: &str) -> String {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// Every sample's name, with the labels it may be selected by: its own, and what Prometheus adds.
fn samples() -> BTreeMap<String, BTreeSet<&'static str>> {
    let all = ALL.iter().flat_map(|definition| {
        let labels: BTreeSet<&str> = definition.labels.iter().copied().chain(["instance"]).collect();
        let named = definition.samples().into_iter();
        named.map(move |name| {
            let bucket = name.ends_with("_bucket").then_some("le");
            (name, labels.iter().copied().chain(bucket).collect())
        })
    });
    // node-exporter's own.
    let others = [(
        "node_textfile_mtime_seconds".to_owned(),
        BTreeSet::from(["file", "instance"]),
    )];
    all.chain(others).collect()
}

/// The metrics of a PromQL expression, each with the labels that its selector names.
fn selectors(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in expression
        .match_indices("stelia_")
        .chain(expression.match_indices("node_textfile_"))
    {
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
    of.map(|definition| definition.name)
}

#[test]
fn the_page_lists_every_metric_as_it_is_printed() {
    let rows: Vec<String> = ALL
        .iter()
        .map(|definition| {
            let ending = if definition.kind == Kind::Counter { "_total" } else { "" };
            let labels: Vec<String> = definition.labels.iter().map(|label| format!("`{label}`")).collect();
            let kind = format!("{:?}", definition.kind).to_lowercase();
            format!(
                "| `{}{ending}` | {kind} | {} | {} |",
                definition.name,
                labels.join(", "),
                definition.help
            )
        })
        .collect();
    let page = text("docs/metrics.md");
    let written: Vec<&str> = page.lines().filter(|line| line.starts_with("| `stelia_")).collect();
    assert_eq!(written, rows, "docs/metrics.md must have:\n{}\n", rows.join("\n"));
}

#[test]
fn every_alert_asks_for_what_is_exported_and_says_what_to_do() {
    let rules: Value = serde_saphyr::from_str(&text("packaging/prometheus/steliad.rules.yml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .collect();
    let mut names = BTreeSet::new();
    for rule in &rules {
        let name = rule["alert"].as_str().expect("a name");
        assert!(name.starts_with("Steliad") && names.insert(name), "{name}");
        check(rule["expr"].as_str().expect("an expression"));
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
    ] {
        assert!(names.contains(format!("Steliad{wanted}").as_str()), "{wanted}");
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
            shown.extend(check(target["expr"].as_str().expect("an expression")));
        }
        let place = |of: &str| panel["gridPos"][of].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{title}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert_eq!(names, ["datasource", "node", "pod"]);
    for variable in &variables[1..] {
        check(variable["definition"].as_str().expect("a query"));
    }
    let shown: BTreeSet<&str> = shown.iter().filter_map(|sample| family(sample)).collect();
    let all: BTreeSet<&str> = ALL.iter().map(|definition| definition.name).collect();
    assert_eq!(shown, all);
}
