//! Every setting: its default in [`Settings`] and [`Policies`], its name, check and printing in [`KEYS`].

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, NumaAllocateStrategy, NumaTopologyAlignmentPolicy,
    Qos, RequiredBind,
};
use stelia_kubelet::home::AUTO;
use toml::Value;

use crate::ledger::{size, size_text};
use crate::{
    AdoptRule, FloatPolicy, IrqSteering, LatencyLevel, LedgerSettings, Partition, PlacementPolicy, Publish,
    QuietSettings, Sample, TreeHome, VfioIrqs,
};

/// Most folders of `runtime-state`.
const MAX_RUNTIME_STATES: usize = 16;

/// The configuration in force, set by the rows of `KEYS`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Settings {
    /// kubelet's root directory, in which `cpu_manager_state` lies; [`AUTO`] for the one that is found.
    pub kubelet_root: PathBuf,
    /// Folders, besides those that are known, in which a container runtime keeps its state.
    pub runtime_state: Vec<PathBuf>,
    pub policies: Policies,
    pub quiet: QuietSettings,
    pub ledger: LedgerSettings,
    pub publish: Publish,
    /// Least time from the beginning of one rebind job to that of the next.
    pub rebind_interval: Duration,
    pub audit_interval: Duration,
}

/// The settings that decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Policies {
    /// How vCPUs are placed that are attached from now on; what is placed stays.
    pub placement: PlacementPolicy,
    /// The partition of instances that are attached from now on; `None`: what this kernel makes without danger,
    /// `isolated` or else `root`.
    pub partition: Option<Partition>,
    pub float: FloatPolicy,
    /// Where the cgroups of instances are made that are registered from now on.
    pub tree: TreeHome,
    /// An instance floats on the whole shared pool if its NUMA nodes have fewer shared CPUs than this.
    pub float_min_cpus: usize,
    /// `cpu.max` of every float, as the kernel takes and prints it: an audit compares the texts.
    pub float_cpu_max: String,
    /// What chooses exclusive CPUs, and how.
    pub allocator: AllocatorPolicies,
    /// Which VMs are adopted that do not register; none without a rule. The first rule that finds a container's VM counts.
    pub adopt: Vec<AdoptRule>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubelet_root: AUTO.into(),
            runtime_state: Vec::new(),
            policies: Policies::default(),
            quiet: QuietSettings::default(),
            ledger: LedgerSettings::default(),
            publish: Publish::Off,
            rebind_interval: Duration::from_secs(60),
            audit_interval: Duration::from_secs(30),
        }
    }
}

/// The allocator's defaults are in its crate: they are those of Koordinator's documents.
impl Default for Policies {
    fn default() -> Self {
        Self {
            placement: PlacementPolicy::Guest,
            partition: None,
            float: FloatPolicy::Pod,
            tree: TreeHome::Slice,
            float_min_cpus: 2,
            float_cpu_max: "max".into(),
            allocator: AllocatorPolicies::default(),
            adopt: Vec::new(),
        }
    }
}

/// A key of the configuration files.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// What the value may be, the last behind an "or".
    pub(crate) allowed: &'static [&'static str],
    /// Sets the value; `None` if it is not allowed.
    pub(crate) set: fn(&mut Settings, &Value) -> Option<()>,
    pub(crate) get: fn(&Settings) -> Value,
}

/// A key whose value is a name of an enumeration; only the names listed here are allowed.
macro_rules! choice {
    ($key:literal, $type:ident [$($name:literal),+], $($field:ident).+) => {
        Key {
            name: $key,
            allowed: &[$($name),+],
            set: |settings, value| {
                let name = value.as_str().filter(|name| [$($name),+].contains(name))?;
                settings.$($field).+ = $type::parse(name)?;
                Some(())
            },
            get: |settings| settings.$($field).+.name().into(),
        }
    };
}

