//! Configuration: fragments (every key optional) are merged in order, then checked into [`Settings`].
//!
//! Files, later ones win: `/etc/stelia/steliad.toml`, then `*.toml` in `/usr/lib`, `/run` and `/etc`
//! `stelia/steliad.toml.d`, where a file name in a later directory hides the same name in an earlier one.

mod allocator;

mod float;
mod partition;
mod placement;
mod policies;

pub use float::FloatPolicy;
pub use partition::{Partition, isolated_is_safe};
pub use placement::PlacementPolicy;
pub use policies::Policies;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use serde::Deserialize;
use stelia_kubelet::home::AUTO;
use stelia_text::excerpt::excerpt;

/// One configuration file: what it leaves out is left as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fragment {
    /// kubelet's root directory, or `auto`.
    pub kubelet_root: Option<PathBuf>,
    /// Which shared CPUs an instance floats on: `node`, `numa` or `pod`.
    pub float_policy: Option<String>,
    /// With fewer CPUs than this in its NUMA nodes an instance floats on the whole shared pool.
    pub float_min_cpus: Option<u32>,
    /// `cpu.max` of every float: `max`, or quota and period in microseconds.
    pub float_cpu_max: Option<String>,
    /// Placement of vCPUs: `guest`, `full-pcpus`, `spread-by-pcpus` or `linear`.
    pub placement: Option<String>,
    /// Partition of the vCPUs: `auto`, `isolated`, `root` or `member`.
    pub partition: Option<String>,
    /// Who chooses exclusive CPUs: `kubelet` or `steliad`.
    pub cpu_source: Option<String>,
    /// CPUs that are never allocated, as a CPU list.
    pub reserved_cpus: Option<String>,
    /// The class of a Guaranteed pod that names none: `LSE`, `LSR`, `LS` or `BE`.
    pub qos: Option<String>,
    /// What the bind policy Default means: `FullPCPUs` or `SpreadByPCPUs`.
    pub cpu_bind_policy: Option<String>,
    /// The bind policy every allocation must satisfy: `None`, `FullPCPUsOnly` or `SpreadByPCPUs`.
    pub required_cpu_bind_policy: Option<String>,
    /// What the exclusive policy Default means: `None`, `PCPULevel` or `NUMANodeLevel`.
    pub cpu_exclusive_policy: Option<String>,
    /// The strategy of who names none: `MostAllocated`, `LeastAllocated` or `DistributeEvenly`.
    pub numa_allocate_strategy: Option<String>,
    /// The alignment policy of who names none: `None`, `BestEffort`, `Restricted` or `SingleNUMANode`.
    pub numa_topology_alignment_policy: Option<String>,
    /// Seconds from the beginning of one rebind job to the next, 0 to 86400.
    pub rebind_interval_s: Option<u64>,
    /// Seconds between audits, 1 to 3600.
    pub audit_interval_s: Option<u64>,
}

/// Checked configuration.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// kubelet's root directory, in which `cpu_manager_state` lies; [`AUTO`] for the one that is found.
    pub kubelet_root: PathBuf,
    /// What decisions depend on.
    pub policies: Policies,
    /// Time from the beginning of one rebind job to the next.
    pub rebind_interval: Duration,
    /// Time between audits.
    pub audit_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubelet_root: AUTO.into(),
            policies: Policies::default(),
            rebind_interval: Duration::from_secs(60),
            audit_interval: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// Every key with its value, as TOML writes it.
    fn keys(&self) -> [(&'static str, String); 16] {
        let text = |text: &str| toml::Value::from(text).to_string();
        let policies = &self.policies;
        let allocator = &policies.allocator;
        [
            ("kubelet-root", text(&self.kubelet_root.display().to_string())),
            ("float-policy", text(policies.float.name())),
            ("float-min-cpus", policies.float_min_cpus.to_string()),
            ("float-cpu-max", text(&policies.float_cpu_max)),
            ("placement", text(policies.placement.name())),
            ("partition", text(policies.partition.map_or("auto", Partition::name))),
            ("cpu-source", text(allocator.source.name())),
            ("reserved-cpus", text(&allocator.reserved.to_string())),
            ("qos", text(allocator.qos.name())),
            ("cpu-bind-policy", text(allocator.bind.name())),
            ("required-cpu-bind-policy", text(allocator.required.name())),
            ("cpu-exclusive-policy", text(allocator.exclusive.name())),
            ("numa-allocate-strategy", text(allocator.strategy.name())),
            ("numa-topology-alignment-policy", text(allocator.alignment.name())),
            ("rebind-interval-s", self.rebind_interval.as_secs().to_string()),
            ("audit-interval-s", self.audit_interval.as_secs().to_string()),
        ]
    }
}

