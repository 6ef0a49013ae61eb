//! The flags of kubelet's command line that are relevant here. All others are skipped.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stelia_cpus::quantity::{Quantity, QuantityError};
use stelia_text::excerpt::{excerpt, name as shown};

use super::{ConfigError, MemoryReservation, SourceValues};

/// The command line, parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--config`: the configuration file.
    pub config: Option<PathBuf>,
    /// `--config-dir`: the folder of drop-ins.
    pub config_dir: Option<PathBuf>,
    /// `--root-dir`.
    pub root_dir: Option<PathBuf>,
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// The flags that stand for keys of the file.
    pub given: SourceValues,
}

impl Flags {
    /// Parse a command line, the program's name first. `--flag=value` and `--flag value` are the same, and so are `-` and
    /// `_` in names. If a flag is given twice, the last one counts; maps are merged.
    ///
    /// # Errors
    /// A flag without a value, or one that does not parse.
    pub fn parse(argv: &[String]) -> Result<Self, ConfigError> {
        let mut flags = Self::default();
        let mut arguments = argv.iter().map(String::as_str).skip(1);
        while let Some(argument) = arguments.next().filter(|argument| *argument != "--") {
            let Some(flag) = argument.strip_prefix("--") else {
                continue;
            };
            let (name, own) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let name = name.replace('_', "-");
            // A boolean without a value is on, and does not take the next argument.
            if name == SWITCH {
                flags.set(&name, own.unwrap_or("true"))?;
                continue;
            }
            let value = own.or_else(|| arguments.clone().next());
            // Whether the next argument is this flag's value is known of the flags that are set here.
            if !flags.set(&name, value.unwrap_or_default())? {
                continue;
            }
            if value.is_none() {
                return Err(wrong(&name, "it has no value"));
            }
            if own.is_none() {
                arguments.next();
            }
        }
        Ok(flags)
    }

    /// Returns whether there is such a flag here.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        let keys = &mut self.given;
        let text = || Some(value.to_owned());
        match name {
            // Empty stands for "not given", as in kubelet.
            "config" => self.config = path(value),
            "config-dir" => self.config_dir = path(value),
            "root-dir" => self.root_dir = path(value),
            "hostname-override" => self.hostname_override = (!value.is_empty()).then(|| value.to_owned()),
            "cpu-manager-policy" => keys.cpu_manager_policy = text(),
            "reserved-cpus" => keys.reserved_system_cpus = text(),
            "topology-manager-policy" => keys.topology_manager_policy = text(),
            "topology-manager-scope" => keys.topology_manager_scope = text(),
            "memory-manager-policy" => keys.memory_manager_policy = text(),
            "cgroup-root" => keys.cgroup_root = text(),
            "cgroup-driver" => keys.cgroup_driver = text(),
            "system-reserved-cgroup" => keys.system_reserved_cgroup = text(),
            "kube-reserved-cgroup" => keys.kube_reserved_cgroup = text(),
            "enforce-node-allocatable" => {
                let entries = value.split(',').filter(|_| !value.is_empty()).map(str::to_owned);
                keys.enforce_node_allocatable.get_or_insert_default().extend(entries);
            }
            SWITCH => keys.cgroups_per_qos = Some(on(name, SWITCH, value)?),
            // A comma is part of this flag's value; each pair has a flag of its own.
            "cpu-manager-policy-options" => {
                let (key, value) = pair(name, value, '=')?;
                keys.cpu_manager_policy_options
                    .get_or_insert_default()
                    .insert(key, value);
            }
            "topology-manager-policy-options" => {
                grow(&mut keys.topology_manager_policy_options, pairs(name, value, '=')?);
            }
            "kube-reserved" => grow(&mut keys.kube_reserved, pairs(name, value, '=')?),
            "system-reserved" => grow(&mut keys.system_reserved, pairs(name, value, '=')?),
            "eviction-hard" => grow(&mut keys.eviction_hard, pairs(name, value, '<')?),
            "reserved-memory" => keys
                .reserved_memory
                .get_or_insert_default()
                .extend(reservations(name, value)?),
            "feature-gates" => {
                for (gate, text) in pairs(name, value, '=')? {
                    let on = on(name, &gate, &text)?;
                    keys.feature_gates.get_or_insert_default().insert(gate, on);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The only boolean among the flags that are read.
const SWITCH: &str = "cgroups-per-qos";

fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

fn grow(map: &mut Option<BTreeMap<String, String>>, more: BTreeMap<String, String>) {
    map.get_or_insert_default().extend(more);
}

/// A key and a value, without the blanks around them.
fn pair(flag: &str, text: &str, between: char) -> Result<(String, String), ConfigError> {
    let parts = text.split_once(between);
    let (key, value) = parts.ok_or_else(|| wrong(flag, &format!("{:?} is not key{between}value", excerpt(text))))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Pairs joined by commas.
fn pairs(flag: &str, text: &str, between: char) -> Result<BTreeMap<String, String>, ConfigError> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| pair(flag, part, between)).collect()
}

fn on(flag: &str, key: &str, text: &str) -> Result<bool, ConfigError> {
    parse_bool(text).ok_or_else(|| wrong(flag, &format!("{}={} is neither on nor off", shown(key), shown(text))))
}

/// `0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=1Gi`
fn reservations(flag: &str, text: &str) -> Result<Vec<MemoryReservation>, ConfigError> {
    let parts = text.split(';').filter(|_| !text.is_empty());
    let one = |part: &str| {
        let wrong = || {
            wrong(
                flag,
                &format!("{:?} is not like 0:memory=1Gi,hugepages-2Mi=2Gi", excerpt(part)),
            )
        };
        let (node, limits) = part.split_once(':').ok_or_else(wrong)?;
        let numa_node = node.parse::<i32>().map_err(|_| wrong())?.into();
        let mut read = BTreeMap::new();
        for limit in limits.split(',') {
            let (kind, amount) = limit.split_once('=').ok_or_else(wrong)?;
            let known = kind == "memory" || kind.starts_with("hugepages-");
            let amounts = amount.parse::<Quantity>();
            if !known || matches!(amounts, Err(QuantityError::Malformed(_))) {
                return Err(wrong());
            }
            read.insert(kind.to_owned(), amount.to_owned());
        }
        Ok(MemoryReservation {
            numa_node,
            limits: read,
        })
    };
    parts.map(one).collect()
}

/// What Go's `strconv.ParseBool` takes: the booleans of kubelet's flags and policy options.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn wrong(flag: &str, cause: &str) -> ConfigError {
    ConfigError::Flag {
        flag: flag.to_owned(),
        cause: cause.to_owned(),
    }
}
