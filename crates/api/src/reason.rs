//! Why a VM has less than it should, what is wrong on the node, or why a call failed. Each reason has a stable code, a note for a
//! column, and a text with its effect and fix; everything that shows reasons takes these from here. Each names the pod whose details its
//! text has, which decides who may read it.

use std::fmt;

use serde::{Deserialize, Serialize};
use stelia_cpus::text::named;
use stelia_kubelet::{PodName, PodUid};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Members", from = "Members")]
pub struct Reason {
    /// The pod whose details (CPUs, paths, processes) are in the text; `None`: details of the node. JSON does not name it.
    pub pod: Option<PodUid>,
    pub code: ReasonCode,
    /// The fact, for the operator and for the pod itself.
    pub text: String,
    /// What the operator does about it.
    pub fix: String,
}

/// A reason in JSON.
#[derive(Serialize, Deserialize)]
struct Members {
    code: ReasonCode,
    #[serde(skip_deserializing)]
    note: &'static str,
    text: String,
    #[serde(skip_deserializing, skip_serializing_if = "str::is_empty")]
    effect: &'static str,
    fix: String,
}

impl From<Reason> for Members {
    fn from(reason: Reason) -> Self {
        Self {
            code: reason.code,
            note: reason.code.note(),
            text: reason.text,
            effect: reason.code.effect(),
            fix: reason.fix,
        }
    }
}

impl From<Members> for Reason {
    fn from(members: Members) -> Self {
        Self {
            pod: None,
            code: members.code,
            text: members.text,
            fix: members.fix,
        }
    }
}

named! {
    /// The codes of reasons, which D-Bus, JSON, metrics and `docs/troubleshooting.md` share.
    pub enum ReasonCode {
        // What is wrong on the node.
        KubeletUnusable = "kubelet-unusable",
        /// kubelet's state has keys beside its entries that are not known.
        KubeletUnknownKeys = "kubelet-unknown-keys",
        /// No CPU is shared.
        NoSharedCpus = "no-shared-cpus",
        /// This kernel has no cpuset partitions, so that VMs are pinned although no setting says so.
        OldKernel = "old-kernel",
        SystemdSilent = "systemd-silent",
        /// inotify does not watch everything: everything is read every 2 s.
        NotWatched = "not-watched",
        /// KVM's events are not received.
        KvmNotHeard = "kvm-not-heard",
        /// A scope's record cannot be read.
        RecordUnreadable = "record-unreadable",
        LedgerNotKept = "ledger-not-kept",
        NotPublished = "not-published",
        /// Device interrupts are not kept off the CPUs of VMs.
        NotSteered = "not-steered",
        // What is wrong with a VM.
        /// The shared pool of the NUMA node that an LS instance runs on has no CPU.
        NumaPoolEmpty = "numa-pool-empty",
        /// kubelet has no entry for the container any more.
        NoAssignment = "no-assignment",
        /// kubelet gave the CPUs to another pod.
        Evicted = "evicted",
        /// The CPUs are assigned to the VM, and another instance has not left them.
        CpusInUse = "cpus-in-use",
        /// The container's own cgroup is gone.
        CgroupGone = "cgroup-gone",
        /// The process that stays in the container's own cgroup ended.
        PlaceholderEnded = "placeholder-ended",
        /// `cpuset.cpus` of the container's own cgroup differs from kubelet's entry.
        CpusetChanged = "cpuset-changed",
        /// The container's memory limit is below what the scope holds.
        MemoryHeld = "memory-held",
        ThreadEnded = "thread-ended",
        /// A vCPU thread is in a cgroup that is neither the instance's nor its container's.
        ThreadMoved = "thread-moved",
        /// Exclusive CPUs of the instance are offline.
        CpusOffline = "cpus-offline",
        /// There are more vCPUs than CPUs: none is pinned.
        TooManyVcpus = "too-many-vcpus",
        /// `cpuset.cpus.partition` of `vcpu/` reads otherwise than the recorded type.
        PartitionChanged = "partition-changed",
        /// A device interrupt reaches the CPUs although it should not.
        Interrupts = "interrupts",
        /// What was ordered for the CPUs besides, such as a wake-up latency, could not be done.
        NotQuiet = "not-quiet",
        /// A step failed.
        StepFailed = "step-failed",
        // Why a VM that nothing is wrong with is not isolated.
        /// Its processes are being moved.
        Starting = "starting",
        /// No vCPU thread is attached.
        NoVcpus = "no-vcpus",
        /// It was off its CPUs when kubelet's file became unusable, so that nobody knows which are its own.
        NoCpusNow = "no-cpus-now",
        /// The partition of a whole container is not made yet.
        NoPartitionYet = "no-partition-yet",
        /// Its vCPU threads are being pinned.
        Pinning = "pinning",
        /// Its class, LS or BE, has no CPUs of its own.
        SharedClass = "shared-class",
        /// Class LSR: BE may run on its CPUs, and a partition would keep it out.
        ClassLsr = "class-lsr",
        /// This kernel has no `cpuset.cpus.exclusive`.
        NoPartitions = "no-partitions",
        /// The setting `partition` is `member`.
        PartitionOff = "partition-off",
        /// The rule that adopted it has `partition` set to `member`.
        RuleWithoutPartition = "rule-without-partition",
        /// The kernel refused the partition twice.
        PartitionRefused = "partition-refused",
        // Of calls.
        /// A detail of an error, for operators and the pod it concerns.
        Detail = "detail",
    }
}

