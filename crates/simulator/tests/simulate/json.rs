//! What the commands print as JSON has the members of `docs/json.md`, all of them and no others.

use std::collections::BTreeMap;

use serde_json::Value;

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");

/// A member's types, and whether it may be missing.
struct Member {
    types: Vec<String>,
    optional: bool,
}

/// The members of each command, by the path of each.
fn documented() -> BTreeMap<String, BTreeMap<String, Member>> {
    let page = fs::read_to_string(PAGE).expect(PAGE);
    let mut commands: BTreeMap<String, BTreeMap<String, Member>> = BTreeMap::new();
    for section in page.split("\n## ").skip(1) {
        let (name, text) = section.split_once('\n').expect("a heading");
        let members = commands.entry(name.to_owned()).or_default();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let path = cells[0].trim_matches('`');
            let paths: Vec<String> = match path.strip_suffix("pod_*") {
                Some(before) => ["pod_uid", "pod_namespace", "pod_name"]
                    .map(|name| format!("{before}{name}"))
                    .into(),
                None => vec![path.to_owned()],
            };
            for path in paths {
                let types = cells[1].split(" or ").map(str::to_owned).collect();
                let optional = cells.get(2).is_some_and(|meaning| meaning.starts_with("optional"));
                assert!(
                    members.insert(path, Member { types, optional }).is_none(),
                    "{name}: {line}"
                );
            }
        }
    }
    commands
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Whether the page has members of the objects at `path`.
fn has_members(path: &str, members: &BTreeMap<String, Member>) -> bool {
    let mut names = members.keys();
    names.any(|known| known.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// What is wrong with a value at `path`.
fn compare(value: &Value, path: &str, members: &BTreeMap<String, Member>, wrong: &mut Vec<String>) {
    if let Some(member) = members.get(path) {
        if member.types == ["any"] {
            return;
        }
        if !member.types.iter().any(|one| one == kind(value)) {
            wrong.push(format!("{path} is {value}, not {}", member.types.join(" or ")));
        }
    } else if !(path.is_empty() || path.ends_with("[]") && value.is_object() && has_members(path, members)) {
        wrong.push(format!("{path} is not documented: {value}"));
        return;
    }
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| compare(item, &format!("{path}[]"), members, wrong)),
        Value::Object(object) if members.contains_key(&below("*")) => object
            .values()
            .for_each(|value| compare(value, &below("*"), members, wrong)),
        Value::Object(object) => {
            for (name, value) in object {
                compare(value, &below(name), members, wrong);
            }
            for (known, member) in members {
                let name = match path {
                    "" => Some(known.as_str()),
                    path => known.strip_prefix(path).and_then(|rest| rest.strip_prefix('.')),
                };
                let own = name.filter(|name| !name.is_empty() && !name.contains(['.', '[', '*']));
                if own.is_some_and(|name| !member.optional && !object.contains_key(name)) {
                    wrong.push(format!("{known} is missing"));
                }
            }
        }
        _ => {}
    }
}

/// The files of a VM that did not register, without kubelet's.
fn add_vm(root: &Path) {
    let scope = "kubepods.slice/kubepods-podb9e40000_21de_472d_817c_fa9d4306cb7d.slice/cri-containerd-a1.scope";
    let task = |id: i32, name: &str| {
        let folders = [
            format!("proc/{id}"),
            format!("proc/{id}/task/{id}"),
            format!("proc/7/task/{id}"),
        ];
        let stat = format!("{id} ({name}) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 9 0\n");
        let status = format!("Tgid:\t7\nNSpid:\t{id}\t1\nCpus_allowed_list:\t6\n");
        folders.map(|folder| {
            [
                (format!("{folder}/comm"), format!("{name}\n")),
                (format!("{folder}/stat"), stat.clone()),
                (format!("{folder}/status"), status.clone()),
                (format!("{folder}/cgroup"), format!("0::/{scope}\n")),
                (format!("{folder}/cmdline"), "/usr/bin/firecracker\0".to_owned()),
            ]
        })
    };
    let tasks = [task(7, "firecracker"), task(8, "fc_vcpu 0")]
        .into_iter()
        .flatten()
        .flatten();
    let cgroup = [
        ("cgroup.procs", "7\n"),
        ("cgroup.events", "populated 1\n"),
        ("cpuset.cpus", "6\n"),
    ];
    let cgroup = cgroup.map(|(file, text)| (format!("sys/fs/cgroup/{scope}/{file}"), text.to_owned()));
    for (path, text) in tasks.chain(cgroup) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("write");
    }
}

#[test]
fn every_member_that_is_printed_is_documented() {
    let simulation = Simulation::start(&scenario("").replacen("vcpus = 2", "vcpus = 2\nname = \"team-a/web\"", 1));
    let files = simulation.files();
    add_vm(files.path());
    let root = format!("--root={}", files.path().display());
    let node = simulation.sockets.join("node.json");
    fs::write(
        &node,
        simulation.ctl(&["node-topology", "--node-name", "w", "-o", "json"]),
    )
    .expect("write");
    let node = node.to_str().expect("UTF-8");
    let kubelet = simulation.sockets.join("kubelet");
    let kubelet = kubelet.to_str().expect("UTF-8");
    let documented = documented();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, words) in [
        ("list", &["list"][..]),
        ("show", &[&root, "show", "web"]),
        ("status", &["status"]),
        ("verify", &["verify"]),
        ("quiet", &[&root, "quiet"]),
        ("reconcile", &["reconcile"]),
        ("reconcile", &["reconcile", "--dry-run"]),
        ("top", &[&root, "top", "-n", "1", "-d", "0.2"]),
        ("explain", &["explain"]),
        ("explain VM", &["explain", "web"]),
        ("explain CPU", &["explain", "2"]),
        ("kubelet-state", &["kubelet-state", kubelet]),
        ("kubelet-state", &["kubelet-state", "/nonexistent"]),
        (
            "plan",
            &[
                "plan",
                "-n",
                node,
                "-c",
                "cpus=2,memory=1Gi",
                "--what-if",
                "--until-full",
            ],
        ),
        ("plan", &["plan", "-n", node, "-c", "cpus=64,memory=1Gi"]),
        ("metrics", &["metrics"]),
        ("doctor", &["doctor"]),
        ("adopt", &[&root, "adopt", "--dry-run"]),
        ("reload", &["reload"]),
        ("deregister", &["deregister", WAITING]),
    ] {
        let out = simulation.run(
            env!("CARGO_BIN_EXE_steliactl-simulated"),
            &[words, &["--json=short"]].concat(),
        );
        let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|cause| panic!("{words:?}: {cause}: {out:?}"));
        let members = documented
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not documented"));
        let mut here = Vec::new();
        compare(&value, "", members, &mut here);
        wrong.extend(here.into_iter().map(|what| format!("{name}: {what}")));
        seen += 1;
    }
    assert!(seen >= 20);
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_member_that_is_missing_or_new_or_of_another_type_is_found() {
    let documented = documented();
    let found = |text: &str| {
        let mut wrong = Vec::new();
        let value = serde_json::from_str(text).expect("JSON");
        compare(&value, "", &documented["doctor"], &mut wrong);
        wrong.join("; ")
    };
    assert_eq!(found(r#"[{"check":"a","verdict":"ok","found":"","cure":""}]"#), "");
    assert_eq!(
        found(r#"[{"check":1,"verdict":"ok","found":"","more":""}]"#),
        "[].check is 1, not string; [].more is not documented: \"\"; [].cure is missing"
    );
}
