//! Why isolation is degraded or a call failed: each reason names the pod whose details its text has, which decides
//! who may read it.

use std::fmt;

use serde::{Deserialize, Serialize};
use stelia_cpus::text::named;
use stelia_kubelet::PodUid;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The pod whose details (CPUs, paths, processes) are in the text; `None`: details of the node. JSON does not name it.
    #[serde(skip)]
    pub pod: Option<PodUid>,
    pub kind: ReasonKind,
    /// For the operator and for the pod itself.
    pub text: String,
    /// Whether it is of the whole node: each instance it concerns has it in the same words.
    pub of_node: bool,
}

named! {
    /// The kinds of reasons.
    pub enum ReasonKind {
        KubeletUnusable = "kubelet-unusable",
        /// kubelet's state has keys beside its entries that are not known.
        KubeletStateHasMore = "kubelet-state-has-more",
        /// No CPU is shared.
        NothingShared = "nothing-shared",
        /// The shared pool of the NUMA node that an LS instance runs on has no CPU.
        NodesPoolEmpty = "nodes-pool-empty",
        /// kubelet has no entry for the container any more.
        EntryGone = "entry-gone",
        /// kubelet gave the CPUs to another pod.
        Evicted = "evicted",
        /// The container's own cgroup is gone.
        OriginGone = "origin-gone",
        AnchorEnded = "anchor-ended",
        /// `cpuset.cpus` of the container's own cgroup differs from kubelet's entry.
        OriginDiffers = "origin-differs",
        /// The container's memory limit is below what the scope holds.
        MemoryHeld = "memory-held",
        ThreadEnded = "thread-ended",
        /// A vCPU thread is in a cgroup that is neither the instance's nor its container's.
        ThreadElsewhere = "thread-elsewhere",
        /// Exclusive CPUs of the instance are offline.
        CpusOffline = "cpus-offline",
        /// There are more vCPUs than CPUs: none is pinned.
        CpusShared = "cpus-shared",
        /// `cpuset.cpus.partition` of `vcpu/` reads otherwise than the recorded kind.
        PartitionDiffers = "partition-differs",
        /// inotify does not watch everything: everything is read every 2 s.
        Unwatched = "unwatched",
        /// Device interrupts are not kept off the CPUs of VMs.
        NotSteered = "not-steered",
        /// A device interrupt reaches the CPUs although it should not.
        Interrupts = "interrupts",
        /// What was ordered for the CPUs besides, such as a wake-up latency, could not be done.
        NotQuiet = "not-quiet",
        /// A step failed.
        NotDone = "not-done",
        /// A detail of an error, for operators and the pod it concerns.
        Detail = "detail",
    }
}

/// What an operator does about a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedy {
    pub text: &'static str,
    /// The section of `docs/troubleshooting.md` with more, as a link names it.
    pub section: &'static str,
}

impl ReasonKind {
    /// The remedy of a reason; `docs/troubleshooting.md` has the same text.
    pub fn cure(self) -> Remedy {
        let text = match self {
            Self::KubeletUnusable => "steliactl doctor says more; the cure depends on the message",
            Self::KubeletStateHasMore => "upgrade steliad; steliactl doctor names the keys",
            Self::NothingShared => "set reservedSystemCPUs; with strict-cpu-reservation leave CPUs unassigned",
            Self::NodesPoolEmpty => "steliactl map: which instances have that node's CPUs",
            Self::EntryGone | Self::Evicted => "restart the container",
            Self::OriginGone | Self::AnchorEnded => {
                "none is needed while the VM runs; restart the container when convenient"
            }
            Self::OriginDiffers => "if it stays: find out what writes there",
            Self::MemoryHeld => "none: the new limit follows when the VM has returned memory",
            Self::ThreadEnded => "none, if intended",
            Self::ThreadElsewhere => "move the process back to the container's own cgroup, and find what moved it",
            Self::CpusOffline => "echo 1 > /sys/devices/system/cpu/cpuN/online",
            Self::CpusShared => "fewer vCPUs by QEMU's -smp, or more CPUs for the pod",
            Self::PartitionDiffers => "find what else claims those CPUs, outside stelia.slice",
            Self::Unwatched => "raise sysctl fs.inotify.max_user_watches and max_user_instances",
            Self::NotSteered => "systemctl status steliad-quiet.socket steliad-quiet; steliactl noise says more",
            Self::Interrupts | Self::NotQuiet => "steliactl noise says what it is, and what can be done about it",
            Self::NotDone | Self::Detail => "journalctl -u steliad names each refused step with its path",
        };
        let section = match self {
            Self::KubeletUnusable | Self::NothingShared => "kubelets-file-cannot-be-used",
            Self::Evicted => "an-instance-stays-floating",
            _ => "isolated-but-degraded-is-not-empty",
        };
        Remedy { text, section }
    }

