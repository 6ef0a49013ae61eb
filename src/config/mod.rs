//! Configuration: fragments (every key optional) are merged in order, then checked into [`Settings`].
//!
//! Files, later ones win: `/etc/stelia/steliad.toml`, then `*.toml` in `/usr/lib`, `/run` and `/etc`
//! `stelia/steliad.toml.d`, where a file name in a later directory hides the same name in an earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::plan::Policies;

/// One configuration file: what it leaves out is left as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fragment {
    /// kubelet's root directory.
    pub kubelet_root: Option<PathBuf>,
    /// Which shared CPUs an instance floats on; `node` is the only one yet.
    pub float_policy: Option<String>,
    /// Placement of vCPUs; `linear` is the only one yet.
    pub placement: Option<String>,
    /// Partition type of `vcpu/`; `isolated` is the only one yet.
    pub partition: Option<String>,
    /// Seconds between audits, 1 to 3600.
    pub audit_interval_s: Option<u64>,
}

/// Checked configuration.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// kubelet's root directory; `cpu_manager_state` lies in it.
    pub kubelet_root: PathBuf,
    /// What decisions depend on.
    pub policies: Policies,
    /// Time between audits.
    pub audit_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubelet_root: "/var/lib/kubelet".into(),
            policies: Policies::default(),
            audit_interval: Duration::from_secs(30),
        }
    }
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// A file is no TOML, or has a key that does not exist; the cause names line and column.
    #[error("{path}: {cause}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        cause: Box<toml::de::Error>,
    },
    /// A value is none that the key takes.
    #[error("{key} = {value:?}: allowed is {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value found.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Fragment {
    /// Lay `over` on top of this fragment.
    #[must_use]
    pub fn merge(self, over: Self) -> Self {
        Self {
            kubelet_root: over.kubelet_root.or(self.kubelet_root),
            float_policy: over.float_policy.or(self.float_policy),
            placement: over.placement.or(self.placement),
            partition: over.partition.or(self.partition),
            audit_interval_s: over.audit_interval_s.or(self.audit_interval_s),
        }
    }

    /// Check every value.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first value that is not allowed.
    pub fn check(self) -> Result<Settings, ConfigError> {
        let only = |key, value: Option<String>, allowed: &'static str| match value {
            Some(value) if value != allowed => Err(ConfigError::Value { key, value, allowed }),
            _ => Ok(()),
        };
        only("float-policy", self.float_policy, "node")?;
        only("placement", self.placement, "linear")?;
        only("partition", self.partition, "isolated")?;
        let defaults = Settings::default();
        let kubelet_root = self.kubelet_root.unwrap_or(defaults.kubelet_root);
        if !kubelet_root.is_absolute() {
            let value = kubelet_root.display().to_string();
            return Err(ConfigError::Value {
                key: "kubelet-root",
                value,
                allowed: "an absolute path",
            });
        }
        let audit_interval = match self.audit_interval_s {
            None => defaults.audit_interval,
            Some(seconds @ 1..=3600) => Duration::from_secs(seconds),
            Some(other) => {
                return Err(ConfigError::Value {
                    key: "audit-interval-s",
                    value: other.to_string(),
                    allowed: "1 to 3600",
                });
            }
        };
        Ok(Settings {
            kubelet_root,
            policies: defaults.policies,
            audit_interval,
        })
    }
}

/// Read and check the configuration below `root` (`/`).
///
/// # Errors
/// Any [`ConfigError`]; a file that does not exist is none.
pub fn load(root: &Path) -> Result<Settings, ConfigError> {
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
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(ConfigError::Read { path, cause }),
        };
        let fragment = toml::from_str(&text).map_err(|cause| ConfigError::Syntax {
            path,
            cause: Box::new(cause),
        })?;
        merged = merged.merge(fragment);
    }
    merged.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn without_any_file_the_defaults_hold() {
        assert_eq!(load(tree(&[]).path()).unwrap(), Settings::default());
    }

    #[test]
    fn a_drop_in_wins_over_the_file_and_etc_hides_usr() {
        let dir = tree(&[
            ("etc/stelia/steliad.toml", "audit-interval-s = 5\nkubelet-root = \"/a\""),
            ("usr/lib/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 6"),
            ("etc/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 7"),
        ]);
        let settings = load(dir.path()).unwrap();
        assert_eq!(settings.audit_interval, Duration::from_secs(7));
        assert_eq!(settings.kubelet_root, Path::new("/a"));
    }

    #[test]
    fn an_unknown_key_is_an_error_with_file_and_line() {
        let dir = tree(&[("etc/stelia/steliad.toml", "\nkubelet-rot = \"/a\"")]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("steliad.toml") && error.contains("line 2") && error.contains("kubelet-rot"),
            "{error}"
        );
    }

    #[test]
    fn a_value_that_is_not_allowed_says_what_is() {
        let dir = tree(&[("etc/stelia/steliad.toml", "placement = \"best\"")]);
        assert!(load(dir.path()).unwrap_err().to_string().contains("linear"));
    }
}
