//! The attributes: their names, and a record as texts and back.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;
use stelia_node::cgroup::CgroupPath;
use stelia_node::proc::TaskId;
use stelia_settings::{Partition, PlacementPolicy};
use stelia_text::excerpt::excerpt;

use super::{Phase, Record, UNPINNED, VcpuThread};

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
/// Attribute of [`Record::pod_pool`]; absent while that is not known, and where the pod has no CPUs of its own.
pub const POD_POOL_ATTRIBUTE: &str = "pod-pool";
/// Attribute of [`Record::scheduled`]; absent where it is not.
const SCHEDULED_ATTRIBUTE: &str = "scheduled";
/// Attribute of [`Record::isolated_us`].
pub const ISOLATED_ATTRIBUTE: &str = "isolated-us";

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
        role: index.parse::<u32>().ok()?.into(),
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

/// What the kernel takes of one attribute, in bytes (`XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;
/// What it takes of a cgroup's `user.` attributes together (`KERNFS_USER_XATTR_SIZE_LIMIT`); one that is written anew counts twice
/// meanwhile.
const ALL: usize = 128 << 10;

impl Record {
    /// Why the kernel would not take the record; `None` where it does. Some 800 vCPUs with all their properties fit, on CPUs that
    /// are nowhere side by side.
    pub fn too_large(&self) -> Option<String> {
        let attributes = self.attributes();
        let longest = attributes
            .iter()
            .map(|(_, value)| value.len())
            .max()
            .unwrap_or_default();
        let all: usize = attributes.iter().map(|(_, value)| value.len()).sum();
        (longest > LONGEST || all + longest > ALL).then(|| {
            format!(
                "the record of {} vCPUs takes {all} bytes, {longest} in one attribute: more than the kernel keeps on a cgroup",
                self.vcpus.len()
            )
        })
    }

    /// The attributes in the order in which they must be written, those that changed as well as all of them. Whoever dies in
    /// between leaves something to go on from: where the vCPUs go comes before the CPUs, which come before the phase that
    /// promises them; the schema, which makes the rest valid, is last.
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
            ("mems", self.mems.clone()),
            ("registered-us", self.registered_us.to_string()),
        ];
        // Plain strings, numbers and lists: it cannot fail.
        let text = |allocation| serde_json::to_string(allocation).ok();
        let allocation = self.allocation.as_ref().and_then(text);
        attributes.extend(allocation.map(|text| (ALLOCATION_ATTRIBUTE, text)));
        let pool = self.pod_pool.as_ref().map(CpuSet::to_string);
        attributes.extend(pool.map(|text| (POD_POOL_ATTRIBUTE, text)));
        let scheduled = self.scheduled.then(|| (SCHEDULED_ATTRIBUTE, "yes".to_owned()));
        attributes.extend(scheduled);
        attributes.extend([
            (PROPS_ATTRIBUTE, props_text(&self.props)),
            (PLACEMENT_ATTRIBUTE, self.placement.name().to_owned()),
            (PARTITION_ATTRIBUTE, self.partition.name().to_owned()),
            (VCPUS_ATTRIBUTE, vcpus_text(&self.vcpus)),
            (EXCLUSIVE_ATTRIBUTE, exclusive_text(&self.exclusive, &self.entry)),
            (ISOLATED_ATTRIBUTE, self.isolated_us.to_string()),
            (PHASE_ATTRIBUTE, self.phase.name().to_owned()),
            (SCHEMA_ATTRIBUTE, schema.to_owned()),
        ]);
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
        let pod_pool = match attributes.get(POD_POOL_ATTRIBUTE) {
            Some(_) => Some(field(attributes, POD_POOL_ATTRIBUTE, |text| text.parse().ok())?),
            None => None,
        };
        Ok(Self {
            allocation,
            pod_pool,
            scheduled: attributes.contains_key(SCHEDULED_ATTRIBUTE),
            pod: field(attributes, "pod-uid", |text| PodUid::parse(text).ok())?,
            container: field(attributes, "container", |text| Some(text.to_owned()))?,
            origin: field(attributes, "origin", CgroupPath::parse)?,
            anchor: field(attributes, "anchor", task)?,
            exclusive,
            entry,
            mems: field(attributes, "mems", |text| Some(text.to_owned()))?,
            vcpus: field(attributes, VCPUS_ATTRIBUTE, vcpus)?,
            props: field(attributes, PROPS_ATTRIBUTE, props)?,
            placement: field(attributes, PLACEMENT_ATTRIBUTE, PlacementPolicy::parse)?,
            partition: field(attributes, PARTITION_ATTRIBUTE, Partition::parse)?,
            registered_us: field(attributes, "registered-us", |text| text.parse().ok())?,
            isolated_us: field(attributes, ISOLATED_ATTRIBUTE, |text| text.parse().ok())?,
            phase: field(attributes, PHASE_ATTRIBUTE, Phase::parse)?,
        })
    }
}
