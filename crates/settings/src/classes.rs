//! `[cache-class.NAME]`: how much of the L3 caches and of the memory bandwidth the VMs of a class may use.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stelia_cpus::text::excerpt;
use toml::{Spanned, Value};

use crate::SettingsError;
use crate::adopt::is_name;
use crate::file::{FileEntry, line_of, list};
use crate::settings::number;

/// Limit of the classes of all files. Hardware has about 16; a site's files may be for several kinds of hosts.
const MAX_CLASSES: usize = 64;

/// What a cache class allows (kernel: `Documentation/filesystems/resctrl.rst`). It limits the VMs of the class, and reserves
/// nothing for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheLimits {
    /// How many ways of each L3 cache; `None`: as many as resctrl's default group.
    pub l3_ways: Option<u32>,
    /// Per cent of memory bandwidth; `None`: as much as resctrl's default group.
    pub memory_bandwidth: Option<u32>,
}

/// A key of a `[cache-class.NAME]` table: a number from 1.
pub(crate) struct ClassKey {
    pub(crate) name: &'static str,
    max: u64,
    field: fn(&mut CacheLimits) -> &mut Option<u32>,
}

pub(crate) const CLASS_KEYS: [ClassKey; 2] = [
    ClassKey {
        name: "l3-ways",
        max: 64,
        field: |limits| &mut limits.l3_ways,
    },
    ClassKey {
        name: "memory-bandwidth",
        max: 100,
        field: |limits| &mut limits.memory_bandwidth,
    },
];

/// One table as a file has it: not checked yet, because a later file may replace it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw {
    keys: BTreeMap<&'static str, FileEntry>,
    pub(crate) path: PathBuf,
    line: usize,
}

#[derive(Deserialize)]
struct Tables {
    #[serde(rename = "cache-class")]
    classes: BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Value>>,
}

/// The classes in a file's text, whose key `cache-class` is known to be there, in this line.
///
/// # Errors
/// They are not tables, a name is not one, or a key is unknown.
pub(crate) fn tables(text: &str, path: &Path, line: usize) -> Result<BTreeMap<String, Raw>, SettingsError> {
    let refused = |line, why: &str| SettingsError::Rule {
        path: path.to_owned(),
        line,
        why: why.into(),
    };
    let expected = "cache-class: expected tables, each of which begins with [cache-class.NAME]";
    let Tables { classes } = toml::from_str(text).map_err(|_| refused(line, expected))?;
    let mut found = BTreeMap::new();
    for (name, table) in classes {
        let line = line_of(text, name.span().start);
        if !is_name(name.get_ref()) {
            return Err(refused(
                line,
                "the name of a cache class is 1 to 64 letters, digits and - . _",
            ));
        }
        let mut keys = BTreeMap::new();
        for (key, value) in table {
            let line = line_of(text, key.span().start);
            let Some(known) = CLASS_KEYS.iter().find(|known| known.name == key.get_ref()) else {
                let (path, key) = (path.to_owned(), excerpt::excerpt(key.get_ref()));
                return Err(SettingsError::UnknownOfClass { path, line, key });
            };
            let path = path.to_owned();
            keys.insert(known.name, FileEntry { value, path, line });
        }
        let path = path.to_owned();
        found.insert(name.into_inner(), Raw { keys, path, line });
    }
    Ok(found)
}

/// The class of each name.
///
/// # Errors
/// The first value that is missing or not allowed.
pub(crate) fn check(classes: &BTreeMap<String, Raw>) -> Result<BTreeMap<String, CacheLimits>, SettingsError> {
    let mut checked = BTreeMap::new();
    for (name, raw) in classes {
        let refused = |why| SettingsError::Rule {
            path: raw.path.clone(),
            line: raw.line,
            why,
        };
        let mut limits = CacheLimits::default();
        for key in &CLASS_KEYS {
            let Some(entry) = raw.keys.get(key.name) else { continue };
            let value = number(&entry.value, 1..=key.max).and_then(|value| u32::try_from(value).ok());
            let value = value.ok_or_else(|| entry.refused(key.name, format!("1 to {}", key.max)))?;
            *(key.field)(&mut limits) = Some(value);
        }
        if raw.keys.is_empty() {
            let keys = list(CLASS_KEYS.iter().map(|key| key.name), "or");
            return Err(refused(format!("the cache class {name:?} needs {keys}")));
        }
        if checked.len() == MAX_CLASSES {
            return Err(refused(format!("more than {MAX_CLASSES} cache classes")));
        }
        checked.insert(name.clone(), limits);
    }
    Ok(checked)
}

