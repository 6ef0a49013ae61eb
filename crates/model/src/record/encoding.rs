//! The attributes: their names, and a record as texts and back.

use std::collections::BTreeMap;

use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::excerpt;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kernel::proc::TaskId;
use stelia_kubelet::PodUid;
use stelia_settings::{Isolation, Partition, PlacementPolicy, QuietRequest, TreeHome};

use super::{Adopted, Home, Phase, Record, UNPINNED, VcpuThread};

/// Version of the attributes' meaning. A scope with an unknown version is left alone.
const SCHEMA: &str = "1";
/// The version where steliad chose the CPUs: such a record has the attribute `allocation`.
const SCHEMA_ALLOCATED: &str = "2";
/// Written last: a record without it is incomplete.
pub const SCHEMA_ATTRIBUTE: &str = "schema";

/// Why attributes cannot be used as a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// No schema attribute: registration did not get far enough to record anything.
    #[error("there is no record")]
    Absent,
    /// Written by another version.
    #[error("the record has schema {0:?}, not {SCHEMA} or {SCHEMA_ALLOCATED}: left alone")]
    Schema(String),
    /// An attribute is missing or does not parse.
    #[error("attribute {0} of the record is missing or does not parse")]
    Attribute(&'static str),
    /// The pod that the record names, and the place where it was found.
    #[error("the record is of {0}, and was found as that of {1}")]
    Foreign(String, String),
}

fn task(text: &str) -> Option<TaskId> {
    let (id, start) = text.split_once(':')?;
    Some(TaskId {
        id: id.parse().ok()?,
        start: start.parse().ok()?,
    })
}

fn vcpu(text: &str) -> Option<VcpuThread> {
    let (index, rest) = text.split_once(':')?;
    let (task_text, cpu) = rest.rsplit_once(':')?;
    Some(VcpuThread {
        role: index.parse::<u32>().ok()?.into(),
        task: task(task_text)?,
        cpu: match cpu {
            UNPINNED => None,
            number => Some(number.parse().ok()?),
        },
    })
}

/// The suffix after the rule's name if the vCPUs stay where another program pins them.
const KEEP_SUFFIX: &str = " keep";

/// What is between the two where the rule wants no partition.
const CONTAINED: &str = " member";

/// A rule's name has no spaces.
fn adopted_text(adopted: &Adopted) -> String {
    let pinned = if adopted.pinned { CONTAINED } else { "" };
    let keeps = if adopted.keeps { KEEP_SUFFIX } else { "" };
    format!("{}{pinned}{keeps}", adopted.rule)
}

