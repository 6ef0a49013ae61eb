//! What is known of an instance across restarts: the `user.stelia.*` attributes of its scope's directory.

use std::collections::BTreeMap;
use std::fmt;

use crate::alloc::Qos;
use crate::cgroup::CgroupPath;
use crate::cpuset::CpuSet;
use crate::excerpt::excerpt;
use crate::kubelet::PodUid;
use crate::plan::allocator::Allocation;
use crate::plan::partition::Partition;
use crate::plan::placement::{IOTHREADS, Policy, Vcpu};
use crate::proc::TaskId;

/// Version of the attributes' meaning. A scope with one that is not known is left alone.
pub const SCHEMA: &str = "1";
/// Version of the attributes of an instance whose CPUs steliad chose: a daemon that knows kubelet's only leaves it alone.
pub const SCHEMA_ALLOCATED: &str = "2";
/// The attribute that says the others are whole: written last.
pub const SCHEMA_ATTRIBUTE: &str = "schema";
/// Attribute of [`Record::phase`].
pub const PHASE_ATTRIBUTE: &str = "phase";
/// Attribute of [`Record::vcpus`].
pub const VCPUS_ATTRIBUTE: &str = "vcpus";
/// Attribute of [`Record::props`].
pub const PROPS_ATTRIBUTE: &str = "vcpu-props";
/// Attribute of [`Record::placement`].
pub const PLACEMENT_ATTRIBUTE: &str = "placement";
/// Attribute of [`Record::partition`].
pub const PARTITION_ATTRIBUTE: &str = "partition";
/// Attribute of [`Record::exclusive`] and [`Record::entry`]: one, because they change together.
pub const EXCLUSIVE_ATTRIBUTE: &str = "exclusive-cpus";
/// Attribute of [`Record::allocation`]; absent where kubelet chose the CPUs.
pub const ALLOCATION_ATTRIBUTE: &str = "allocation";
/// Attribute of [`Record::isolated_us`].
pub const ISOLATED_ATTRIBUTE: &str = "isolated-us";

/// What stands for "not pinned" in [`VCPUS_ATTRIBUTE`].
const UNPINNED: &str = "-";

/// Where an instance is in its life. The names are those of the D-Bus property `State`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The scope exists; the container's processes are being moved to float.
    Registered,
    /// Everything but the anchor is in float.
    Floating,
    /// vCPU threads are handed over: they are being moved, pinned and isolated. On D-Bus this is still `floating`.
    Attaching,
    /// The vCPU threads are in a partition of their own, as read back from the kernel.
    Isolated,
    /// The vCPU threads are pinned, but no partition keeps others out: the weaker promise.
    Contained,
    /// Everything is being given back.
    Leaving,
}

impl Phase {
    /// The attribute's text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Floating => "floating",
            Self::Attaching => "attaching",
            Self::Isolated => "isolated",
            Self::Contained => "contained",
            Self::Leaving => "leaving",
        }
    }

    /// The D-Bus property's text.
    pub fn state(self) -> &'static str {
        if self == Self::Attaching {
            Self::Floating.name()
        } else {
            self.name()
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [
            Self::Registered,
            Self::Floating,
            Self::Attaching,
            Self::Isolated,
            Self::Contained,
            Self::Leaving,
        ]
        .into_iter()
        .find(|phase| phase.name() == text)
    }

    /// Whether the vCPU threads belong in `vcpu/`.
    pub fn has_vcpus(self) -> bool {
        matches!(self, Self::Attaching | Self::Isolated | Self::Contained)
    }
}

/// A vCPU thread and its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct VcpuThread {
    /// vCPU index; from [`IOTHREADS`] on it is an I/O thread that is pinned too.
    pub index: u32,
    /// The thread on the host.
    pub task: TaskId,
    /// The CPU it is pinned to; `None` where there are more vCPUs than CPUs: it may use the whole set.
    pub cpu: Option<u32>,
}

impl VcpuThread {
    /// `vCPU 3` or `I/O thread 0`.
    pub fn what(&self) -> String {
        match self.index.checked_sub(IOTHREADS) {
            Some(number) => format!("I/O thread {number}"),
            None => format!("vCPU {}", self.index),
        }
    }
}

