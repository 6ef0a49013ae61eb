//! The flags of kubelet's command line that are relevant here. All others are skipped.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stelia_text::excerpt::{excerpt, name as shown};

use super::{ConfigError, Fragment};

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
    pub fragment: Fragment,
}

impl Flags {
    /// Parse a command line, the program's name first. `--flag=value` and `--flag value` are the same, and so are `-` and
    /// `_` in names. Of a flag given twice the last counts; maps grow.
    ///
    /// # Errors
    /// A flag without a value, or a map that does not parse.
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
        let keys = &mut self.fragment;
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
            "cgroup-root" => keys.cgroup_root = text(),
            "cgroup-driver" => keys.cgroup_driver = text(),
            "cgroups-per-qos" => {
                let neither = || format!("{} is neither on nor off", shown(value));
                keys.cgroups_per_qos = Some(parse_bool(value).ok_or_else(|| wrong(name, &neither()))?);
            }
            "memory-manager-policy" => keys.memory_manager_policy = text(),
            "cpu-manager-policy-options" => grow(&mut keys.cpu_manager_policy_options, pairs(name, value)?),
            "topology-manager-policy-options" => grow(&mut keys.topology_manager_policy_options, pairs(name, value)?),
            "kube-reserved" => grow(&mut keys.kube_reserved, amounts(name, value)?),
            "system-reserved" => grow(&mut keys.system_reserved, amounts(name, value)?),
            "feature-gates" => {
                let mut gates = BTreeMap::new();
                for (gate, text) in pairs(name, value)? {
                    let neither = || format!("{}={} is neither on nor off", shown(&gate), shown(&text));
                    let on = parse_bool(&text).ok_or_else(|| wrong(name, &neither()))?;
                    gates.insert(gate, on);
                }
                grow(&mut keys.feature_gates, gates);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

fn grow<T>(map: &mut Option<BTreeMap<String, T>>, more: BTreeMap<String, T>) {
    map.get_or_insert_default().extend(more);
}

/// `key=value` pairs joined by commas; blanks around keys and values are removed.
fn pairs(flag: &str, text: &str) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut found = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| wrong(flag, &format!("{:?} is not key=value", excerpt(part))))?;
        found.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(found)
}

fn amounts(flag: &str, text: &str) -> Result<super::Amounts, ConfigError> {
    let amounts = pairs(flag, text)?.into_iter();
    Ok(amounts.map(|(name, amount)| (name, Some(amount))).collect())
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