/// What a code means wherever it is shown.
struct Meaning {
    /// For a column: at most [`MAX_NOTE`] characters.
    note: &'static str,
    /// What follows from it; empty where the text says it or nothing does.
    effect: &'static str,
    fix: &'static str,
}

/// The fix where only a new pod is well again: kubelet assigns CPUs when it admits a pod, and a container that ends well may not be started again.
/// What owns the pod creates it again, or else who has its manifest. [`Reason::naming`] names the pod.
pub const RECREATE: &str = "recreate the pod: kubectl delete pod -n NAMESPACE NAME";

/// The most characters of a note.
pub const MAX_NOTE: usize = 15;

impl ReasonCode {
    fn meaning(self) -> Meaning {
        let of = |note, effect, fix| Meaning { note, effect, fix };
        match self {
            Self::KubeletUnusable => of(
                "kubelet's file",
                "no new VMs; running VMs keep their CPUs",
                "run steliactl doctor",
            ),
            Self::KubeletUnknownKeys => of("unknown keys", "steliad ignores them", "upgrade steliad"),
            Self::NoSharedCpus => of(
                "no shared CPUs",
                "no new VMs; running VMs keep their CPUs",
                "end a pod with exclusive CPUs; set kubelet's reservedSystemCPUs, or with strict-cpu-reservation leave CPUs unassigned",
            ),
            Self::OldKernel => of(
                "old kernel",
                "VMs are pinned, not isolated",
                "install Linux 6.7 or later; to accept pinned VMs, set partition = \"member\" and run systemctl reload steliad",
            ),
            Self::SystemdSilent => of(
                "systemd silent",
                "no new VMs, no changed limits; running VMs stay isolated",
                "run systemctl list-jobs and cat /proc/1/stack",
            ),
            Self::NotWatched => of(
                "not watched",
                "changes are found within 2 s instead of at once",
                "raise sysctl fs.inotify.max_user_watches and fs.inotify.max_user_instances",
            ),
            Self::KvmNotHeard => of(
                "no KVM events",
                "VMs to adopt are found within 5 s instead of at once",
                "run journalctl -u steliad",
            ),
            Self::RecordUnreadable => of(
                "record unread",
                "the VM keeps its CPUs, and steliad leaves it alone",
                "install the newer steliad that wrote it, or recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::LedgerNotKept => of(
                "ledger not kept",
                "what runs on the VMs' CPUs meanwhile is not recorded",
                "free space in /var/lib/stelia if it is full; otherwise run journalctl -u steliad",
            ),
            Self::NotPublished => of(
                "not published",
                "schedulers treat this node as outdated",
                "free space in /run if it is full; otherwise run journalctl -u steliad",
            ),
            Self::NotSteered => of(
                "IRQs unsteered",
                "device interrupts may fire on the VMs' CPUs",
                "run systemctl status steliad-quiet.socket steliad-quiet",
            ),
            Self::NumaPoolEmpty => of(
                "NUMA pool empty",
                "the VM runs on the shared CPUs of all NUMA nodes",
                "run steliactl map: it shows which VMs have that NUMA node's CPUs",
            ),
            Self::NoAssignment => of(
                "no assignment",
                "the VM keeps its CPUs until kubelet assigns them to another pod",
                RECREATE,
            ),
            Self::Evicted => of("CPUs taken", "its vCPUs run on shared CPUs", RECREATE),
            Self::CpusInUse => of(
                "CPUs in use",
                "its vCPUs stay where they were",
                "if this persists, recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::CgroupGone => of(
                "cgroup gone",
                "exec into the container fails, and the VM cannot be released",
                "when convenient, recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::PlaceholderEnded => of(
                "no placeholder",
                "the VM cannot be released into its container",
                "when convenient, recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::CpusetChanged => of(
                "cpuset changed",
                "the vCPUs keep their CPUs",
                "if this persists, find the program that writes the container cgroup's cpuset.cpus",
            ),
            Self::MemoryHeld => of(
                "memory held",
                "the former limit applies",
                "none needed: the new limit applies when the VM has returned memory",
            ),
            Self::ThreadEnded => of(
                "thread ended",
                "",
                "none needed if a vCPU was unplugged or the VM ends; otherwise read the container's log",
            ),
            Self::ThreadMoved => of(
                "thread moved",
                "the thread is not isolated",
                "move the process back into the container cgroup, and find the program that moved it",
            ),
            Self::CpusOffline => of(
                "CPUs offline",
                "its vCPUs run on its other CPUs, or on shared CPUs if none is online",
                "echo 1 > /sys/devices/system/cpu/cpuN/online",
            ),
            Self::TooManyVcpus => of(
                "too many vCPUs",
                "no vCPU has a CPU of its own",
                "give QEMU fewer vCPUs (-smp), or the pod more CPUs",
            ),
            Self::PartitionChanged => of(
                "partition lost",
                "other tasks may run on its CPUs",
                "find what else claims those CPUs in cpuset.cpus.exclusive, outside stelia.slice",
            ),
            Self::Interrupts => of("interrupts", "each interrupt delays a vCPU", "run steliactl noise"),
            Self::NotQuiet => of("not quiet", "", "run steliactl noise"),
            Self::StepFailed => of(
                "step failed",
                "steliad tries again after 1 to 32 s",
                "run journalctl -u steliad",
            ),
            Self::Starting => of("starting", "", "none needed"),
            Self::NoVcpus => of(
                "no vCPUs yet",
                "all threads run on shared CPUs",
                "read the container's log: has the VMM's socket answered? The runner tries every 5 s",
            ),
            Self::NoCpusNow => of(
                "no CPUs now",
                "all threads run on shared CPUs",
                "run steliactl why node: kubelet's file cannot be used",
            ),
            Self::NoPartitionYet => of(
                "no partition",
                "it runs as without steliad",
                "if this persists, run steliactl verify",
            ),
            Self::Pinning => of("being pinned", "", "if this persists, run steliactl verify"),
            Self::SharedClass => of(
                "shared class",
                "",
                "none needed; for CPUs of its own, start the runner with --qos=LSE",
            ),
            Self::ClassLsr => of(
                "class LSR",
                "pods of class BE may run on its CPUs",
                "none needed; to keep them off, start the runner with --qos=LSE",
            ),
            Self::NoPartitions => of(
                "no partitions",
                "other tasks are kept off its CPUs only by systemd's AllowedCPUs=",
                "install Linux 6.7 or later and boot it",
            ),
            Self::PartitionOff => of(
                "partition off",
                "other tasks are kept off its CPUs only by systemd's AllowedCPUs=",
                "set partition = \"auto\", run systemctl reload steliad, then recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::RuleWithoutPartition => of(
                "rule: partition",
                "other tasks are kept off its CPUs only by systemd's AllowedCPUs=",
                "remove partition from the rule, run systemctl reload steliad, then recreate the pod: kubectl delete pod -n NAMESPACE NAME",
            ),
            Self::PartitionRefused => of(
                "kernel refused",
                "other tasks are kept off its CPUs only by systemd's AllowedCPUs=; steliad tries again",
                "find what else claims those CPUs; run journalctl -u steliad for the kernel's answer",
            ),
            Self::Detail => of("", "", "run journalctl -u steliad"),
        }
    }