fn adopted(text: &str) -> Adopted {
    let (text, keeps) = match text.strip_suffix(KEEP_SUFFIX) {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let rule = text.strip_suffix(CONTAINED);
    Adopted {
        rule: rule.unwrap_or(text).to_owned(),
        keeps,
        pinned: rule.is_some(),
    }
}

/// `EXCLUSIVE of ENTRY`, and ` spare SPARE_SEPARATOR` where there are such; all in one, so that no crash parts them.
fn cpus_text(record: &Record) -> String {
    let mut text = format!("{} of {}", record.exclusive, record.entry);
    if !record.spare.is_empty() {
        text.push_str(&format!("{SPARE_SEPARATOR}{}", record.spare));
    }
    text
}

/// The exclusive CPUs, the entry and the spare ones.
fn cpus(text: &str) -> Option<(CpuSet, CpuSet, CpuSet)> {
    let (text, spare) = text.split_once(SPARE_SEPARATOR).unwrap_or((text, ""));
    let (exclusive, entry) = text.split_once(" of ")?;
    Some((exclusive.parse().ok()?, entry.parse().ok()?, spare.parse().ok()?))
}

const SPARE_SEPARATOR: &str = " spare ";

/// Whether a vCPU's property may have this name: what separates names in `vcpu-props` cannot be part of one.
pub fn is_prop_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

/// The text of `vcpu-props`: `0 core-id=1 socket-id=0,1 …`. The kernel allows 64 KiB an attribute, which
/// holds over a thousand vCPUs with all their properties.
fn props_text(props: &BTreeMap<u32, BTreeMap<String, i64>>) -> String {
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

/// The kernel's limit of one attribute, in bytes (`XATTR_SIZE_MAX`).
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;
/// Its limit of all `user.` attributes of a cgroup, in bytes (`KERNFS_USER_XATTR_SIZE_LIMIT`); one that is being
/// replaced counts twice.
const MAX_ALL_ATTRIBUTES_BYTES: usize = 128 << 10;

impl Record {
    /// Why the kernel would not take the record; `None` where it does. Some 800 vCPUs with all their properties fit, on CPUs that
    /// are nowhere side by side.
    pub fn too_large(&self) -> Option<String> {
        self.too_large_beside(0)
    }

    /// The same if other attributes of the cgroup have `others` bytes.
    pub(crate) fn too_large_beside(&self, others: usize) -> Option<String> {
        let attributes = self.attributes();
        let longest = attributes
            .iter()
            .map(|(_, value)| value.len())
            .max()
            .unwrap_or_default();
        let all: usize = attributes.iter().map(|(_, value)| value.len()).sum();
        (longest > MAX_ATTRIBUTE_BYTES || others + all + longest > MAX_ALL_ATTRIBUTES_BYTES).then(|| {
            format!(
                "the record of {} vCPUs takes {all} bytes, {longest} in one attribute: more than the kernel keeps on a cgroup",
                self.vcpus.len()
            )
        })
    }

    /// The attributes in the order in which they must be written, those that changed as well as all of them. A crash in
    /// between leaves a record that the next daemon can go on from: where the vCPUs go comes before the CPUs, which
    /// come before the phase that promises them; the schema, which makes the rest valid, is last.
    pub fn attributes(&self) -> Vec<(&'static str, String)> {
        let schema = match self.allocation {
            None => SCHEMA,
            Some(_) => SCHEMA_ALLOCATED,
        };
        let mut attributes = vec![
            ("pod-uid", self.pod.to_string()),
            ("container", self.container.clone()),
            ("origin", self.origin.to_string()),
            (
                "anchor",
                self.anchor
                    .map_or_else(String::new, |anchor| format!("{}:{}", anchor.id, anchor.start)),
            ),
            ("mems", self.mems.to_string()),
            ("registered-us", self.registered_us.to_string()),
        ];
        // Plain strings, numbers and lists: it cannot fail.
        let text = |allocation| serde_json::to_string(allocation).ok();
        // What an instance in stelia.slice leaves out stays a part of the format, whatever the setting's default is.
        let home = (self.home != Home::Scope).then(|| self.home.tree().name().to_owned());
        let container = (self.home == Home::Container).then(|| self.home.isolation().name().to_owned());
        let optional = [
            ("tree", home),
            ("isolation", container),
            ("adopted", self.adopted.as_ref().map(adopted_text)),
            ("allocation", self.allocation.as_ref().and_then(text)),
            ("pod-pool", self.pod_pool.as_ref().map(CpuSet::to_string)),
            ("scheduled", self.scheduled.then(|| "yes".to_owned())),
            ("refused", self.refused.then(|| "yes".to_owned())),
            ("devices", (!self.devices.is_empty()).then(|| self.devices.to_string())),
            ("quiet", Some(self.quiet.text()).filter(|text| !text.is_empty())),
        ];
        attributes.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let vcpus: Vec<String> = self.vcpus.iter().map(VcpuThread::to_string).collect();
        attributes.extend([
            ("vcpu-props", props_text(&self.props)),
            ("placement", self.placement.name().to_owned()),
            ("partition", self.partition.name().to_owned()),
            ("vcpus", vcpus.join(",")),
            ("exclusive-cpus", cpus_text(self)),
            ("isolated-us", self.isolated_us.to_string()),
            ("phase", self.phase.name().to_owned()),
            (SCHEMA_ATTRIBUTE, schema.to_owned()),
        ]);
        attributes
    }

    /// Read the attributes back.
    ///
    /// # Errors
    /// [`RecordError`]: a record is used as a whole or not at all.
    pub fn parse(attributes: &BTreeMap<String, String>) -> Result<Self, RecordError> {
        let is_allocated = match attributes.get(SCHEMA_ATTRIBUTE).map(String::as_str) {
            None => return Err(RecordError::Absent),
            Some(SCHEMA) => false,
            Some(SCHEMA_ALLOCATED) => true,
            Some(other) => return Err(RecordError::Schema(excerpt(other))),
        };
        let vcpus = |text: &str| match text {
            "" => Some(Vec::new()),
            text => text.split(',').map(vcpu).collect(),
        };
        let (exclusive, entry, spare) = field(attributes, "exclusive-cpus", cpus)?;
        let allocation = is_allocated
            .then(|| field(attributes, "allocation", |text| serde_json::from_str(text).ok()))
            .transpose()?;
        let tree = optional(attributes, "tree", TreeHome::parse)?.unwrap_or(TreeHome::Slice);
        let isolation = optional(attributes, "isolation", Isolation::parse)?.unwrap_or_default();
        let partition = field(attributes, "partition", Partition::parse)?;
        // No isolated partition is made of a whole container: see `home/container.rs` in the crate `stelia-decide`.
        let home = Home::parse(tree, isolation)
            .filter(|home| *home != Home::Container || partition != Partition::Isolated)
            .ok_or(RecordError::Attribute("isolation"))?;
        Ok(Self {
            home,
            adopted: attributes.get("adopted").map(|text| adopted(text)),
            allocation,
            pod_pool: optional(attributes, "pod-pool", |text| text.parse().ok())?,
            scheduled: attributes.contains_key("scheduled"),
            refused: attributes.contains_key("refused"),
            devices: optional(attributes, "devices", |text| text.parse().ok())?.unwrap_or_default(),
            quiet: optional(attributes, "quiet", QuietRequest::parse)?.unwrap_or_default(),
            pod: field(attributes, "pod-uid", |text| PodUid::parse(text).ok())?,
            container: field(attributes, "container", |text| Some(text.to_owned()))?,
            origin: field(attributes, "origin", CgroupPath::parse)?,
            anchor: field(attributes, "anchor", |text| match (text, tree) {
                ("", TreeHome::InPlace) => Some(None),
                _ => Some(Some(task(text)?)),
            })?,
            exclusive,
            spare,
            entry,
            mems: field(attributes, "mems", |text| text.trim().parse().ok())?,
            vcpus: field(attributes, "vcpus", vcpus)?,
            props: field(attributes, "vcpu-props", props)?,
            placement: field(attributes, "placement", PlacementPolicy::parse)?,
            partition,
            registered_us: field(attributes, "registered-us", |text| text.parse().ok())?,
            isolated_us: field(attributes, "isolated-us", |text| text.parse().ok())?,
            phase: field(attributes, "phase", Phase::parse)?,
        })
    }
}

/// A part of the record that every record has.
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

/// A part of the record that not every record has.
fn optional<T>(
    attributes: &BTreeMap<String, String>,
    name: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, RecordError> {
    if attributes.contains_key(name) {
        field(attributes, name, parse).map(Some)
    } else {
        Ok(None)
    }
}
