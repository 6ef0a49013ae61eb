//! The files: read, merged key by key, checked, printed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use stelia_cpus::text::{excerpt, near};
use toml::{Spanned, Value};

use crate::Settings;
use crate::adopt::{self, RULE_KEYS, effective_keys};
use crate::classes::{self, CLASS_KEYS};
use crate::key::Key;
use crate::settings::KEYS;

/// The key whose value is the rules of adoption.
const ADOPT: &str = "adopt";
/// The key whose value is the cache classes.
const CLASSES: &str = "cache-class";

/// What one file sets, or several files merged. Values are not checked yet: a wrong value that a later file replaces is
/// not an error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fragment {
    keys: BTreeMap<&'static str, FileEntry>,
    rules: Vec<adopt::Raw>,
    classes: BTreeMap<String, classes::Raw>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileEntry {
    pub(crate) value: Value,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

impl FileEntry {
    pub(crate) fn refused(&self, key: &'static str, allowed: String) -> SettingsError {
        SettingsError::Value {
            path: self.path.clone(),
            line: self.line,
            key,
            value: match &self.value {
                Value::String(text) => format!("{:?}", excerpt::excerpt(text)),
                other => excerpt::name(&other.to_string()),
            },
            allowed,
        }
    }
}

/// The settings in force, and where each came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    pub settings: Settings,
    /// The file that set a key last; a key that no file sets is missing.
    pub origins: BTreeMap<&'static str, PathBuf>,
    /// The file of each rule of adoption, in their order.
    pub rule_origins: Vec<PathBuf>,
    /// The file of each cache class.
    pub class_origins: BTreeMap<String, PathBuf>,
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("read {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    /// Not TOML; the cause names line and column.
    #[error("{path}: {cause}")]
    Syntax { path: PathBuf, cause: Box<toml::de::Error> },
    #[error("{path}: line {line}: {key:?} is not a setting; {}", meant(key, KEYS.iter().map(|key| key.name).chain([CLASSES, ADOPT]), "the settings are"))]
    Unknown { path: PathBuf, line: usize, key: String },
    #[error("{path}: line {line}: {key:?} is not a key of [[adopt]]; {}", meant(key, std::iter::once(adopt::USE).chain(RULE_KEYS.iter().map(|key| key.name)), "its keys are"))]
    UnknownOfRule { path: PathBuf, line: usize, key: String },
    #[error("{path}: line {line}: {key:?} is not a key of [cache-class.NAME]; {}", meant(key, CLASS_KEYS.iter().map(|key| key.name), "its keys are"))]
    UnknownOfClass { path: PathBuf, line: usize, key: String },
    /// A rule of adoption, or a cache class, that is incomplete, is there twice or is not a table.
    #[error("{path}: line {line}: {why}")]
    Rule { path: PathBuf, line: usize, why: String },
    #[error("{path}: line {line}: {key} = {value}: expected {allowed}")]
    Value {
        path: PathBuf,
        line: usize,
        key: &'static str,
        value: String,
        allowed: String,
    },
}

impl Fragment {
    /// `path` is what errors call the file.
    ///
    /// # Errors
    /// What no later file can replace: [`SettingsError::Syntax`], an unknown key, a rule or a cache class without a name.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let table: BTreeMap<Spanned<String>, Value> = toml::from_str(text).map_err(|cause| SettingsError::Syntax {
            path: path.to_owned(),
            cause: Box::new(cause),
        })?;
        let (mut entries, mut rules, mut classes) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for (name, value) in table {
            let line = line_of(text, name.span().start);
            if name.get_ref() == ADOPT {
                rules = adopt::tables(text, path, line)?;
                continue;
            }
            if name.get_ref() == CLASSES {
                classes = classes::tables(text, path, line)?;
                continue;
            }
            let path = path.to_owned();
            let Some(key) = KEYS.iter().find(|key| key.name == name.get_ref()) else {
                let key = excerpt::excerpt(name.get_ref());
                return Err(SettingsError::Unknown { path, line, key });
            };
            entries.insert(key.name, FileEntry { value, path, line });
        }
        Ok(Self {
            keys: entries,
            rules,
            classes,
        })
    }

    /// Lay `over` on top of this fragment: its keys win, its rules and classes are added or replace those of the same names.
    #[must_use]
    pub fn merge(mut self, over: Self) -> Self {
        self.keys.extend(over.keys);
        self.rules = adopt::merged(self.rules, over.rules);
        self.classes.extend(over.classes);
        self
    }

    /// Check every value, on top of the defaults.
    ///
    /// # Errors
    /// [`SettingsError::Value`] for the first one, in the order of the keys, that is not allowed.
    pub fn check(self) -> Result<Loaded, SettingsError> {
        let mut loaded = Loaded::default();
        for key in &KEYS {
            let Some(entry) = self.keys.get(key.name) else {
                continue;
            };
            let set = (key.set)(&mut loaded.settings, &entry.value);
            set.ok_or_else(|| entry.refused(key.name, list(key.allowed.iter().copied(), "or")))?;
            loaded.origins.insert(key.name, entry.path.clone());
        }
        loaded.settings.quiet.cache_classes = classes::check(&self.classes)?;
        let origins = self.classes.iter().map(|(name, raw)| (name.clone(), raw.path.clone()));
        loaded.class_origins = origins.collect();
        for rule in &self.rules {
            loaded.settings.policies.adopt.push(rule.check()?);
            loaded.rule_origins.push(rule.path.clone());
        }
        Ok(loaded)
    }
}