    /// The text for a pod that may not read the details, where the reason may concern every instance; `None`: other
    /// pods are not told at all.
    pub fn in_general(self) -> Option<&'static str> {
        match self {
            Self::KubeletUnusable => Some("kubelet's state cannot be used, float keeps its CPUs"),
            Self::KubeletStateHasMore => Some("kubelet's state has keys that steliad does not know"),
            Self::NothingShared => Some("the shared pool is empty, float keeps its CPUs"),
            Self::Evicted => Some("kubelet gave the CPUs to another pod: the vCPUs run on shared CPUs"),
            Self::Unwatched => Some("not everything on the node is watched: changes are found within 2 s"),
            Self::NotSteered => Some("device interrupts are not kept off the CPUs of VMs; steliad's journal says why"),
            Self::Interrupts => Some("device interrupts reach the CPUs; steliad's journal says which"),
            Self::NotDone => {
                Some("what the instances of the node share is not as it must be; steliad's journal says why")
            }
            Self::NodesPoolEmpty
            | Self::EntryGone
            | Self::OriginGone
            | Self::AnchorEnded
            | Self::OriginDiffers
            | Self::MemoryHeld
            | Self::ThreadEnded
            | Self::ThreadElsewhere
            | Self::CpusOffline
            | Self::CpusShared
            | Self::PartitionDiffers
            | Self::NotQuiet
            | Self::Detail => None,
        }
    }
}

impl Reason {
    /// A reason with details of a pod.
    pub fn of(pod: &PodUid, kind: ReasonKind, text: impl Into<String>) -> Self {
        Self {
            pod: Some(pod.clone()),
            kind,
            text: text.into(),
            of_node: false,
        }
    }

    /// A reason with details of the node.
    pub fn of_node(kind: ReasonKind, text: impl Into<String>) -> Self {
        Self {
            pod: None,
            kind,
            text: text.into(),
            of_node: true,
        }
    }

    /// What this pod may read of it.
    pub fn visible_to(&self, pod: &PodUid) -> Option<Self> {
        match &self.pod {
            Some(own) if own == pod => Some(self.clone()),
            _ => self.kind.in_general().map(|text| Self::of(pod, self.kind, text)),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a pod may read of reasons, without repetitions.
pub fn visible_to(reasons: &[Reason], pod: &PodUid) -> Vec<Reason> {
    let mut told: Vec<Reason> = Vec::new();
    for reason in reasons.iter().filter_map(|reason| reason.visible_to(pod)) {
        if !told.contains(&reason) {
            told.push(reason);
        }
    }
    told
}

/// The texts in one line.
pub fn joined(reasons: &[Reason]) -> String {
    let texts: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u32) -> PodUid {
        PodUid::parse(&format!("00000000-0000-4000-8000-{number:012}")).unwrap()
    }

    /// As a link to a heading is written.
    fn anchor(heading: &str) -> String {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    }

    #[test]
    fn the_page_for_operators_has_each_cure_in_its_section() {
        let page = include_str!("../../../docs/troubleshooting.md");
        let sections = page.split("\n## ").skip(1).filter_map(|part| part.split_once('\n'));
        let sections: Vec<(String, String)> = sections
            .map(|(heading, text)| (anchor(heading), text.replace('`', "")))
            .collect();
        for kind in ReasonKind::ALL {
            let Remedy { text, section } = kind.cure();
            let found = sections.iter().find(|(name, _)| name == section);
            let (_, said) = found.unwrap_or_else(|| panic!("no section {section}"));
            assert!(said.contains(text), "{}: {text:?} is not in {section}", kind.name());
        }
    }

    #[test]
    fn a_pod_reads_its_own_as_they_are_and_others_in_general_words_or_not_at_all() {
        let reasons = [
            Reason::of(&pod(1), ReasonKind::CpusOffline, "CPUs 2 are offline"),
            Reason::of(&pod(2), ReasonKind::Evicted, "kubelet gave the CPUs 3 to pod 2"),
            Reason::of_node(ReasonKind::NotDone, "write \"2-5\""),
            Reason::of_node(ReasonKind::NotDone, "write \"2-6\""),
            Reason::of(&pod(2), ReasonKind::AnchorEnded, "the anchor (process 7) ended"),
        ];
        let told = visible_to(&reasons, &pod(1));
        let general = |kind: ReasonKind| kind.in_general().unwrap();
        assert_eq!(
            joined(&told),
            format!(
                "CPUs 2 are offline; {}; {}",
                general(ReasonKind::Evicted),
                general(ReasonKind::NotDone)
            )
        );
        assert_eq!(visible_to(&told, &pod(1)), told, "it is its own now");
    }
}
