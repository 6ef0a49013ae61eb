//! Every setting: its default in [`Settings`] and [`Policies`], its name, check and printing in [`KEYS`].

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stelia_koordinator::allocator::{
    AllocatorPolicies, CpuBindPolicy, CpuExclusivePolicy, CpuSource, NumaAllocateStrategy, NumaTopologyAlignmentPolicy,
    Qos, RequiredBind,
};
use stelia_kubelet::home::AUTO;
use toml::Value;

use crate::device_plugin::{VMS, device_nodes};
use crate::key::{Key, choice, key};
use crate::ledger::{size, size_text};
use crate::{
    AdoptRule, DevicePluginSettings, FloatPolicy, IrqSteering, Isolation, LatencyLevel, LedgerSettings, Partition,
    PlacementPolicy, Publish, QuietSettings, Sample, TreeChoice, VfioIrqs,
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
    /// The daemon itself uses none of these.
    pub device_plugin: DevicePluginSettings,
    /// Least time from the beginning of one rebind job to that of the next.
    pub rebind_interval: Duration,
    pub audit_interval: Duration,
    /// How long a VM keeps CPUs that its container no longer has while vCPUs are unplugged; zero: not at all.
    pub unplug_timeout: Duration,
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
    pub tree: TreeChoice,
    /// What a pod may ask for that registers itself. A rule adopts as it says.
    pub isolation_allowed: Isolation,
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
            device_plugin: DevicePluginSettings::default(),
            rebind_interval: Duration::from_secs(60),
            audit_interval: Duration::from_secs(30),
            unplug_timeout: Duration::from_secs(10),
        }
    }
}

/// The allocator's defaults are in its crate: they are those of Koordinator's documents.
impl Default for Policies {
    fn default() -> Self {
        Self {
            placement: PlacementPolicy::Guest,
            partition: None,
            float: FloatPolicy::default(),
            tree: TreeChoice::Slice,
            isolation_allowed: Isolation::Vcpus,
            float_min_cpus: 2,
            float_cpu_max: "max".into(),
            allocator: AllocatorPolicies::default(),
            adopt: Vec::new(),
        }
    }
}