impl fmt::Display for VcpuThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:", self.index, self.task.id, self.task.start)?;
        match self.cpu {
            Some(cpu) => write!(f, "{cpu}"),
            None => f.write_str(UNPINNED),
        }
    }
}

/// An instance as recorded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Record {
    /// The pod.
    pub pod: PodUid,
    /// The container's name in kubelet's state.
    pub container: String,
    /// The container's own cgroup below kubepods.
    pub origin: CgroupPath,
    /// The placeholder that stays in the origin.
    pub anchor: TaskId,
    /// The CPUs that are this container's alone: its entry, less what other containers of the pod use of it.
    pub exclusive: CpuSet,
    /// The container's entry in kubelet's state when `exclusive` was taken from it; where steliad chose the CPUs, the same.
    pub entry: CpuSet,
    /// How steliad chose the CPUs; `None` where kubelet did.
    pub allocation: Option<Allocation>,
    /// The origin's `cpuset.mems` text; empty = not restricted.
    pub mems: String,
    /// Where the instance is in its life.
    pub phase: Phase,
    /// The vCPU threads handed over; empty before AttachVcpus.
    pub vcpus: Vec<VcpuThread>,
    /// What QMP says of each vCPU's place in the guest, by index: needed to place them anew when the CPUs change.
    pub props: BTreeMap<u32, BTreeMap<String, i64>>,
    /// How the vCPUs were placed.
    pub placement: Policy,
    /// The kind of partition this instance has.
    pub partition: Partition,
    /// Microseconds since the epoch.
    pub registered_us: u64,
    /// Microseconds since the epoch; 0 before isolation.
    pub isolated_us: u64,
}

/// A scope's attributes cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No schema attribute: registration did not get far enough to record anything.
    #[error("the scope has no record")]
    Absent,
    /// Written by another version.
    #[error("the scope's record has schema {0:?}, not {SCHEMA} or {SCHEMA_ALLOCATED}: left alone")]
    Schema(String),
    /// An attribute is missing or does not parse.
    #[error("attribute user.stelia.{0} of the scope is missing or does not parse")]
    Attribute(&'static str),
}

fn task(text: &str) -> Option<TaskId> {
    let (id, start) = text.split_once(':')?;
    Some(TaskId {
        id: id.parse().ok()?,
        start: start.parse().ok()?,
    })
}

fn vcpu(text: &str) -> Option<VcpuThread> {
    let mut parts = text.split(':');
    let mut next = || parts.next();
    let (index, id, start, cpu) = (next()?, next()?, next()?, next()?);
    let task = TaskId {
        id: id.parse().ok()?,
        start: start.parse().ok()?,
    };
    let thread = VcpuThread {
        index: index.parse().ok()?,
        task,
        cpu: match cpu {
            UNPINNED => None,
            number => Some(number.parse().ok()?),
        },
    };
    parts.next().is_none().then_some(thread)
}

/// The text of [`VCPUS_ATTRIBUTE`].
pub fn vcpus_text(vcpus: &[VcpuThread]) -> String {
    vcpus.iter().map(VcpuThread::to_string).collect::<Vec<_>>().join(",")
}

/// The text of [`EXCLUSIVE_ATTRIBUTE`].
pub fn exclusive_text(exclusive: &CpuSet, entry: &CpuSet) -> String {
    format!("{exclusive} of {entry}")
}

/// Whether a vCPU's property may have this name: what separates names in [`PROPS_ATTRIBUTE`] cannot be part of one.
pub fn is_prop_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

/// The text of [`PROPS_ATTRIBUTE`]: `0 core-id=1 socket-id=0,1 …`. The kernel allows 64 KiB an attribute, which
/// holds over a thousand vCPUs with all their properties.
pub fn props_text(props: &BTreeMap<u32, BTreeMap<String, i64>>) -> String {
    let one = |(index, props): (&u32, &BTreeMap<String, i64>)| {
        let pairs = props.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("{index}{}", pairs.collect::<String>())
    };
    props.iter().map(one).collect::<Vec<_>>().join(",")
}