/// As a file has it, with its origin behind it.
pub(crate) fn print(text: &mut String, name: &str, limits: &CacheLimits, origin: &Path) {
    // A dot would begin a table within the table.
    let header = if name.contains('.') {
        format!("[cache-class.\"{name}\"]")
    } else {
        format!("[cache-class.{name}]")
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "\n{header:<40} # {}", origin.display());
    let mut limits = limits.clone();
    for key in &CLASS_KEYS {
        if let Some(value) = (key.field)(&mut limits) {
            let _ = writeln!(text, "{} = {value}", key.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fragment, Loaded};

    fn loaded(files: &[&str]) -> Result<Loaded, String> {
        let mut merged = Fragment::default();
        for (index, text) in files.iter().enumerate() {
            let path = format!("{index}.toml");
            let fragment = Fragment::parse(text, Path::new(&path)).map_err(|error| error.to_string())?;
            merged = merged.merge(fragment);
        }
        merged.check().map_err(|error| error.to_string())
    }

    #[test]
    fn classes_of_all_files_hold_and_a_later_one_replaces_one_of_its_name() {
        let first = "cache-monitoring = true\n[cache-class.gold]\nl3-ways = 4\nmemory-bandwidth = 50\n[cache-class.\"a.b\"]\nl3-ways = 1";
        let loaded = loaded(&[first, "[cache-class.gold]\nl3-ways = 6"]).unwrap();
        let classes = &loaded.settings.quiet.cache_classes;
        assert_eq!(classes.keys().collect::<Vec<_>>(), ["a.b", "gold"]);
        assert_eq!(
            (classes["gold"].l3_ways, classes["gold"].memory_bandwidth),
            (Some(6), None)
        );
        assert!(loaded.class_origins["gold"].ends_with("1.toml"));
        let printed = loaded.print();
        assert!(
            printed.contains("\n[cache-class.\"a.b\"]") && printed.contains("# 0.toml"),
            "{printed}"
        );
        let again = Fragment::parse(&printed, Path::new("printed"))
            .unwrap()
            .check()
            .unwrap();
        assert_eq!(again.settings, loaded.settings);
        let json = serde_json::to_value(&classes["gold"]).unwrap();
        assert_eq!(json["l3-ways"], 6);
    }

    #[test]
    fn what_is_wrong_with_a_class_is_said_with_its_line() {
        for (text, says) in [
            ("\ncache-class = 3", "0.toml: line 2: cache-class: expected tables"),
            ("[cache-class]\nl3-ways = 3", "line 1: cache-class: expected tables"),
            ("[[cache-class]]\nl3-ways = 3", "line 1: cache-class: expected tables"),
            (
                "\n[cache-class.gold]",
                "line 2: the cache class \"gold\" needs l3-ways or memory-bandwidth",
            ),
            (
                "\n[cache-class.\"../x\"]\nl3-ways = 3",
                "line 2: the name of a cache class is 1 to 64 letters",
            ),
            (
                "[cache-class.gold]\nways = 3",
                "line 2: \"ways\" is not a key of [cache-class.NAME]; did you mean \"l3-ways\"?",
            ),
            (
                "[cache-class.gold]\nl3-ways = 0",
                "line 2: l3-ways = 0: expected 1 to 64",
            ),
            (
                "[cache-class.gold]\nl3-ways = 65",
                "line 2: l3-ways = 65: expected 1 to 64",
            ),
            (
                "[cache-class.gold]\nmemory-bandwidth = \"50\"",
                "line 2: memory-bandwidth = \"50\": expected 1 to 100",
            ),
        ] {
            let error = loaded(&[text]).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
        let many: String = (0..65)
            .map(|index| format!("[cache-class.a{index}]\nl3-ways = 1\n"))
            .collect();
        assert!(loaded(&[&many]).unwrap_err().contains("more than 64 cache classes"));
    }
}
