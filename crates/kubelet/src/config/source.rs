//! The file of `--config`, the drop-ins of `--config-dir`, and what they are together.
//!
//! kubelet decodes the file into its own types, and each drop-in into a map, which it merges into the file's JSON (RFC 7386: null removes a
//! key). So a misspelt key of the file is passed over with a warning, a key that is twice in a drop-in is an error, and in what is merged case
//! does not matter (`cmd/kubelet/app/server.go` and `pkg/kubelet/kubeletconfig/util/codec` of Kubernetes 1.36).

use serde_json::{Map, Value};
use stelia_cpus::text::excerpt::name as shown;

use super::ConfigError;
use super::decode::{self, Mismatch, Unknown};
use super::schema::{CONFIGURATION, Case};
use super::yaml::{self, Document, Malformed};

const KIND: &str = "KubeletConfiguration";
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// What is in a file and has no effect on kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// kubelet does not have the key.
    #[error("{place}: kubelet 1.36 has no key {key} and passes over it{}", meant(*like))]
    UnknownKey {
        /// Which file.
        place: String,
        /// The key as its path.
        key: String,
        /// A key that may be meant.
        like: Option<&'static str>,
    },
    /// A key is there twice, and the last counts.
    #[error("{place}: {key} is there twice, and kubelet takes the last")]
    Twice {
        /// Which file.
        place: String,
        /// The key as its path.
        key: String,
    },
    /// kubelet reads the first document only.
    #[error("{place}: kubelet reads the first YAML document only, and others follow")]
    OtherDocuments {
        /// Which file.
        place: String,
    },
}

/// The key that may be meant, as the end of a sentence.
fn meant(like: Option<&str>) -> String {
    like.map(|like| format!(" (did you mean {like}?)")).unwrap_or_default()
}

/// The file of `--config`.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    place: String,
    /// By kubelet's names.
    keys: Map<String, Value>,
    warnings: Vec<Warning>,
}

impl File {
    /// Parses a KubeletConfiguration, YAML or JSON. `place` names it in errors.
    ///
    /// # Errors
    /// kubelet would not start with it.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        let (document, map) = map(text, place)?;
        check_kind(&map, Case::Ignored, place)?;
        let mut unknown = Vec::new();
        let keys =
            decode::object(&map, CONFIGURATION, Case::Exact, &mut unknown).map_err(|wrong| value(place, wrong))?;
        let twice = document.twice.iter().map(|key| Warning::Twice {
            place: place.to_owned(),
            key: key.clone(),
        });
        Ok(Self {
            place: place.to_owned(),
            keys,
            warnings: warnings(place, unknown, document.others).chain(twice).collect(),
        })
    }
}

/// A drop-in of `--config-dir`.
#[derive(Debug, Clone, PartialEq)]
pub struct DropIn {
    place: String,
    patch: Map<String, Value>,
    warnings: Vec<Warning>,
}

impl DropIn {
    /// Parses a drop-in, YAML or JSON. Whether its values have the right types is found out when it is merged.
    ///
    /// # Errors
    /// kubelet would not start with it.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        let (document, map) = map(text, place)?;
        check_kind(&map, Case::Exact, place)?;
        if let Some(key) = document.twice.first() {
            return Err(ConfigError::Twice {
                place: place.to_owned(),
                key: key.clone(),
            });
        }
        let mut unknown = Vec::new();
        // A wrong value may be replaced by a later drop-in.
        let _ = decode::object(&map, CONFIGURATION, Case::Ignored, &mut unknown);
        Ok(Self {
            place: place.to_owned(),
            patch: map,
            warnings: warnings(place, unknown, document.others).collect(),
        })
    }
}

fn map(text: &str, place: &str) -> Result<(Document, Map<String, Value>), ConfigError> {
    let place = || place.to_owned();
    let malformed = |cause: &str| ConfigError::Malformed {
        place: place(),
        cause: cause.to_owned(),
    };
    if text.is_empty() {
        return Err(malformed("the file is empty"));
    }
    let mut document = yaml::parse(text).map_err(|Malformed { cause, is_limit }| {
        if is_limit {
            ConfigError::Limit { place: place(), cause }
        } else {
            ConfigError::Malformed { place: place(), cause }
        }
    })?;
    match document.value.take() {
        Value::Object(map) => Ok((document, map)),
        Value::Null => Ok((document, Map::new())),
        _ => Err(malformed("it is not a map of keys")),
    }
}