/// Every key, in the order of `--print-config` and of `packaging/steliad.toml`.
pub(crate) const KEYS: [Key; 28] = [
    Key {
        name: "kubelet-root",
        allowed: &["auto", "an absolute path"],
        set: |settings, value| {
            let path = Path::new(value.as_str()?);
            let good = path.is_absolute() || path == Path::new(AUTO);
            good.then(|| settings.kubelet_root = path.to_owned())
        },
        get: |settings| settings.kubelet_root.display().to_string().into(),
    },
    Key {
        name: "runtime-state",
        allowed: &["a list of at most 16 absolute paths"],
        set: |settings, value| {
            let words = value.as_array().filter(|words| words.len() <= MAX_RUNTIME_STATES)?;
            let folders = words.iter().map(|word| {
                let path = Path::new(word.as_str()?);
                path.is_absolute().then(|| path.to_owned())
            });
            settings.runtime_state = folders.collect::<Option<_>>()?;
            Some(())
        },
        get: |settings| {
            let folders = settings.runtime_state.iter();
            let words: Vec<String> = folders.map(|folder| folder.display().to_string()).collect();
            words.into()
        },
    },
    choice!("float-policy", FloatPolicy["node", "numa", "pod"], policies.float),
    Key {
        name: "float-min-cpus",
        allowed: &["1 to 1024"],
        set: |settings, value| {
            let least = usize::try_from(number(value, 1..=1024)?).ok()?;
            settings.policies.float_min_cpus = least;
            Some(())
        },
        get: |settings| Value::Integer(settings.policies.float_min_cpus.try_into().unwrap_or(i64::MAX)),
    },
    Key {
        name: "float-cpu-max",
        allowed: &[
            "\"max\"",
            "a quota of at least 1000 and a period of 1000 to 1000000 microseconds",
        ],
        set: |settings, value| {
            settings.policies.float_cpu_max = cpu_max(value.as_str()?)?;
            Some(())
        },
        get: |settings| settings.policies.float_cpu_max.as_str().into(),
    },
    choice!(
        "placement",
        PlacementPolicy["guest", "full-pcpus", "spread-by-pcpus", "linear"],
        policies.placement
    ),
    Key {
        name: "partition",
        allowed: &["auto", "isolated", "root", "member"],
        set: |settings, value| {
            settings.policies.partition = match value.as_str()? {
                "auto" => None,
                name => Some(Partition::parse(name)?),
            };
            Some(())
        },
        get: |settings| settings.policies.partition.map_or("auto", Partition::name).into(),
    },
    choice!("tree", TreeHome["slice", "in-place"], policies.tree),
    choice!(
        "cpu-source",
        CpuSource["kubelet", "steliad"],
        policies.allocator.source
    ),
    Key {
        name: "reserved-cpus",
        allowed: &["a CPU list, such as \"0-1,8\""],
        set: |settings, value| {
            settings.policies.allocator.reserved = value.as_str()?.parse().ok()?;
            Some(())
        },
        get: |settings| settings.policies.allocator.reserved.to_string().into(),
    },
    choice!("qos", Qos["LSE", "LSR", "LS", "BE"], policies.allocator.qos),
    choice!(
        "cpu-bind-policy",
        CpuBindPolicy["FullPCPUs", "SpreadByPCPUs"],
        policies.allocator.bind
    ),
    choice!(
        "required-cpu-bind-policy",
        RequiredBind["None", "FullPCPUsOnly", "SpreadByPCPUs"],
        policies.allocator.required
    ),
    choice!(
        "cpu-exclusive-policy",
        CpuExclusivePolicy["None", "PCPULevel", "NUMANodeLevel"],
        policies.allocator.exclusive
    ),
    choice!(
        "numa-allocate-strategy",
        NumaAllocateStrategy["MostAllocated", "LeastAllocated", "DistributeEvenly"],
        policies.allocator.strategy
    ),
    choice!(
        "numa-topology-alignment-policy",
        NumaTopologyAlignmentPolicy["None", "BestEffort", "Restricted", "SingleNUMANode"],
        policies.allocator.alignment
    ),
    choice!("irq-steering", IrqSteering["shared", "off"], quiet.irq_steering),
    choice!("vfio-irqs", VfioIrqs["float", "own"], quiet.vfio_irqs),
    choice!(
        "latency-allowed",
        LatencyLevel["default", "low", "polling"],
        quiet.latency_allowed
    ),
    Key {
        name: "latency-low-us",
        allowed: &["1 to 10000"],
        set: |settings, value| {
            settings.quiet.latency_low_us = u32::try_from(number(value, 1..=10_000)?).ok()?;
            Some(())
        },
        get: |settings| Value::Integer(settings.quiet.latency_low_us.into()),
    },
    Key {
        name: "cpu-governor",
        allowed: &["keep", "the name of a governor"],
        set: |settings, value| {
            settings.quiet.cpu_governor = match value.as_str()? {
                KEEP => None,
                name if is_governor(name) => Some(name.to_owned()),
                _ => return None,
            };
            Some(())
        },
        get: |settings| settings.quiet.cpu_governor.as_deref().unwrap_or(KEEP).into(),
    },
    Key {
        name: "cache-monitoring",
        allowed: &["true", "false"],
        set: |settings, value| {
            settings.quiet.cache_monitoring = value.as_bool()?;
            Some(())
        },
        get: |settings| settings.quiet.cache_monitoring.into(),
    },
    Key {
        name: "ledger",
        allowed: &["true", "false"],
        set: |settings, value| {
            settings.ledger.kept = value.as_bool()?;
            Some(())
        },
        get: |settings| settings.ledger.kept.into(),
    },
    Key {
        name: "ledger-size",
        allowed: &["\"4M\" to \"16G\""],
        set: |settings, value| {
            settings.ledger.bytes = size(value.as_str()?)?;
            Some(())
        },
        get: |settings| size_text(settings.ledger.bytes).into(),
    },
    Key {
        name: "ledger-sample",
        allowed: &[OFF, "1 to 600 seconds of an hour or a day, such as \"10s/h\""],
        set: |settings, value| {
            settings.ledger.sample = match value.as_str()? {
                OFF => None,
                text => Some(Sample::parse(text)?),
            };
            Some(())
        },
        get: |settings| settings.ledger.sample.map_or(OFF.into(), Sample::text).into(),
    },
    choice!("publish", Publish["off", "nrt", "koordinator", "stelia"], publish),
    Key {
        name: "rebind-interval-s",
        allowed: &["0 to 86400"],
        set: |settings, value| {
            settings.rebind_interval = Duration::from_secs(number(value, 0..=86_400)?);
            Some(())
        },
        get: |settings| seconds(settings.rebind_interval),
    },
    Key {
        name: "audit-interval-s",
        allowed: &["1 to 3600"],
        set: |settings, value| {
            settings.audit_interval = Duration::from_secs(number(value, 1..=3600)?);
            Some(())
        },
        get: |settings| seconds(settings.audit_interval),
    },
];

/// The daemon never traces a VM's CPUs by itself.
const OFF: &str = "off";

/// The governor is not set.
const KEEP: &str = "keep";

/// The kernel's names have at most 15 bytes (`CPUFREQ_NAME_LEN`). Which there are, each policy says.
fn is_governor(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=15).contains(&name.len()) && name.bytes().all(plain)
}

pub(crate) fn number(value: &Value, range: RangeInclusive<u64>) -> Option<u64> {
    let number = u64::try_from(value.as_integer()?).ok()?;
    range.contains(&number).then_some(number)
}

fn seconds(interval: Duration) -> Value {
    Value::Integer(interval.as_secs().try_into().unwrap_or(i64::MAX))
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