/// What was loaded, and where each value came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The settings in force.
    pub settings: Settings,
    /// The file that set a key last; a key that no file sets is missing.
    pub origins: BTreeMap<String, PathBuf>,
}

impl Loaded {
    /// The whole configuration as a file that would give it, each value with its origin behind it.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for (key, value) in self.settings.keys() {
            let origin = self
                .origins
                .get(key)
                .map_or("default".into(), |path| path.display().to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:<40} # {origin}", format!("{key} = {value}"));
        }
        text
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
    #[error("{origin}{key} = {value:?}: allowed is {allowed}")]
    Value {
        /// The file, with what separates it from the rest.
        origin: String,
        /// The key.
        key: &'static str,
        /// The value found.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Fragment {
    /// Parse a file's text, and tell the keys that are in it. `path` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`].
    pub fn parse(text: &str, path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let syntax = |cause| ConfigError::Syntax {
            path: path.to_owned(),
            cause: Box::new(cause),
        };
        let fragment = toml::from_str(text).map_err(syntax)?;
        let table: toml::Table = toml::from_str(text).map_err(syntax)?;
        Ok((fragment, table.into_iter().map(|(key, _)| key).collect()))
    }

    /// Lay `over` on top of this fragment.
    #[must_use]
    pub fn merge(self, over: Self) -> Self {
        Self {
            kubelet_root: over.kubelet_root.or(self.kubelet_root),
            float_policy: over.float_policy.or(self.float_policy),
            float_min_cpus: over.float_min_cpus.or(self.float_min_cpus),
            float_cpu_max: over.float_cpu_max.or(self.float_cpu_max),
            placement: over.placement.or(self.placement),
            partition: over.partition.or(self.partition),
            cpu_source: over.cpu_source.or(self.cpu_source),
            reserved_cpus: over.reserved_cpus.or(self.reserved_cpus),
            qos: over.qos.or(self.qos),
            cpu_bind_policy: over.cpu_bind_policy.or(self.cpu_bind_policy),
            required_cpu_bind_policy: over.required_cpu_bind_policy.or(self.required_cpu_bind_policy),
            cpu_exclusive_policy: over.cpu_exclusive_policy.or(self.cpu_exclusive_policy),
            numa_allocate_strategy: over.numa_allocate_strategy.or(self.numa_allocate_strategy),
            numa_topology_alignment_policy: over
                .numa_topology_alignment_policy
                .or(self.numa_topology_alignment_policy),
            rebind_interval_s: over.rebind_interval_s.or(self.rebind_interval_s),
            audit_interval_s: over.audit_interval_s.or(self.audit_interval_s),
        }
    }

    /// Check every value.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first value that is not allowed.
    pub fn check(self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        let policies = &mut settings.policies;
        policies.allocator = allocator::check(&self)?;
        if let Some(path) = self.kubelet_root {
            let absolute = |path: &PathBuf| (path.is_absolute() || path == Path::new(AUTO)).then(|| path.clone());
            let shown = path.display().to_string();
            settings.kubelet_root = allowed("kubelet-root", &shown, absolute(&path), "auto or an absolute path")?;
        }
        if let Some(text) = self.float_policy {
            policies.float = allowed("float-policy", &text, FloatPolicy::parse(&text), "node, numa or pod")?;
        }
        if let Some(number) = self.float_min_cpus {
            let least = Some(number as usize).filter(|least| (1..=1024).contains(least));
            policies.float_min_cpus = allowed("float-min-cpus", &number.to_string(), least, "1 to 1024")?;
        }
        if let Some(text) = self.float_cpu_max {
            let form = "\"max\", or a quota of at least 1000 and a period of 1000 to 1000000 microseconds";
            policies.float_cpu_max = allowed("float-cpu-max", &text, cpu_max(&text), form)?;
        }
        if let Some(text) = self.placement {
            let names = "guest, full-pcpus, spread-by-pcpus or linear";
            policies.placement = allowed("placement", &text, PlacementPolicy::parse(&text), names)?;
        }
        if let Some(text) = self.partition {
            let kind = Partition::parse(&text).map(Some);
            let kind = if text == "auto" { Some(None) } else { kind };
            policies.partition = allowed("partition", &text, kind, "auto, isolated, root or member")?;
        }
        if let Some(seconds) = self.rebind_interval_s {
            let interval = Some(seconds).filter(|seconds| *seconds <= 86_400);
            let interval = allowed("rebind-interval-s", &seconds.to_string(), interval, "0 to 86400")?;
            settings.rebind_interval = Duration::from_secs(interval);
        }
        if let Some(seconds) = self.audit_interval_s {
            let interval = Some(seconds).filter(|seconds| (1..=3600).contains(seconds));
            let interval = allowed("audit-interval-s", &seconds.to_string(), interval, "1 to 3600")?;
            settings.audit_interval = Duration::from_secs(interval);
        }
        Ok(settings)
    }
}

