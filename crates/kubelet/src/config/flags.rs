//! The flags of kubelet's command line that are relevant here. All others are skipped.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use stelia_cpus::quantity::{Quantity, QuantityError};
use stelia_cpus::text::excerpt::{excerpt, name as shown};

use super::ConfigError;

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
    /// The keys of the file that the other flags stand for, with values of the keys' types.
    pub given: Map<String, Value>,
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
        match name {
            // Empty stands for "not given", as in kubelet.
            "config" => self.config = path(value),
            "config-dir" => self.config_dir = path(value),
            "root-dir" => self.root_dir = path(value),
            "hostname-override" => self.hostname_override = (!value.is_empty()).then(|| value.to_owned()),
            _ => {
                let Some((key, value)) = key(name, value)? else {
                    return Ok(false);
                };
                match (self.given.get_mut(key), value) {
                    (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
                    (Some(Value::Array(former)), Value::Array(more)) => former.extend(more),
                    (_, value) => drop(self.given.insert(key.to_owned(), value)),
                }
            }
        }
        Ok(true)
    }
}

/// The key that the flag stands for, and its value. `None`: there is no such flag here.
fn key(name: &str, value: &str) -> Result<Option<(&'static str, Value)>, ConfigError> {
    let pairs = |between| -> Result<Value, ConfigError> {
        let parts = value.split(',').filter(|part| !part.is_empty());
        let pairs: Result<Map<_, _>, _> = parts.map(|part| pair(name, part, between)).collect();
        Ok(pairs?.into())
    };
    Ok(Some(match name {
        "cpu-manager-policy" => ("cpuManagerPolicy", value.into()),
        "reserved-cpus" => ("reservedSystemCPUs", value.into()),
        "topology-manager-policy" => ("topologyManagerPolicy", value.into()),
        "topology-manager-scope" => ("topologyManagerScope", value.into()),
        "memory-manager-policy" => ("memoryManagerPolicy", value.into()),
        "cgroup-root" => ("cgroupRoot", value.into()),
        "cgroup-driver" => ("cgroupDriver", value.into()),
        "system-reserved-cgroup" => ("systemReservedCgroup", value.into()),
        "kube-reserved-cgroup" => ("kubeReservedCgroup", value.into()),
        "enforce-node-allocatable" => {
            let entries = value.split(',').filter(|_| !value.is_empty());
            ("enforceNodeAllocatable", entries.collect())
        }
        SWITCH => ("cgroupsPerQOS", on(name, SWITCH, value)?),
        "cpu-manager-policy-options" => ("cpuManagerPolicyOptions", option(name, value)?),
        "topology-manager-policy-options" => ("topologyManagerPolicyOptions", option(name, value)?),
        "kube-reserved" => ("kubeReserved", pairs('=')?),
        "system-reserved" => ("systemReserved", pairs('=')?),
        "eviction-hard" => ("evictionHard", pairs('<')?),
        "reserved-memory" => ("reservedMemory", reservations(name, value)?),
        "feature-gates" => {
            let mut gates = pairs('=')?;
            for (gate, value) in gates.as_object_mut().into_iter().flatten() {
                *value = on(name, gate, value.as_str().unwrap_or_default())?;
            }
            ("featureGates", gates)
        }
        _ => return Ok(None),
    }))
}

/// The only boolean among the flags that are read.
const SWITCH: &str = "cgroups-per-qos";

fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// A key and a value, without the blanks around them.
fn pair(flag: &str, text: &str, between: char) -> Result<(String, Value), ConfigError> {
    let parts = text.split_once(between);
    let (key, value) = parts.ok_or_else(|| wrong(flag, &format!("{:?} is not key{between}value", excerpt(text))))?;
    Ok((key.trim().to_owned(), value.trim().into()))
}

/// One option of a policy: a comma is part of its value, and each option has a flag of its own (`NewMapStringStringNoSplit` of kubelet's `options.go`).
fn option(flag: &str, text: &str) -> Result<Value, ConfigError> {
    let option = pair(flag, text, '=')?;
    Ok(Map::from_iter([option]).into())
}

fn on(flag: &str, key: &str, text: &str) -> Result<Value, ConfigError> {
    parse_bool(text)
        .map(Value::from)
        .ok_or_else(|| wrong(flag, &format!("{}={} is neither on nor off", shown(key), shown(text))))
}

/// `0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=1Gi`
fn reservations(flag: &str, text: &str) -> Result<Value, ConfigError> {
    let parts = text.split(';').filter(|_| !text.is_empty());
    let one = |part: &str| {
        let wrong = || {
            wrong(
                flag,
                &format!("{:?} is not like 0:memory=1Gi,hugepages-2Mi=2Gi", excerpt(part)),
            )
        };
        let (node, limits) = part.split_once(':').ok_or_else(wrong)?;
        let numa_node = node.parse::<i32>().map_err(|_| wrong())?;
        let mut read = Map::new();
        for limit in limits.split(',') {
            let (kind, amount) = limit.split_once('=').ok_or_else(wrong)?;
            let known = kind == "memory" || kind.starts_with("hugepages-");
            let amounts = amount.parse::<Quantity>();
            if !known || matches!(amounts, Err(QuantityError::Malformed(_))) {
                return Err(wrong());
            }
            read.insert(kind.to_owned(), amount.into());
        }
        Ok(json!({ "numaNode": numa_node, "limits": read }))
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
