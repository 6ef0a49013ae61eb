//! Which pods an object accounts for, as one number.
//!
//! kube-scheduler's NodeResourceTopologyMatch subtracts every pod that it placed from all zones of the node, until the
//! object has the fingerprint of the pods that the scheduler knows there. Without one it never does. The value is
//! `pfp0v001` and the 16 hexadecimal digits of XXH64 over the pods' hashes in ascending order, each as 8 bytes, the lowest
//! first; a pod's hash is XXH64 over its name, seeded with XXH64 over its namespace
//! (k8stopologyawareschedwg/podfingerprint, `podfingerprint.go`).

use std::collections::BTreeSet;

use stelia_cpus::text::named;
use stelia_kubelet::PodName;
use twox_hash::XxHash64;

use crate::report::{Facts, ReportedPod};

/// The attribute with the fingerprint.
pub(crate) const ATTRIBUTE: &str = "nodeTopologyPodsFingerprint";
/// The attribute with its [`Method`].
pub(crate) const METHOD: &str = "nodeTopologyPodsFingerprintMethod";

named! {
    /// Which pods count.
    #[derive(Default)]
    pub enum Method {
        /// Those that the scheduler's plugin takes for users of exclusive resources: Guaranteed pods, whose memory it counts
        /// whatever kubelet's memory policy is, and pods with a device that is in the zones.
        #[default]
        WithExclusiveResources = "with-exclusive-resources",
        /// All.
        All = "all",
    }
}

/// The fingerprint of these pods, in any order.
///
/// ```
/// use stelia_kubelet::PodName;
/// use stelia_koordinator::report::fingerprint;
///
/// let pods = [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")];
/// let pods: Vec<PodName> = pods.into_iter().filter_map(|(namespace, name)| PodName::new(namespace, name)).collect();
/// assert_eq!(fingerprint::of(&pods), "pfp0v001b92008c14168b3a6");
/// ```
pub fn of<'a>(pods: impl IntoIterator<Item = &'a PodName>) -> String {
    let hash = |pod: &PodName| {
        let seed = XxHash64::oneshot(0, pod.namespace().as_bytes());
        XxHash64::oneshot(seed, pod.name().as_bytes())
    };
    // A pod that ended and its successor of the same name are one for the scheduler.
    let hashes: BTreeSet<u64> = pods.into_iter().map(hash).collect();
    let bytes: Vec<u8> = hashes.into_iter().flat_map(u64::to_le_bytes).collect();
    format!("pfp0v001{:016x}", XxHash64::oneshot(0, &bytes))
}

/// The node's fingerprint.
///
/// # Errors
/// Why there is none: a wrong one would be worse, because the scheduler takes it for a change that is still to come.
pub(crate) fn of_node(facts: &Facts, method: Method) -> Result<String, String> {
    let Some(pods) = &facts.pods else {
        return Err("no fingerprint of the pods: they are not known".to_owned());
    };
    let counts = |pod: &&ReportedPod| method == Method::All || pod.exclusive;
    let counted: Vec<&ReportedPod> = pods.values().filter(counts).collect();
    let named: Vec<&PodName> = counted.iter().filter_map(|pod| pod.name.as_ref()).collect();
    match counted.len() - named.len() {
        0 => Ok(of(named)),
        unnamed => Err(format!(
            "no fingerprint of the pods: the names of {unnamed} of {} are not known",
            counted.len()
        )),
    }
}
