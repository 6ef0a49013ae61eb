//! What a node's CPUs have room for, by who chooses them there: kubelet's planner, steliad's allocator, or, where every CPU is not
//! told, amounts.

mod devices;
mod fill;

use std::collections::BTreeMap;

use kubelet_planner::merge::Policy;
use kubelet_planner::{CpuManager, admit};
use stelia_cpus::{CpuSet, Topology};
use stelia_koordinator::allocator::evaluate::{self, EvaluateRequest};
use stelia_koordinator::allocator::{AllocatorNode, NumaTopologyAlignmentPolicy, Qos, RequiredBind};
use stelia_koordinator::report::Facts;
use stelia_koordinator::report::stored::Stored;
use stelia_node_plan::{Subject, why};

use crate::objects::own_cpus;
use crate::pod_request::PodRequest;
use crate::reasons::Refusal;
pub use devices::DeviceLocality;

/// Who chooses the CPUs of a node, ready to be asked.
#[derive(Debug)]
pub enum Chooser {
    Kubelet(Box<Subject>),
    Steliad(Box<(Facts, AllocatorNode)>),
    /// By amounts of NUMA nodes only: whole cores are not known.
    Amounts(Zones),
    /// Why nobody can be asked.
    Nobody(String),
}

/// The free CPUs of NUMA nodes, and how kubelet puts them together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zones {
    free: BTreeMap<u32, u64>,
    policy: Option<String>,
}

/// How many of a pod fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fits {
    pub count: u64,
    /// On how many of them CPUs and devices are on the same NUMA nodes; `None` for pods without devices whose NUMA nodes are published.
    pub together: Option<u64>,
    /// Why the next one does not; `None` where the search ended at the limit.
    pub then: Option<Refusal>,
}

impl Chooser {
    pub fn of(stored: &Stored) -> Self {
        let Some(facts) = &stored.facts else {
            let free = stored.zones.iter().filter_map(|(id, resources)| {
                let cpu = resources.get("cpu")?;
                Some((*id, cpu.available.milli() / 1000))
            });
            let zones = Zones {
                free: free.collect(),
                policy: stored.alignment.as_ref().map(|alignment| alignment.policy.clone()),
            };
            return if zones.free.is_empty() {
                Self::Nobody("its object has no CPUs".to_owned())
            } else {
                Self::Amounts(zones)
            };
        };
        match facts.allocator_node() {
            Ok(node) => Self::Steliad(Box::new((facts.clone(), node))),
            Err(_) => match Subject::described(facts) {
                Ok(subject) => Self::Kubelet(Box::new(subject)),
                Err(cause) => Self::Nobody(cause),
            },
        }
    }

    /// `kubelet`, `steliad`; `None` where it is not known.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::Kubelet(_) => Some("kubelet"),
            Self::Steliad(_) => Some("steliad"),
            Self::Amounts(_) | Self::Nobody(_) => None,
        }
    }

    /// The CPUs that nobody has and that can be given to a pod, as far as they are known.
    pub fn free(&self) -> Option<CpuSet> {
        match self {
            Self::Kubelet(subject) => {
                let free = &subject.node.state().cpus.default;
                let is_static = matches!(subject.node.settings().cpu_manager, CpuManager::Static { .. });
                is_static.then(|| free.difference(&subject.node.reserved_cpus()))
            }
            Self::Steliad(both) => {
                let facts = &both.0;
                let online = facts.topology.online();
                Some(online.difference(&facts.exclusive).difference(&facts.reserved))
            }
            Self::Amounts(_) | Self::Nobody(_) => None,
        }
    }

    /// Admits one more pod, and says where its devices would be; `None` without devices whose NUMA nodes are published.
    ///
    /// # Errors
    /// Why it is not admitted.
    pub fn admit(&self, pod_request: &PodRequest) -> Result<Option<DeviceLocality>, Refusal> {
        let of = |kubelet: Option<&Subject>, steliad| {
            let placed = fill::place(kubelet, steliad, pod_request, &pod_request.pod)?;
            let free = self.free().unwrap_or_default();
            Ok(kubelet.zip(placed.nodes).map(|(subject, nodes)| DeviceLocality {
                verdict: nodes.verdict,
                words: format!("{}; {}", nodes.words(), devices::all_free(subject, pod_request, &free)),
            }))
        };
        match self {
            Self::Kubelet(subject) => of(Some(subject), None),
            Self::Steliad(both) => of(devices::devices_of(&both.0, pod_request).as_ref(), Some(&both.1)),
            Self::Amounts(zones) => {
                let wanted = own_cpus(&pod_request.pod);
                let short = || zones.too_few(&format!("{wanted} are wanted; "));
                (zones.fit(wanted) > 0).then_some(None).ok_or_else(short)
            }
            Self::Nobody(why) => Err(Refusal::new("what its CPUs have room for is not known", why.clone())),
        }
    }

    /// How many of a pod are admitted, one after the other, at most `most`.
    pub fn until_full(&self, pod_request: &PodRequest, most: u64) -> Fits {
        match self {
            Self::Kubelet(subject) => fill::until_full(Some(subject.as_ref().clone()), None, pod_request, most),
            Self::Steliad(both) => {
                let kubelet = devices::devices_of(&both.0, pod_request);
                fill::until_full(kubelet, Some(both.0.clone()), pod_request, most)
            }
            Self::Amounts(zones) => {
                let fit = zones.fit(own_cpus(&pod_request.pod));
                Fits {
                    count: fit.min(most),
                    then: (fit < most).then(|| zones.too_few("")),
                    ..Fits::default()
                }
            }
            Self::Nobody(_) => Fits {
                then: self.admit(pod_request).err(),
                ..Fits::default()
            },
        }
    }

    /// The CPUs of the largest VM that is admitted: one container, Guaranteed, whole CPUs. `None` where no VM has CPUs of its
    /// own, or nobody can be asked. If only amounts are known, it is the most that the CPUs allow, whatever their cores.
    pub fn largest(&self) -> Option<u64> {
        match self {
            Self::Kubelet(subject) => {
                let free = self.free()?;
                let policy = subject.node.settings().topology_policy;
                let strict = matches!(policy, Policy::Restricted | Policy::SingleNumaNode);
                let vm = |cpus| stelia_placement_rules::Request::of_cpus(cpus, false, Default::default()).pod;
                let fits = |count| admit(&subject.node, &vm(count)).is_ok();
                Some(search(&subject.topology, &free, strict, fits))
            }
            Self::Steliad(both) => {
                let (facts, node) = both.as_ref();
                let policies = &facts.allocator.as_ref()?.policies;
                let free = self.free()?;
                let free = match policies.required {
                    RequiredBind::FullPcpusOnly => node.host().whole_cores(&free),
                    RequiredBind::None | RequiredBind::SpreadByPcpus => free,
                };
                // Spread over cores, a VM may need more nodes than as many CPUs would do on.
                let strict = policies.alignment.is_strict() && policies.required != RequiredBind::SpreadByPcpus;
                let fits = |count: u64| {
                    let mut request = EvaluateRequest::default();
                    request.allocation.qos = Some(Qos::Lse);
                    request.allocation.cpus = Some(u32::try_from(count).unwrap_or(u32::MAX));
                    evaluate::answer(node, &request).is_ok()
                };
                Some(search(&facts.topology, &free, strict, fits))
            }
            Self::Amounts(zones) => Some(zones.largest()),
            Self::Nobody(_) => None,
        }
    }

    /// Whether a VM's CPUs must come from one NUMA node.
    pub fn is_single_node(&self) -> bool {
        match self {
            Self::Kubelet(subject) => subject.node.settings().topology_policy == Policy::SingleNumaNode,
            Self::Steliad(both) => {
                let alignment = both.0.allocator.as_ref().map(|allocator| allocator.policies.alignment);
                alignment == Some(NumaTopologyAlignmentPolicy::SingleNumaNode)
            }
            Self::Amounts(zones) => zones.is_single_node(),
            Self::Nobody(_) => false,
        }
    }
}