fn props(text: &str) -> Option<BTreeMap<u32, BTreeMap<String, i64>>> {
    let one = |text: &str| {
        let (index, rest) = text.split_once(' ').unwrap_or((text, ""));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Some((
            index.parse().ok()?,
            rest.split_whitespace().map(pair).collect::<Option<_>>()?,
        ))
    };
    text.split(',').filter(|part| !part.is_empty()).map(one).collect()
}

impl Record {
    /// The vCPUs as they were handed over, for placing them.
    pub fn guest(&self) -> Vec<Vcpu> {
        let one = |thread: &VcpuThread| Vcpu {
            index: thread.index,
            props: self.props.get(&thread.index).cloned().unwrap_or_default(),
        };
        self.vcpus.iter().map(one).collect()
    }

    /// The class, where steliad's own allocator decides; `None` where kubelet chose the CPUs.
    pub fn qos(&self) -> Option<Qos> {
        self.allocation.as_ref().map(|allocation| allocation.qos)
    }

    /// The attributes in the order they must be written: the schema, which makes the rest valid, comes last.
    pub fn attributes(&self) -> Vec<(&'static str, String)> {
        let schema = match self.allocation {
            None => SCHEMA,
            Some(_) => SCHEMA_ALLOCATED,
        };
        let mut attributes = vec![
            ("pod-uid", self.pod.to_string()),
            ("container", self.container.clone()),
            ("origin", self.origin.to_string()),
            ("anchor", format!("{}:{}", self.anchor.id, self.anchor.start)),
            (EXCLUSIVE_ATTRIBUTE, exclusive_text(&self.exclusive, &self.entry)),
            ("mems", self.mems.clone()),
            (VCPUS_ATTRIBUTE, vcpus_text(&self.vcpus)),
            (PROPS_ATTRIBUTE, props_text(&self.props)),
            (PLACEMENT_ATTRIBUTE, self.placement.name().to_owned()),
            (PARTITION_ATTRIBUTE, self.partition.name().to_owned()),
            ("registered-us", self.registered_us.to_string()),
            (ISOLATED_ATTRIBUTE, self.isolated_us.to_string()),
            (PHASE_ATTRIBUTE, self.phase.name().to_owned()),
        ];
        // Plain strings, numbers and lists: it cannot fail.
        let text = |allocation| serde_json::to_string(allocation).ok();
        let allocation = self.allocation.as_ref().and_then(text);
        attributes.extend(allocation.map(|text| (ALLOCATION_ATTRIBUTE, text)));
        attributes.push((SCHEMA_ATTRIBUTE, schema.to_owned()));
        attributes
    }