impl Loaded {
    /// The whole configuration as a file that would give it, each value with its origin behind it.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for key in &KEYS {
            let origin = self.origins.get(key.name);
            let origin = origin.map_or("default".into(), |path| path.display().to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:<40} # {origin}", key.line(&self.settings));
        }
        for ((name, limits), origin) in self
            .settings
            .quiet
            .cache_classes
            .iter()
            .zip(self.class_origins.values())
        {
            classes::print(&mut text, name, limits, origin);
        }
        for (rule, origin) in self.settings.policies.adopt.iter().zip(&self.rule_origins) {
            let _ = writeln!(text, "\n{:<40} # {}", "[[adopt]]", origin.display());
            for key in effective_keys(rule) {
                let _ = writeln!(text, "{} = {}", key.name, (key.get)(rule));
            }
        }
        text
    }
}

impl Key<Settings> {
    /// As a line of a file.
    pub(crate) fn line(&self, settings: &Settings) -> String {
        format!("{} = {}", self.name, (self.get)(settings))
    }
}

/// The number of the line that this byte is in.
pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    text.get(..byte).unwrap_or_default().matches('\n').count() + 1
}

/// "a, b or c".
pub(crate) fn list<'a>(words: impl Iterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        Some((end, [])) => (*end).to_owned(),
        Some((end, before)) => format!("{} {last} {end}", before.join(", ")),
        None => String::new(),
    }
}

/// The key that is probably meant, or all keys.
fn meant<'a>(key: &str, keys: impl Iterator<Item = &'a str> + Clone, are: &str) -> String {
    // Other programs have settings with underscores.
    match near::nearest(&key.replace('_', "-"), keys.clone()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("{are} {}", list(keys, "and")),
    }
}

/// The files of the configuration, in the order in which they are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// They are read; a later one replaces keys of an earlier one.
    pub read: Vec<PathBuf>,
    /// They are in a folder of drop-ins and are not read, each with the reason.
    pub ignored: Vec<(PathBuf, String)>,
}

impl Files {
    /// One for each file that is not read: its path, and why.
    pub fn ignored_lines(&self) -> impl Iterator<Item = String> {
        let ignored = self.ignored.iter();
        ignored.map(|(path, why)| format!("ignored: {}: {why}", path.display()))
    }
}

/// The name of a drop-in ends so.
const DROP_IN: &str = "toml";

/// Finds the files of the configuration below `root` (`/`).
pub fn files(root: &Path) -> Files {
    let main = root.join("etc/stelia/steliad.toml");
    let mut ignored = Vec::new();
    let mut drop_ins: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for base in ["usr/lib", "run", "etc"] {
        let directory = root.join(base).join("stelia/steliad.toml.d");
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Some(name) = path.file_name() else { continue };
            match unfit(&path) {
                None => {
                    if let Some(replaced) = drop_ins.insert(name.to_owned(), path.clone()) {
                        ignored.push((replaced, format!("{} replaces it", path.display())));
                    }
                }
                Some(why) => {
                    // A link of the administrator's replaces the packaged file, wherever it leads.
                    if let Some(replaced) = drop_ins.remove(name) {
                        ignored.push((replaced, format!("{} replaces it", path.display())));
                    }
                    ignored.push((path, why));
                }
            }
        }
    }
    if let Some(why) = dangling(&main) {
        ignored.push((main.clone(), why));
    }
    // One that cannot be looked at is an error of reading it.
    let is_there = main.try_exists().unwrap_or(true);
    let read = is_there.then_some(main).into_iter().chain(drop_ins.into_values());
    Files {
        read: read.collect(),
        ignored,
    }
}

/// Why a file of a folder of drop-ins is not read. Editors keep their locks and swap files there, with a dot before the name.
fn unfit(path: &Path) -> Option<String> {
    if path.extension().is_none_or(|extension| extension != DROP_IN) {
        return Some(format!("its name does not end in .{DROP_IN}"));
    }
    let name = path.file_name()?.to_string_lossy();
    if name.starts_with('.') {
        Some("its name begins with a dot".to_owned())
    } else {
        dangling(path)
    }
}

/// That a path is a link and there is no file where it leads.
fn dangling(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    let is_there = path.try_exists().unwrap_or(true);
    (!is_there).then(|| format!("the link leads nowhere: there is no {}", target.display()))
}

/// Read and check the configuration below `root` (`/`). Files that do not exist are left out.
pub fn load(root: &Path) -> Result<Loaded, SettingsError> {
    let mut merged = Fragment::default();
    for path in files(root).read {
        match fs::read_to_string(&path) {
            Ok(text) => merged = merged.merge(Fragment::parse(&text, &path)?),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(SettingsError::Read { path, cause }),
        }
    }
    merged.check()
}
