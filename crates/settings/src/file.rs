//! The files: read, merged key by key, checked, printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use stelia_text::excerpt;
use toml::{Spanned, Value};

use crate::Settings;
use crate::settings::{KEYS, Key};

/// What one file sets, or several files merged. Values are not checked yet: a wrong value that a later file replaces is
/// not an error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fragment(BTreeMap<&'static str, Entry>);

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    value: Value,
    path: PathBuf,
    line: usize,
}

/// The settings in force, and where each came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    pub settings: Settings,
    /// The file that set a key last; a key that no file sets is missing.
    pub origins: BTreeMap<&'static str, PathBuf>,
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("read {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    /// Not TOML; the cause names line and column.
    #[error("{path}: {cause}")]
    Syntax { path: PathBuf, cause: Box<toml::de::Error> },
    #[error("{path}: line {line}: {key:?} is not a setting; the settings are {}", list(KEYS.iter().map(|key| key.name), "and"))]
    Unknown { path: PathBuf, line: usize, key: String },
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
    /// [`SettingsError::Syntax`] and [`SettingsError::Unknown`], which no later file can replace.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        let table: BTreeMap<Spanned<String>, Value> = toml::from_str(text).map_err(|cause| SettingsError::Syntax {
            path: path.to_owned(),
            cause: Box::new(cause),
        })?;
        let mut entries = BTreeMap::new();
        for (name, value) in table {
            let before = text.get(..name.span().start).unwrap_or_default();
            let (path, line) = (path.to_owned(), before.matches('\n').count() + 1);
            let Some(key) = KEYS.iter().find(|key| key.name == name.get_ref()) else {
                let key = excerpt::excerpt(name.get_ref());
                return Err(SettingsError::Unknown { path, line, key });
            };
            entries.insert(key.name, Entry { value, path, line });
        }
        Ok(Self(entries))
    }

    /// Lay `over` on top of this fragment: its keys win.
    #[must_use]
    pub fn merge(mut self, over: Self) -> Self {
        self.0.extend(over.0);
        self
    }

    /// Check every value, on top of the defaults.
    ///
    /// # Errors
    /// [`SettingsError::Value`] for the first one, in the order of the keys, that is not allowed.
    pub fn check(self) -> Result<Loaded, SettingsError> {
        let mut loaded = Loaded::default();
        for key in &KEYS {
            let Some(Entry { value, path, line }) = self.0.get(key.name) else {
                continue;
            };
            (key.set)(&mut loaded.settings, value).ok_or_else(|| SettingsError::Value {
                path: path.clone(),
                line: *line,
                key: key.name,
                value: match value {
                    Value::String(text) => format!("{:?}", excerpt::excerpt(text)),
                    other => excerpt::name(&other.to_string()),
                },
                allowed: list(key.allowed.iter().copied(), "or"),
            })?;
            loaded.origins.insert(key.name, path.clone());
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
        text
    }
}

impl Key {
    /// As a line of a file.
    pub(crate) fn line(&self, settings: &Settings) -> String {
        format!("{} = {}", self.name, (self.get)(settings))
    }
}

/// "a, b or c".
fn list<'a>(words: impl Iterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        Some((end, [])) => (*end).to_owned(),
        Some((end, before)) => format!("{} {last} {end}", before.join(", ")),
        None => String::new(),
    }
}

/// Read and check the configuration below `root` (`/`). Files that do not exist are left out.
///
/// # Errors
/// The first file or value that is wrong.
pub fn load(root: &Path) -> Result<Loaded, SettingsError> {
    let mut files = vec![root.join("etc/stelia/steliad.toml")];
    let mut drop_ins = BTreeMap::new();
    for base in ["usr/lib", "run", "etc"] {
        let directory = root.join(base).join("stelia/steliad.toml.d");
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if let (Some("toml"), Some(name)) = (path.extension().and_then(|e| e.to_str()), path.file_name()) {
                drop_ins.insert(name.to_owned(), path);
            }
        }
    }
    files.extend(drop_ins.into_values());
    let mut merged = Fragment::default();
    for path in files {
        match fs::read_to_string(&path) {
            Ok(text) => merged = merged.merge(Fragment::parse(&text, &path)?),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(SettingsError::Read { path, cause }),
        }
    }
    merged.check()
}