    /// Read the attributes back.
    ///
    /// # Errors
    /// [`RecordError`]; nothing of a record in doubt is used.
    pub fn parse(attributes: &BTreeMap<String, String>) -> Result<Self, RecordError> {
        match attributes.get(SCHEMA_ATTRIBUTE).map(String::as_str) {
            None => return Err(RecordError::Absent),
            Some(SCHEMA | SCHEMA_ALLOCATED) => {}
            Some(other) => return Err(RecordError::Schema(excerpt(other))),
        }
        fn field<T>(
            attributes: &BTreeMap<String, String>,
            name: &'static str,
            parse: impl FnOnce(&str) -> Option<T>,
        ) -> Result<T, RecordError> {
            attributes
                .get(name)
                .and_then(|text| parse(text))
                .ok_or(RecordError::Attribute(name))
        }
        let vcpus = |text: &str| -> Option<Vec<VcpuThread>> {
            if text.is_empty() {
                Some(Vec::new())
            } else {
                text.split(',').map(vcpu).collect()
            }
        };
        let (exclusive, entry) = field(attributes, EXCLUSIVE_ATTRIBUTE, |text| {
            let (exclusive, entry) = text.split_once(" of ")?;
            Some((exclusive.parse().ok()?, entry.parse().ok()?))
        })?;
        let allocation = match attributes.get(SCHEMA_ATTRIBUTE).map(String::as_str) {
            Some(SCHEMA_ALLOCATED) => Some(field(attributes, ALLOCATION_ATTRIBUTE, |text| {
                serde_json::from_str(text).ok()
            })?),
            _ => None,
        };
        Ok(Self {
            allocation,
            pod: field(attributes, "pod-uid", |text| PodUid::parse(text).ok())?,
            container: field(attributes, "container", |text| Some(text.to_owned()))?,
            origin: field(attributes, "origin", CgroupPath::parse)?,
            anchor: field(attributes, "anchor", task)?,
            exclusive,
            entry,
            mems: field(attributes, "mems", |text| Some(text.to_owned()))?,
            vcpus: field(attributes, VCPUS_ATTRIBUTE, vcpus)?,
            props: field(attributes, PROPS_ATTRIBUTE, props)?,
            placement: field(attributes, PLACEMENT_ATTRIBUTE, Policy::parse)?,
            partition: field(attributes, PARTITION_ATTRIBUTE, Partition::parse)?,
            registered_us: field(attributes, "registered-us", |text| text.parse().ok())?,
            isolated_us: field(attributes, ISOLATED_ATTRIBUTE, |text| text.parse().ok())?,
            phase: field(attributes, PHASE_ATTRIBUTE, Phase::parse)?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record() -> Record {
        Record {
            pod: PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap(),
            container: "instance".into(),
            origin: CgroupPath::parse("/kubepods.slice/x.scope").unwrap(),
            anchor: TaskId { id: 40, start: 400 },
            exclusive: "2-3".parse().unwrap(),
            entry: "2-3".parse().unwrap(),
            allocation: None,
            mems: "0".into(),
            phase: Phase::Isolated,
            vcpus: vec![
                VcpuThread {
                    index: 0,
                    task: TaskId { id: 50, start: 500 },
                    cpu: Some(2),
                },
                VcpuThread {
                    index: 1,
                    task: TaskId { id: 51, start: 501 },
                    cpu: None,
                },
            ],
            props: BTreeMap::from([(0, BTreeMap::from([("core-id".into(), 1), ("socket-id".into(), 0)]))]),
            placement: Policy::Linear,
            partition: Partition::Isolated,
            registered_us: 7,
            isolated_us: 8,
        }
    }

    /// The same with CPUs that steliad chose.
    pub(crate) fn allocated() -> Record {
        let allocation = r#"{"qos":"LSR","cpus":2,"bind":"FullPCPUs","required":false,"exclusive":"None","strategy":"MostAllocated",
            "alignment":"None","limit_milli":0,"numa_node":null,"exclusivity":"not-asked","explanation":["a","b"]}"#;
        Record {
            allocation: Some(serde_json::from_str(allocation).unwrap()),
            ..record()
        }
    }

    fn map(record: &Record) -> BTreeMap<String, String> {
        record
            .attributes()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        for record in [record(), allocated()] {
            assert_eq!(Record::parse(&map(&record)), Ok(record));
        }
    }

    #[test]
    fn cpus_of_ours_are_of_a_schema_that_who_knows_kubelets_only_leaves_alone() {
        assert_eq!(map(&record())["schema"], "1");
        let mut attributes = map(&allocated());
        assert_eq!(attributes["schema"], "2");
        attributes.remove(ALLOCATION_ATTRIBUTE);
        assert_eq!(Record::parse(&attributes), Err(RecordError::Attribute("allocation")));
    }

    #[test]
    fn a_record_cut_short_at_any_attribute_is_absent() {
        let all = allocated().attributes();
        for cut in 0..all.len() {
            let part = all[..cut]
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect();
            assert_eq!(Record::parse(&part), Err(RecordError::Absent), "{cut}");
        }
    }

    #[test]
    fn a_newer_schema_is_named_and_not_read() {
        let mut attributes = map(&record());
        attributes.insert("schema".into(), "3".into());
        assert_eq!(Record::parse(&attributes), Err(RecordError::Schema("3".into())));
    }

    #[test]
    fn a_damaged_attribute_is_named() {
        let mut attributes = map(&record());
        attributes.insert("vcpus".into(), "0:1:2".into());
        assert_eq!(Record::parse(&attributes), Err(RecordError::Attribute("vcpus")));
    }
}