    /// For a column, at most [`MAX_NOTE`] characters.
    pub fn note(self) -> &'static str {
        self.meaning().note
    }

    /// What is wrong on the node in a few words, which fit a line together with the effect; the text has the details. For a VM's codes the
    /// note.
    pub fn fact(self) -> &'static str {
        match self {
            Self::KubeletUnusable => "cpu_manager_state is unusable",
            Self::KubeletUnknownKeys => "cpu_manager_state has unknown keys",
            Self::NoSharedCpus => "no CPU is shared",
            Self::SystemdSilent => "systemd is silent",
            Self::NotWatched => "too few inotify watches",
            Self::KvmNotHeard => "KVM sends no events",
            Self::RecordUnreadable => "a VM's record is unreadable",
            Self::LedgerNotKept => "the ledger is not kept",
            Self::NotPublished => "the node's CPUs are not published",
            Self::NotSteered => "interrupts are not steered",
            _ => self.note(),
        }
    }

    /// What follows from it; empty where the text says it or nothing does.
    pub fn effect(self) -> &'static str {
        self.meaning().effect
    }

    /// The text for a pod that may not read the details; `None`: other pods are not told at all.
    pub fn in_general(self) -> Option<&'static str> {
        match self {
            Self::Evicted => Some("kubelet gave the CPUs to another pod"),
            Self::CpusInUse => Some("another pod has not left the CPUs"),
            Self::Interrupts => Some("device interrupts reach the CPUs; steliad's journal says which"),
            Self::StepFailed => Some("a change that all VMs of the node share failed; steliad's journal says why"),
            _ => None,
        }
    }
}

