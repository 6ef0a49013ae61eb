//! The journal's messages for the operator: their `MESSAGE_ID`s, and how they name a pod. `packaging/journal/steliad.catalog`
//! says of each message what it means and what to do (`journalctl -x`); a test holds one to the other.

#[cfg(test)]
pub(crate) mod catalog_tests;

use std::fmt;

use stelia_kubelet::PodName;
use stelia_settings::Files;

macro_rules! messages {
    ($($(#[$about:meta])* $name:ident = $id:literal;)+) => {
        $($(#[$about])* pub const $name: &str = $id;)+

        /// Every one.
        pub const ALL: [&str; [$($id),+].len()] = [$($id),+];
    };
}

messages! {
    /// The daemon runs and has adopted what it found.
    STARTED = "7f18d9404eb94f71a459958c7323fb99";
    /// The daemon ends because it cannot go on.
    FAILED = "495eeeebb4994cbcaa5f4228aa54be46";
    /// systemd passed no runner socket.
    NO_RUNNER_SOCKET = "5eb304e5f6d84444917eca0af0a739b7";

    /// A container became an instance: it floats.
    REGISTERED = "c941193889f04186aa7d075c93cf2f5f";
    /// A container is no instance, and nothing of it was changed.
    REGISTRATION_REFUSED = "aeebff79da07420fa61a8c52e4a55b0e";
    /// A registration began and could not be finished; what was done is undone.
    REGISTRATION_FAILED = "8de1e44aa2f54070b8e99bf94f1019fc";
    /// The vCPU threads of an instance have their CPUs to themselves.
    ISOLATED = "5b0f3a7e9c1d4f6ab2c8d5e0917f3b64";
    /// The vCPU threads of an instance are pinned, and no partition keeps others out.
    CONTAINED = "c47910f57cb4444880f837ae052a47eb";
    /// The kernel makes no partition of an instance's CPUs.
    PARTITION_REFUSED = "eeed094a17ce44b7a1253b2bc2c732d7";
    /// The vCPU threads of an instance were not attached.
    ATTACH_REFUSED = "5f2e992f0a1e4d8eb8eb853ecfe96993";
    /// vCPUs could not be placed as the policy wants.
    PLACEMENT = "2df205ce59044b50b8e5bea6032680a2";
    /// An instance shares cores or NUMA nodes that its exclusive policy was to avoid sharing.
    COMPANY = "6d0c9f4b3f0e4c1f9a1be2a7d3c85f10";
    /// An instance that was to be isolated in its container's own cgroup has a scope instead.
    NOT_IN_PLACE = "9a4be27c51d84f0c8f6db1c3e07a5d29";
    /// A VM that did not register itself is an instance, by a rule.
    ADOPTED = "3d1f0b7c5e9a4c62a8f4d2b96071ce58";
    /// A VM that a rule is of is no instance, and nothing of it was changed.
    NOT_ADOPTED = "c84e6a1f92d74b0bb35d7e08f1a6429c";
    /// KVM's events cannot be received: VMs to adopt are looked for every 5 s.
    KVM_UNHEARD = "61b9d3e8047f4a5c9e2c8a7150fd36b4";
    /// An instance was moved to better CPUs.
    REBOUND = "b3a1f5c8e27d4f4b9c6e8d0a51f27c94";
    /// A rebind job ended.
    REBIND_ENDED = "0f6c2d9a7b5e4c1d8a3f6e9b2c4d7a18";
    /// An instance's CPUs are another pod's now; its vCPU threads float.
    EVICTED = "70588df9ba7e4bc2bc413648d91fe03d";
    /// An instance is to have fewer CPUs than it has vCPUs, and waits for these to be unplugged.
    SHRINKS = "6e0b94d2c7a14f5e83d1b50fa92c7e61";
    /// An instance keeps the CPUs that steliad chose, because its vCPUs were not unplugged in time.
    NOT_SHRUNK = "5750280744d04b9b94fc49dde8192fbf";
    /// An instance was deregistered, and is gone.
    DEREGISTERED = "e1048495ed2d4d419b3db7c74dbb70a6";
    /// An instance ended without being deregistered.
    GONE = "77f756195716464fade9e7a86f2fe991";

    /// Device interrupts are kept off the CPUs of VMs: something of it changed.
    STEERED = "e17c40b95a2d4f0e8c6b3d71f92a5e08";
    /// They are not, because steliad-quiet does not answer, or refused.
    NOT_STEERED = "a85d3f6e0c714b2998e1d4a7b3605cf2";

    /// Something ran on a VM's CPUs that is neither its own nor bound there.
    INTRUDED = "c519480b98ee406ab08430c548cf2deb";
    /// Who it was, as was counted for a while after it.
    ATTRIBUTED = "0737748048f24eacb4b9cdeef3cb8e74";
    /// Nothing can be read for the ledger, or kept.
    LEDGER_PROBLEM = "f46bbcfcc1c540b39e83fa11c48a4967";
    /// The ledger is kept again.
    LEDGER_KEPT = "d4e95e4a8849447593d24629d882d477";
    /// A day of the ledger ended: its signed head.
    LEDGER_HEAD = "70c35d7a99074886a320b1ccb46a8086";
    /// What a crash left behind the ledger's last whole line was cut off.
    LEDGER_CUT = "32cff6a81f854ed78f12912fc31140f5";
    /// A key was made that heads are signed with.
    LEDGER_KEY = "5b8d1f0e7c9a4e62b3d6a4f8c0e1972d";

    /// The file for the cluster's publisher is not up to date.
    NOT_PUBLISHED = "9c2f0d7a61e84b35a7d1f3c85be6402a";
    /// It does again.
    PUBLISHED = "2be7d50f3a9c4618b06e94d1c7f8a35d";

    /// The promise to an instance is not kept.
    DEGRADED = "fd923e76039b4c51ad3036c89ae67172";
    /// The same, because the anchor ended.
    ANCHOR_LOST = "443058d2cc8c477f8fc9cf8cad9ffb36";
    /// The same, because the kernel calls the partition invalid.
    PARTITION_INVALID = "b07ad7a862a74151b9ee1257aaf98573";
    /// The promise to an instance is kept again.
    WHOLE = "959e6b6231204ccfbf696e5b1f36976b";
    /// Drift: another program changed what only this one writes.
    DRIFT = "8e5be1c0b4a84b3f9d2a6f0c7d1e4a52";
    /// All of it was repaired.
    REPAIRED = "d5385bdda6c24023a7b323983e7e8193";
    /// Some of it could not be repaired.
    NOT_REPAIRED = "e51f019ee6a74f4eae6c7e0203429eef";

    /// kubelet's state file cannot be used.
    KUBELET_REFUSED = "4ca02977deaa4cf49712d97ab4d6d041";
    /// kubelet's state file can be used again.
    KUBELET_USABLE = "bb532729b7dc4fce98dbf2f9b63d4a93";
    /// Where steliad chooses the CPUs: who gives Guaranteed pods that are not VMs CPUs of their own.
    GUARANTEED = "fdedfe3a14bb4580906f89ef59b62f72";
    /// A pass changed something.
    PASS = "763a2569fc39483e945705834831a41d";
    /// A pass could not do something.
    PASS_FAILED = "3f07007452fd437095808cb02d1e0c8e";
    /// A peer on the runner socket sent what no runner sends.
    PEER_CUT_OFF = "c0d7a0d0d60a444a9c253fa8cd7a95ba";
}

/// A pod in a message: `namespace/name (UID)`, or the UID alone where the runtime does not tell the name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JournalPod<'a> {
    uid: &'a str,
    name: Option<&'a PodName>,
}

impl<'a> JournalPod<'a> {
    pub(crate) fn new(uid: &'a str, name: Option<&'a PodName>) -> Self {
        Self { uid, name }
    }

    pub(crate) fn uid(self) -> &'a str {
        self.uid
    }

    pub(crate) fn namespace(self) -> Option<&'a str> {
        self.name.map(PodName::namespace)
    }

    pub(crate) fn name(self) -> Option<&'a str> {
        self.name.map(PodName::name)
    }
}