fn allowed<T>(key: &'static str, shown: &str, value: Option<T>, allowed: &'static str) -> Result<T, ConfigError> {
    value.ok_or_else(|| ConfigError::Value {
        origin: String::new(),
        key,
        value: excerpt(shown),
        allowed,
    })
}

/// `cpu.max` as the kernel takes and prints it.
fn cpu_max(text: &str) -> Option<String> {
    if text == "max" {
        return Some(text.to_owned());
    }
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    let good = quota >= 1000 && (1000..=1_000_000).contains(&period);
    good.then(|| format!("{quota} {period}"))
}

/// Read and check the configuration below `root` (`/`).
///
/// # Errors
/// Any [`ConfigError`]; a file that does not exist is none.
pub fn load(root: &Path) -> Result<Loaded, ConfigError> {
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
    let mut origins = BTreeMap::new();
    for path in files {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(ConfigError::Read { path, cause }),
        };
        let (fragment, keys) = Fragment::parse(&text, &path)?;
        origins.extend(keys.into_iter().map(|key| (key, path.clone())));
        merged = merged.merge(fragment);
    }
    let settings = merged.check().map_err(|error| match error {
        ConfigError::Value {
            key, value, allowed, ..
        } => {
            let origin = origins.get(key).map(|path: &PathBuf| format!("{}: ", path.display()));
            ConfigError::Value {
                origin: origin.unwrap_or_default(),
                key,
                value,
                allowed,
            }
        }
        other => other,
    })?;
    Ok(Loaded { settings, origins })
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
        assert_eq!(load(tree(&[]).path()).unwrap(), Loaded::default());
    }

    #[test]
    fn a_drop_in_wins_over_the_file_and_etc_hides_usr() {
        let dir = tree(&[
            ("etc/stelia/steliad.toml", "audit-interval-s = 5\nkubelet-root = \"/a\""),
            ("usr/lib/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 6"),
            ("etc/stelia/steliad.toml.d/10-x.toml", "audit-interval-s = 7"),
        ]);
        let settings = load(dir.path()).unwrap().settings;
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
    fn a_value_that_is_not_allowed_says_what_is_and_in_which_file() {
        for (line, says) in [
            ("placement = \"best\"", "linear"),
            ("float-policy = \"all\"", "numa"),
            ("partition = \"\"", "isolated"),
            ("float-cpu-max = \"10 1000\"", "period"),
            ("float-min-cpus = 0", "1 to 1024"),
            ("kubelet-root = \"x\"", "absolute"),
            ("cpu-source = \"both\"", "steliad"),
            ("reserved-cpus = \"3-1\"", "CPU list"),
            ("cpu-bind-policy = \"ConstrainedBurst\"", "FullPCPUs or"),
            ("cpu-exclusive-policy = \"Default\"", "PCPULevel"),
            ("numa-topology-alignment-policy = \"Single\"", "SingleNUMANode"),
        ] {
            let dir = tree(&[("etc/stelia/steliad.toml.d/7.toml", line)]);
            let error = load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("7.toml"), "{error}");
        }
    }

    #[test]
    fn what_is_printed_gives_the_same_settings_and_tells_where_each_came_from() {
        let dir = tree(&[
            (
                "etc/stelia/steliad.toml",
                "placement = \"linear\"\nfloat-cpu-max = \"50000 100000\"",
            ),
            (
                "run/stelia/steliad.toml.d/50-x.toml",
                "placement = \"full-pcpus\"\npartition = \"root\"",
            ),
        ]);
        let loaded = load(dir.path()).unwrap();
        let text = loaded.print();
        let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        assert!(line("placement").contains("\"full-pcpus\"") && line("placement").ends_with("50-x.toml"));
        assert!(line("float-policy").ends_with("# default"), "{text}");
        let printed: Fragment = toml::from_str(&text).unwrap();
        assert_eq!(printed.check().unwrap(), loaded.settings);
    }

    #[test]
    fn the_shipped_file_lists_every_key_with_its_default() {
        let text = fs::read_to_string("../../packaging/steliad.toml").unwrap();
        let shipped: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| line.contains(" = "))
            .collect();
        let defaults: Vec<String> = Settings::default()
            .keys()
            .map(|(key, value)| format!("{key} = {value}"))
            .into();
        assert_eq!(shipped, defaults);
        assert_eq!(toml::from_str::<Fragment>(&text).unwrap(), Fragment::default());
    }
}