/// A fix with this pod in its commands.
pub fn naming(fix: &str, namespace: &str, name: &str) -> String {
    fix.replace("-n NAMESPACE NAME", &format!("-n {namespace} {name}"))
}

impl Reason {
    /// A reason with details of a pod.
    pub fn of(pod: &PodUid, code: ReasonCode, text: impl Into<String>) -> Self {
        Self {
            pod: Some(pod.clone()),
            ..Self::of_node(code, text)
        }
    }

    /// A reason with details of the node.
    pub fn of_node(code: ReasonCode, text: impl Into<String>) -> Self {
        let text = text.into();
        let fix = match code {
            ReasonCode::KubeletUnusable => fix_of_kubelet_file(&text),
            _ => None,
        };
        Self {
            pod: None,
            code,
            fix: fix.unwrap_or(code.meaning().fix).to_owned(),
            text,
        }
    }

    /// The same reason with a fix of its own.
    #[must_use]
    pub fn with_fix(self, fix: String) -> Self {
        Self { fix, ..self }
    }

    /// The same reason with this pod, where its name is known, in the commands of its fix.
    #[must_use]
    pub fn naming(self, pod: Option<&PodName>) -> Self {
        match pod {
            Some(pod) => Self {
                fix: naming(&self.fix, pod.namespace(), pod.name()),
                ..self
            },
            None => self,
        }
    }