/// What kubelet takes a file for, it reads without regard to case; of several keys the last in the order of their bytes counts.
fn check_kind(map: &Map<String, Value>, case: Case, place: &str) -> Result<(), ConfigError> {
    let is = |key: &str, name: &str| match case {
        Case::Exact => key == name,
        Case::Ignored => key.eq_ignore_ascii_case(name),
    };
    let read = |name: &str| map.iter().rfind(|(key, _)| is(key, name)).map(|(_, value)| value);
    let wrong = |cause: String| ConfigError::Kind {
        place: place.to_owned(),
        cause,
    };
    for (name, wanted) in [("kind", KIND), ("apiVersion", VERSION)] {
        match read(name) {
            Some(Value::String(text)) if text == wanted => {}
            None | Some(Value::Null) => return Err(wrong(format!("it has no {name}, which has to be {wanted}"))),
            Some(Value::String(text)) => return Err(wrong(format!("{name} is {}, not {wanted}", shown(text)))),
            Some(_) => return Err(wrong(format!("{name} is not a text, and has to be {wanted}"))),
        }
    }
    Ok(())
}

fn value(place: &str, Mismatch { path, what }: Mismatch) -> ConfigError {
    ConfigError::Value {
        place: place.to_owned(),
        key: path,
        what,
    }
}

fn warnings(place: &str, unknown: Vec<Unknown>, others: bool) -> impl Iterator<Item = Warning> {
    let place = place.to_owned();
    let others = others.then(|| Warning::OtherDocuments { place: place.clone() });
    let unknown = unknown
        .into_iter()
        .map(move |Unknown { path, like }| Warning::UnknownKey {
            place: place.clone(),
            key: path,
            like,
        });
    unknown.chain(others)
}

/// kubelet's defaults for keys that it has read a file for; they are in the JSON that drop-ins are merged into.
fn defaults() -> [(&'static str, Value); 7] {
    [
        ("cpuManagerPolicy", "none".into()),
        ("memoryManagerPolicy", "None".into()),
        ("topologyManagerPolicy", "none".into()),
        ("topologyManagerScope", "container".into()),
        ("cgroupDriver", "cgroupfs".into()),
        ("cgroupsPerQOS", true.into()),
        ("mergeDefaultEvictionSettings", false.into()),
    ]
}

/// `DefaultEvictionHard` of kubelet, for a file without `evictionHard`. Without a file there are none.
const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Whether a file or a drop-in has the key.
pub(super) fn has(file: Option<&File>, drop_ins: &[DropIn], name: &str) -> bool {
    let maps = file.map(|file| &file.keys).into_iter();
    let mut keys = maps.chain(drop_ins.iter().map(|drop_in| &drop_in.patch)).flatten();
    keys.any(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_null() && value != "")
}

/// The keys of all sources, and what has no effect in them.
///
/// # Errors
/// A value has another type.
pub(super) fn merged(
    file: Option<File>,
    drop_ins: Vec<DropIn>,
) -> Result<(Map<String, Value>, Vec<Warning>), ConfigError> {
    let (place, mut keys, mut warnings) = match file {
        Some(mut file) => {
            with_eviction_hard(&mut file.keys);
            (file.place, file.keys, file.warnings)
        }
        None => Default::default(),
    };
    for (key, value) in defaults() {
        let given = keys.entry(key).or_insert(Value::Null);
        if given.is_null() || given == "" {
            *given = value;
        }
    }
    if drop_ins.is_empty() {
        return Ok((keys, warnings));
    }
    let mut all = Value::Object(keys);
    for drop_in in &drop_ins {
        patch(&mut all, &Value::Object(drop_in.patch.clone()));
        warnings.extend(drop_in.warnings.iter().cloned());
    }
    let merged = all.as_object().cloned().unwrap_or_default();
    let decoded = decode::object(&merged, CONFIGURATION, Case::Ignored, &mut Vec::new());
    let keys = decoded.map_err(|wrong| {
        // The last that has it: a later one would have replaced it.
        let has_it = |drop_in: &&DropIn| {
            let own = decode::object(&drop_in.patch, CONFIGURATION, Case::Ignored, &mut Vec::new());
            own.is_err_and(|own| own.path == wrong.path)
        };
        let culprit = drop_ins.iter().rev().find(has_it).map(|drop_in| drop_in.place.as_str());
        value(culprit.unwrap_or(&place), wrong)
    })?;
    Ok((keys, warnings))
}

fn with_eviction_hard(keys: &mut Map<String, Value>) {
    let is_on = keys.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
    match keys.get_mut("evictionHard") {
        Some(Value::Object(given)) if is_on => {
            for (signal, threshold) in EVICTION_HARD {
                given.entry(signal).or_insert_with(|| threshold.into());
            }
        }
        Some(_) => {}
        None => {
            let all = EVICTION_HARD.map(|(signal, threshold)| (signal.to_owned(), threshold.into()));
            keys.insert("evictionHard".to_owned(), Value::Object(all.into_iter().collect()));
        }
    }
}

/// Merges a JSON merge patch (RFC 7386).
fn patch(value: &mut Value, patched: &Value) {
    let Value::Object(patched) = patched else {
        *value = patched.clone();
        return;
    };
    if !value.is_object() {
        *value = Map::new().into();
    }
    let Some(map) = value.as_object_mut() else { return };
    for (key, new) in patched {
        match new {
            Value::Null => {
                map.remove(key);
            }
            new => patch(map.entry(key.clone()).or_insert(Value::Null), new),
        }
    }
}