/// Every key, in the order of `--print-config` and of `packaging/steliad.toml`.
pub(crate) const KEYS: [Key<Settings>; 33] = [
    key!(
        "kubelet-root",
        ["auto", "an absolute path"],
        kubelet_root,
        |value| {
            let path = Path::new(value.as_str()?);
            let good = path.is_absolute() || path == Path::new(AUTO);
            good.then(|| path.to_owned())
        },
        |path| path.display().to_string().into()
    ),
    key!(
        "runtime-state",
        ["a list of at most 16 absolute paths"],
        runtime_state,
        |value| {
            let words = value.as_array().filter(|words| words.len() <= MAX_RUNTIME_STATES)?;
            let folders = words.iter().map(|word| {
                let path = Path::new(word.as_str()?);
                path.is_absolute().then(|| path.to_owned())
            });
            folders.collect()
        },
        |folders| paths(folders)
    ),
    choice!("float-policy", FloatPolicy, policies.float),
    key!(
        "float-min-cpus",
        ["1 to 1024"],
        policies.float_min_cpus,
        |value| usize::try_from(number(value, 1..=1024)?).ok(),
        |least| Value::Integer((*least).try_into().unwrap_or(i64::MAX))
    ),
    key!(
        "float-cpu-max",
        [
            "\"max\"",
            "a quota of at least 1000 and a period of 1000 to 1000000 microseconds",
        ],
        policies.float_cpu_max,
        |value| cpu_max(value.as_str()?),
        |max| max.as_str().into()
    ),
    choice!("placement", PlacementPolicy, policies.placement),
    key!(
        "partition",
        ["auto", "isolated", "root", "member"],
        policies.partition,
        |value| match value.as_str()? {
            "auto" => Some(None),
            name => Partition::parse(name).map(Some),
        },
        |partition| partition.map_or("auto", Partition::name).into()
    ),
    choice!("tree", TreeChoice, policies.tree),
    choice!("isolation-allowed", Isolation, policies.isolation_allowed),
    choice!("cpu-source", CpuSource, policies.allocator.source),
    key!(
        "reserved-cpus",
        ["a CPU list, such as \"0-1,8\""],
        policies.allocator.reserved,
        |value| value.as_str()?.parse().ok(),
        |cpus| cpus.to_string().into()
    ),
    choice!("qos", Qos, policies.allocator.qos),
    choice!(
        "cpu-bind-policy",
        CpuBindPolicy[["FullPCPUs", "SpreadByPCPUs"]],
        policies.allocator.bind
    ),
    choice!("required-cpu-bind-policy", RequiredBind, policies.allocator.required),
    choice!(
        "cpu-exclusive-policy",
        CpuExclusivePolicy[["None", "PCPULevel", "NUMANodeLevel"]],
        policies.allocator.exclusive
    ),
    choice!(
        "numa-allocate-strategy",
        NumaAllocateStrategy,
        policies.allocator.strategy
    ),
    choice!(
        "numa-topology-alignment-policy",
        NumaTopologyAlignmentPolicy,
        policies.allocator.alignment
    ),
    choice!("irq-steering", IrqSteering, quiet.irq_steering),
    choice!("vfio-irqs", VfioIrqs, quiet.vfio_irqs),
    choice!("latency-allowed", LatencyLevel, quiet.latency_allowed),
    key!(
        "latency-low-us",
        ["1 to 10000"],
        quiet.latency_low_us,
        |value| u32::try_from(number(value, 1..=10_000)?).ok(),
        |microseconds| Value::Integer((*microseconds).into())
    ),
    key!(
        "cpu-governor",
        ["keep", "the name of a governor"],
        quiet.cpu_governor,
        |value| match value.as_str()? {
            KEEP => Some(None),
            name => is_governor(name).then(|| Some(name.to_owned())),
        },
        |governor| governor.as_deref().unwrap_or(KEEP).into()
    ),
    key!(
        "cache-monitoring",
        ["true", "false"],
        quiet.cache_monitoring,
        Value::as_bool,
        |on| (*on).into()
    ),
    key!("ledger", ["true", "false"], ledger.kept, Value::as_bool, |on| (*on)
        .into()),
    key!(
        "ledger-size",
        ["\"4M\" to \"16G\""],
        ledger.bytes,
        |value| size(value.as_str()?),
        |bytes| size_text(*bytes).into()
    ),
    key!(
        "ledger-sample",
        [OFF, "1 to 600 seconds of an hour or a day, such as \"10s/h\""],
        ledger.sample,
        |value| match value.as_str()? {
            OFF => Some(None),
            text => Sample::parse(text).map(Some),
        },
        |sample| sample.map_or(OFF.into(), Sample::text).into()
    ),
    choice!("publish", Publish, publish),
    key!(
        "device-plugin-vms",
        ["auto", "1 to 1024"],
        device_plugin.vms,
        |value| match value.as_str() {
            Some(text) => (text == AUTO).then_some(None),
            None => u32::try_from(number(value, VMS)?).ok().map(Some),
        },
        |vms| vms.map_or(AUTO.into(), |vms| Value::Integer(vms.into()))
    ),
    key!(
        "device-plugin-device-nodes",
        ["a list of at most 16 different absolute paths below /dev"],
        device_plugin.device_nodes,
        device_nodes,
        |nodes| paths(nodes)
    ),
    key!(
        "device-plugin-cdi",
        ["true", "false"],
        device_plugin.cdi,
        Value::as_bool,
        |on| (*on).into()
    ),
    key!(
        "rebind-interval-s",
        ["0 to 86400"],
        rebind_interval,
        |value| number(value, 0..=86_400).map(Duration::from_secs),
        |interval| seconds(*interval)
    ),
    key!(
        "audit-interval-s",
        ["1 to 3600"],
        audit_interval,
        |value| number(value, 1..=3600).map(Duration::from_secs),
        |interval| seconds(*interval)
    ),
    key!(
        "unplug-timeout-s",
        ["0 to 60"],
        unplug_timeout,
        |value| number(value, 0..=60).map(Duration::from_secs),
        |timeout| seconds(*timeout)
    ),
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

fn paths(paths: &[PathBuf]) -> Value {
    let words = paths.iter().map(|path| path.display().to_string());
    words.collect::<Vec<String>>().into()
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