    /// What this pod may read of it.
    pub fn visible_to(&self, pod: &PodUid) -> Option<Self> {
        match &self.pod {
            Some(own) if own == pod => Some(self.clone()),
            _ => self.code.in_general().map(|text| Self::of(pod, self.code, text)),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The fix where a file of kubelet's is neither what kubelet writes nor complete.
const DELETE_THE_FILE: &str = "drain the node, stop kubelet, delete the file, start kubelet";

/// The fix of an unusable file of kubelet's by what its message contains; the first counts.
const FIXES_OF_KUBELET_FILE: [(&str, &str); 14] = [
    (
        "No such file",
        "drain the node, start or restart kubelet with cpuManagerPolicy: static; with another root directory set kubelet-root",
    ),
    (
        "which is kubelet's root directory is not clear",
        "remove an earlier installation's cpu_manager_state, or set kubelet-root",
    ),
    ("CPU manager policy is", "see /usr/share/doc/steliad/kubelet.md"),
    ("the file is empty", DELETE_THE_FILE),
    // serde_json's words where a file ends early; a file of zeroes is no object.
    ("while parsing", DELETE_THE_FILE),
    ("not a JSON object", DELETE_THE_FILE),
    ("checksum mismatch", DELETE_THE_FILE),
    // serde_json's words for an object without kubelet's oldest members, and for a number that is too large.
    ("missing field", DELETE_THE_FILE),
    ("expected u32", DELETE_THE_FILE),
    ("CPU list", DELETE_THE_FILE),
    ("is not a pod UID", DELETE_THE_FILE),
    ("are in the default set too", DELETE_THE_FILE),
    ("no known schema", "kubelet is newer: upgrade steliad"),
    (
        "gives CPUs to containers",
        "remove the driver, or set cpu-source = \"kubelet\"",
    ),
];

/// The fix of an unusable file of kubelet's by its message; `None` where none is known for it.
pub fn fix_of_kubelet_file(message: &str) -> Option<&'static str> {
    let found = FIXES_OF_KUBELET_FILE.iter().find(|(part, _)| message.contains(part));
    found.map(|(_, fix)| *fix)
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

    #[test]
    fn the_page_for_operators_has_each_code_as_a_heading_and_its_fix_below() {
        let page = include_str!("../../../docs/troubleshooting.md");
        let sections: Vec<(&str, String)> = page
            .split("\n### ")
            .skip(1)
            .filter_map(|part| part.split_once('\n'))
            .map(|(heading, text)| (heading, text.replace('`', "")))
            .collect();
        for code in ReasonCode::ALL.into_iter().filter(|code| *code != ReasonCode::Detail) {
            let found = sections
                .iter()
                .find(|(heading, _)| *heading == format!("`{}`", code.name()));
            let (_, said) = found.unwrap_or_else(|| panic!("no section {}", code.name()));
            let fix = code.meaning().fix;
            assert!(said.contains(fix), "{}: {fix:?} is not there", code.name());
        }
        let (_, of_file) = sections
            .iter()
            .find(|(heading, _)| *heading == "`kubelet-unusable`")
            .unwrap();
        for (message, fix) in FIXES_OF_KUBELET_FILE {
            assert!(of_file.contains(message) && of_file.contains(fix), "{message}: {fix}");
        }
    }

    #[test]
    fn a_note_fits_its_column_and_no_two_codes_have_the_same() {
        let mut notes: Vec<&str> = ReasonCode::ALL.iter().map(|code| code.note()).collect();
        assert!(notes.iter().all(|note| note.chars().count() <= MAX_NOTE), "{notes:?}");
        let all = notes.len();
        notes.sort_unstable();
        notes.dedup();
        assert_eq!(notes.len(), all);
    }

    #[test]
    fn a_fix_names_the_pod_where_its_name_is_known() {
        let reason = Reason::of(&pod(1), ReasonCode::Evicted, "x");
        assert_eq!(reason.clone().naming(None).fix, RECREATE);
        let named = reason.naming(PodName::new("team-a", "web").as_ref());
        assert_eq!(named.fix, "recreate the pod: kubectl delete pod -n team-a web");
        let other = Reason::of(&pod(1), ReasonCode::CpusOffline, "x");
        assert_eq!(other.clone().naming(PodName::new("a", "b").as_ref()), other);
    }

    #[test]
    fn json_has_what_the_code_means_and_reads_back() {
        let reason = Reason::of_node(ReasonCode::NotWatched, "no watch is left");
        let json = serde_json::to_value(&reason).unwrap();
        assert_eq!(json["code"], "not-watched");
        assert_eq!(json["note"], "not watched");
        assert_eq!(json["effect"], ReasonCode::NotWatched.effect());
        assert_eq!(serde_json::from_value::<Reason>(json).unwrap(), reason);
    }

    #[test]
    fn what_no_kubelet_writes_and_a_file_that_ends_early_are_not_called_a_newer_kubelets() {
        let fix_of = |bytes: &[u8]| {
            let refused = stelia_kubelet::CpuManagerState::parse(bytes).unwrap_err();
            Reason::of_node(ReasonCode::KubeletUnusable, refused.to_string()).fix
        };
        let too_large = r#"{"policyName":"static","defaultCpuSet":"","checksum":9999999999}"#;
        for text in ["{}", too_large] {
            assert_eq!(fix_of(text.as_bytes()), DELETE_THE_FILE, "{text}");
        }
        let beyond = "the default set: CPU list \"8-9999\": \"8-9999\" is beyond the highest CPU number 8191";
        assert_eq!(fix_of_kubelet_file(beyond), Some(DELETE_THE_FILE));
        let whole = r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1,"slices":{}}"#;
        assert_eq!(fix_of(whole.as_bytes()), "kubelet is newer: upgrade steliad");
        // The file ends within a key, a string or the object, with a newline or without one; or it is of zeroes.
        for end in [1, 10, 40, 60] {
            let cut = &whole[..end];
            for bytes in [cut.to_owned(), format!("{cut}\n"), "\0".repeat(end)] {
                assert_eq!(fix_of(bytes.as_bytes()), DELETE_THE_FILE, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_pod_reads_its_own_as_they_are_and_others_in_general_words_or_not_at_all() {
        let reasons = [
            Reason::of(&pod(1), ReasonCode::CpusOffline, "CPUs 2 are offline"),
            Reason::of(&pod(2), ReasonCode::Evicted, "kubelet gave the CPUs 3 to pod 2"),
            Reason::of_node(ReasonCode::StepFailed, "write \"2-5\""),
            Reason::of_node(ReasonCode::StepFailed, "write \"2-6\""),
            Reason::of(&pod(2), ReasonCode::PlaceholderEnded, "the placeholder process 7 ended"),
        ];
        let told = visible_to(&reasons, &pod(1));
        let general = |code: ReasonCode| code.in_general().unwrap();
        assert_eq!(
            joined(&told),
            format!(
                "CPUs 2 are offline; {}; {}",
                general(ReasonCode::Evicted),
                general(ReasonCode::StepFailed)
            )
        );
        assert_eq!(visible_to(&told, &pod(1)), told, "it is its own now");
    }
}