impl Zones {
    fn is_single_node(&self) -> bool {
        self.policy.as_deref() == Some("single-numa-node")
    }

    fn largest(&self) -> u64 {
        let free = self.free.values().copied();
        if self.is_single_node() {
            free.max().unwrap_or(0)
        } else {
            free.fold(0, u64::saturating_add)
        }
    }

    /// The number of pods with this many CPUs; unlimited for pods without CPUs.
    fn fit(&self, cpus: u64) -> u64 {
        let of = |free: u64| free.checked_div(cpus).unwrap_or(u64::MAX);
        if self.is_single_node() {
            self.free.values().map(|free| of(*free)).fold(0, u64::saturating_add)
        } else {
            of(self.largest())
        }
    }

    fn too_few(&self, wanted: &str) -> Refusal {
        let words: Vec<String> = self.free.iter().map(|(id, free)| format!("{free} on {id}")).collect();
        let detail = format!("{wanted}free by NUMA node: {}", words.join(", "));
        Refusal::new("too few CPUs are free", detail)
    }
}

impl Refusal {
    fn of_kubelet(rejection: &kubelet_planner::Rejection, subject: &Subject, pod_request: &PodRequest) -> Self {
        let refusal = Self {
            what: match rejection.reason() {
                Some(reason) => format!("kubelet would reject it: {reason}"),
                None => "kubelet never answers".to_owned(),
            },
            detail: why::misaligned(subject, &pod_request.pod, rejection).unwrap_or_else(|| rejection.to_string()),
        };
        devices::with_free(refusal, subject, pod_request)
    }

    fn of_steliad(error: &stelia_api::Error) -> Self {
        let what = format!("steliad would refuse it: {}", error.kind.name());
        Self::new(what, error.to_string())
    }
}

/// The largest number of CPUs that fits, from the most on downwards. Where the NUMA nodes must be as few as would do on an empty
/// host (`strict`), a VM that has room on one node when that is empty must find it there, so what lies between is passed over.
fn search(topology: &Topology, free: &CpuSet, strict: bool, fits: impl Fn(u64) -> bool) -> u64 {
    let mut nodes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (number, cpu) in &topology.cpus {
        let (all, here) = nodes.entry(cpu.node).or_default();
        *all += 1;
        *here += u64::from(free.contains(*number));
    }
    let node = nodes.values().map(|(all, _)| *all).max().unwrap_or(0);
    let most_on_one = nodes.values().map(|(_, free)| *free).max().unwrap_or(0);
    let mut count = free.len() as u64;
    while count > 0 {
        if strict && count <= node && count > most_on_one {
            count = most_on_one;
            continue;
        }
        if fits(count) {
            break;
        }
        count -= 1;
    }
    count
}

#[cfg(test)]
mod tests;
