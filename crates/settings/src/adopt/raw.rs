//! Rules as files have them: not checked yet, because a later file may replace one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stelia_cpus::text::excerpt;
use toml::{Spanned, Value};

use super::keys::{self, RULE_KEYS, is_name};
use super::{AdoptKind, AdoptRule, ReadyMade};
use crate::SettingsError;
use crate::file::{FileEntry, line_of, list};

/// Limit of the rules in one file.
const MAX_RULES: usize = 64;
/// The key that asks for a ready-made rule.
pub(crate) const USE: &str = "use";

/// One `[[adopt]]` table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Raw {
    /// By its key `name`, else by `use`.
    pub(crate) name: String,
    ready_made: Option<ReadyMade>,
    keys: BTreeMap<&'static str, FileEntry>,
    pub(crate) path: PathBuf,
    line: usize,
}

#[derive(Deserialize)]
struct Tables {
    adopt: Vec<Spanned<BTreeMap<Spanned<String>, Value>>>,
}

/// The rules in a file's text, whose key `adopt` is known to be there, in this line.
///
/// # Errors
/// They are not tables, a key is unknown, or a name is missing, not one or there twice.
pub(crate) fn tables(text: &str, path: &Path, line: usize) -> Result<Vec<Raw>, SettingsError> {
    let refused = |line, why: String| SettingsError::Rule {
        path: path.to_owned(),
        line,
        why,
    };
    let expected = "adopt: expected tables, each of which begins with [[adopt]]";
    let Tables { adopt } = toml::from_str(text).map_err(|_| refused(line, expected.into()))?;
    let mut rules: Vec<Raw> = Vec::new();
    for table in adopt {
        let line = line_of(text, table.span().start);
        let rule = one(text, path, table.into_inner(), line)?;
        if rules.iter().any(|other| other.name == rule.name) {
            let why = format!(
                "two rules of this file have the name {:?}: give one of them another name",
                rule.name
            );
            return Err(refused(line, why));
        }
        if rules.len() == MAX_RULES {
            return Err(refused(line, format!("more than {MAX_RULES} rules")));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn one(text: &str, path: &Path, table: BTreeMap<Spanned<String>, Value>, line: usize) -> Result<Raw, SettingsError> {
    let mut keys: BTreeMap<&'static str, FileEntry> = BTreeMap::new();
    for (name, value) in table {
        let at = line_of(text, name.span().start);
        let known = RULE_KEYS.iter().map(|key| key.name).chain([USE]);
        let Some(key) = known.into_iter().find(|known| known == name.get_ref()) else {
            return Err(SettingsError::UnknownOfRule {
                path: path.to_owned(),
                line: at,
                key: excerpt::excerpt(name.get_ref()),
            });
        };
        let path = path.to_owned();
        keys.insert(key, FileEntry { value, path, line: at });
    }
    let ready_made = match keys.remove(USE) {
        None => None,
        Some(entry) => {
            let found = entry.value.as_str().and_then(ReadyMade::parse);
            let names = ReadyMade::ALL.map(ReadyMade::name);
            Some(found.ok_or_else(|| entry.refused(USE, list(names.into_iter(), "or")))?)
        }
    };
    let name = match keys.get("name") {
        Some(entry) => entry.value.as_str().filter(|name| is_name(name)).map(str::to_owned),
        None => ready_made.map(|which| which.name().to_owned()),
    };
    let name = name.ok_or_else(|| SettingsError::Rule {
        path: path.to_owned(),
        line,
        why: "a rule of [[adopt]] needs use or name, a name being 1 to 64 letters, digits and - . _".into(),
    })?;
    Ok(Raw {
        name,
        ready_made,
        keys,
        path: path.to_owned(),
        line,
    })
}

/// A later file's rule replaces one of the same name; others are added.
pub(crate) fn merged(mut rules: Vec<Raw>, over: Vec<Raw>) -> Vec<Raw> {
    for rule in over {
        match rules.iter_mut().find(|other| other.name == rule.name) {
            Some(other) => *other = rule,
            None => rules.push(rule),
        }
    }
    rules
}

impl Raw {
    /// # Errors
    /// A value that is missing or not allowed, or a key without effect on such a rule.
    pub(crate) fn check(&self) -> Result<AdoptRule, SettingsError> {
        let value = |key: &str| {
            let given = self.keys.get(key).map(|entry| entry.value.clone());
            let ready_made = || self.ready_made.and_then(|which| which.value(key));
            given.or_else(ready_made).or_else(|| keys::default(key))
        };
        let rule = keys::rule(&value).map_err(|key| match self.keys.get(key.name) {
            Some(entry) => entry.refused(key.name, list(key.allowed.iter().copied(), "or")),
            None => SettingsError::Rule {
                path: self.path.clone(),
                line: self.line,
                why: format!(
                    "the rule {:?} needs {}, or use with a ready-made rule",
                    self.name, key.name
                ),
            },
        })?;
        match self.without_effect(&rule) {
            Some(refusal) => Err(refusal),
            None => Ok(rule),
        }
    }

    /// The refusal of the first key that says what will not happen. Were it ignored, the administrator would take it to be in force.
    fn without_effect(&self, rule: &AdoptRule) -> Option<SettingsError> {
        if let Some(which) = self
            .ready_made
            .filter(|which| rule.kind == AdoptKind::Container && !which.names_containers())
        {
            return Some(SettingsError::Rule {
                path: self.path.clone(),
                line: self.line,
                why: format!(
                    "the rule {:?} has use = {:?}, which has no effect with kind = \"container\": it says how a VM is found, not \
                     which containers are adopted",
                    self.name,
                    which.name()
                ),
            });
        }
        let mut given = RULE_KEYS.iter().filter_map(|key| Some((key, self.keys.get(key.name)?)));
        given.find_map(|(key, entry)| {
            let why = keys::no_effect(key.name, rule.kind, rule.isolation)?;
            Some(SettingsError::Rule {
                path: entry.path.clone(),
                line: entry.line,
                why: format!(
                    "the rule {:?} has {}, which has no effect with {why}",
                    self.name, key.name
                ),
            })
        })
    }
}
