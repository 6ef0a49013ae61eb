//! JSON that a program prints, compared with the page that documents it: each command is a section (`## plan`) with a table of
//! members, types and meanings, as in `docs/json.md`. A member without a type is a string.
#![allow(clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use serde_json::Value;

type Members = BTreeMap<String, Member>;

/// The members of each command that a page documents.
#[derive(Debug)]
pub struct Documented(BTreeMap<String, Members>);

impl Documented {
    /// Reads the page; a table that cannot be understood is a panic.
    pub fn of(page: &str) -> Self {
        Self(sections(page))
    }

    /// What of a value is not as the section `command` has it.
    pub fn wrong(&self, command: &str, value: &Value) -> Vec<String> {
        let Self(commands) = self;
        let members = commands.get(command);
        let members = members.unwrap_or_else(|| panic!("{command} is not documented"));
        let mut wrong = Vec::new();
        compare(value, "", members, &mut wrong);
        wrong
    }
}

/// A member's types, and whether it may be missing.
#[derive(Debug, Clone)]
struct Member {
    types: Vec<String>,
    optional: bool,
}

/// The members of each command, by the path of each.
fn sections(page: &str) -> BTreeMap<String, Members> {
    let mut commands: BTreeMap<String, Members> = BTreeMap::new();
    let mut likes: Vec<Like> = Vec::new();
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
                let types = cells.get(1).unwrap_or(&"string");
                let types = types.split(" or ").map(str::to_owned).collect();
                let optional = cells.get(2).is_some_and(|meaning| meaning.starts_with("optional"));
                likes.extend(cells.get(2).and_then(|meaning| Like::of(name, &path, meaning)));
                assert!(
                    members.insert(path, Member { types, optional }).is_none(),
                    "{name}: {line}"
                );
            }
        }
    }
    likes.iter().for_each(|like| like.add(&mut commands));
    commands.values_mut().for_each(add_parents);
    commands
}

/// Lists and objects that the page names only by what is in them: `a[]` is in the list `a`, `a.b` in the object `a`.
fn add_parents(members: &mut Members) {
    let known: Vec<String> = members.keys().cloned().collect();
    for path in known {
        for (at, next) in path.char_indices().filter(|(_, next)| matches!(next, '[' | '.')) {
            let parent = &path[..at];
            let kind = if next == '[' { "list" } else { "object" };
            // An element of a list has no row of its own.
            if parent.is_empty() || next == '.' && parent.ends_with("[]") || members.contains_key(parent) {
                continue;
            }
            let implied = Member {
                types: vec![kind.to_owned()],
                optional: false,
            };
            members.insert(parent.to_owned(), implied);
        }
    }
}

/// A list or an object that is documented as "like `tasks`", which is beside it, or "like `reasons` of `why`": it has the same members.
struct Like {
    command: String,
    path: String,
    /// The other one, and its command.
    other: String,
    of: String,
}

impl Like {
    fn of(command: &str, path: &str, meaning: &str) -> Option<Self> {
        let (_, rest) = meaning.split_once("like `")?;
        let (other, rest) = rest.split_once('`')?;
        let of = rest
            .strip_prefix(" of `")
            .and_then(|rest| Some(rest.split_once('`')?.0));
        let beside = path
            .rsplit_once('.')
            .map_or(String::new(), |(parent, _)| format!("{parent}."));
        Some(Self {
            command: command.to_owned(),
            path: path.to_owned(),
            other: of.map_or_else(|| format!("{beside}{other}"), |_| other.to_owned()),
            of: of.unwrap_or(command).to_owned(),
        })
    }

    fn add(&self, commands: &mut BTreeMap<String, Members>) {
        let named = [self.of.clone(), format!("JSON of {}", self.of)];
        let members = named.iter().find_map(|name| commands.get(name));
        let members = members.unwrap_or_else(|| panic!("{}: {} is not documented", self.command, self.of));
        let below = |known: &String| {
            let rest = known.strip_prefix(&self.other)?;
            rest.starts_with(['.', '[']).then(|| format!("{}{rest}", self.path))
        };
        let same: Vec<(String, Member)> = members
            .iter()
            .filter_map(|(known, member)| Some((below(known)?, member.clone())))
            .collect();
        assert!(!same.is_empty(), "{}: {} has no members", self.command, self.other);
        commands.entry(self.command.clone()).or_default().extend(same);
    }
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
fn has_members(path: &str, members: &Members) -> bool {
    let mut names = members.keys();
    names.any(|known| known.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// What is wrong with a value at `path`.
fn compare(value: &Value, path: &str, members: &Members, wrong: &mut Vec<String>) {
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

#[test]
fn a_member_that_is_missing_or_new_or_of_another_type_is_found() {
    let page = "# JSON\n\n## doctor\n\n| member | type | meaning |\n|---|---|---|\n| `[].check` | string | a |\n\
                | `[].verdict` | string | b |\n| `[].cure` | string or null | optional: c |\n";
    let documented = Documented::of(page);
    let found = |text: &str| {
        let value = serde_json::from_str(text).expect("JSON");
        documented.wrong("doctor", &value).join("; ")
    };
    assert_eq!(found(r#"[{"check":"a","verdict":"ok","cure":null}]"#), "");
    assert_eq!(
        found(r#"[{"check":1,"more":""}]"#),
        "[].check is 1, not string; [].more is not documented: \"\"; [].verdict is missing"
    );
}

#[test]
fn a_list_that_is_like_another_has_its_members() {
    let page = "# JSON\n\n## JSON of why\n\n| `reasons` | list | first |\n| `reasons[].reason` | string |\n\
                | `more` | list | fewer, like `reasons` |\n\n## plan\n\n| `stops` | list | like `reasons` of `why` |\n";
    let documented = Documented::of(page);
    let found = |command: &str, text: &str| {
        let value = serde_json::from_str(text).expect("JSON");
        documented.wrong(command, &value).join("; ")
    };
    let good = r#"{"reasons":[{"reason":"a"}],"more":[{"reason":"b"}]}"#;
    assert_eq!(found("JSON of why", good), "");
    assert_eq!(found("plan", r#"{"stops":[{"reason":"a"}]}"#), "");
    assert_eq!(
        found("plan", r#"{"stops":[{"reason":1}]}"#),
        "stops[].reason is 1, not string"
    );
    assert_eq!(found("plan", r#"{"stops":[{}]}"#), "stops[].reason is missing");
}

#[test]
fn a_list_or_an_object_is_known_by_its_members() {
    let page = "# JSON\n\n## status\n\n| `cpus.shared` |\n| `states[][]` | number |\n| `vms[].ids.*` | number |\n\
                | `maybe` | object or null |\n| `maybe.name` | string |\n";
    let documented = Documented::of(page);
    let found = |text: &str| {
        let value = serde_json::from_str(text).expect("JSON");
        documented.wrong("status", &value).join("; ")
    };
    assert_eq!(
        found(r#"{"cpus":{"shared":"0"},"states":[[1]],"vms":[{"ids":{"a":1}}],"maybe":null}"#),
        ""
    );
    assert_eq!(
        found(r#"{"cpus":null,"states":[1],"vms":{}}"#),
        "cpus is null, not object; states[] is 1, not list; vms is {}, not list; maybe is missing"
    );
    assert_eq!(
        found(r#"{"states":[],"vms":[{}],"maybe":{}}"#),
        "maybe.name is missing; vms[].ids is missing; cpus is missing"
    );
}