impl fmt::Display for JournalPod<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "{name} ({})", self.uid),
            None => f.write_str(self.uid),
        }
    }
}

/// The field `STELIA_POD`, for the catalog's texts: `journalctl -x` prints the names of fields that a message lacks.
pub(crate) fn shown(pod: Option<JournalPod<'_>>) -> String {
    pod.map_or_else(|| "n/a".to_owned(), |pod| pod.to_string())
}

/// How a message begins that may be about a pod: `pod …: `, or nothing.
pub(crate) fn of(pod: Option<JournalPod<'_>>) -> String {
    pod.map(|pod| format!("pod {pod}: ")).unwrap_or_default()
}

/// Log a message about a pod, with the fields that it is found by: level, `MESSAGE_ID`, the [`JournalPod`] (or an `Option` of
/// one, where it may be about all), then what `tracing` takes. Every message about a pod is logged by this.
macro_rules! about {
    ($level:ident, $id:expr, $pod:expr, $($message:tt)+) => {{
        let about: Option<$crate::journal::JournalPod<'_>> = $pod.into();
        tracing::$level!(
            MESSAGE_ID = $id,
            STELIA_POD = $crate::journal::shown(about),
            STELIA_POD_UID = about.map($crate::journal::JournalPod::uid),
            STELIA_POD_NAMESPACE = about.and_then($crate::journal::JournalPod::namespace),
            STELIA_POD_NAME = about.and_then($crate::journal::JournalPod::name),
            $($message)+
        );
    }};
}
pub(crate) use about;

/// Warns of the files of the configuration that are not read.
pub(crate) fn warn_of_ignored(files: &Files) {
    files.ignored_lines().for_each(|line| tracing::warn!("{line}"));
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn files_that_are_not_read_are_named_in_the_log() {
        let files = Files {
            read: Vec::new(),
            ignored: vec![("/etc/stelia/steliad.toml.d/50-x.conf".into(), "why".to_owned())],
        };
        let line = "ignored: /etc/stelia/steliad.toml.d/50-x.conf: why\n";
        let log = Log::default();
        let writer = log.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer.with_ansi(false));
        tracing::subscriber::with_default(subscriber, || warn_of_ignored(&files));
        let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(logged.contains("WARN") && logged.ends_with(line), "{logged}");
    }

    #[test]
    fn a_pod_is_named_as_far_as_it_is_known() {
        let name = PodName::new("team-a", "vm").unwrap();
        let (named, unnamed) = (
            JournalPod::new("b9e4f71c", Some(&name)),
            JournalPod::new("b9e4f71c", None),
        );
        assert_eq!(named.to_string(), "team-a/vm (b9e4f71c)");
        assert_eq!(unnamed.to_string(), "b9e4f71c");
        assert_eq!((named.namespace(), named.name()), (Some("team-a"), Some("vm")));
        assert_eq!((unnamed.namespace(), unnamed.name()), (None, None));
        assert_eq!(of(Some(named)), "pod team-a/vm (b9e4f71c): ");
        assert_eq!(of(None), "");
        assert_eq!((shown(Some(named)), shown(None)), (named.to_string(), "n/a".to_owned()));
    }
}
