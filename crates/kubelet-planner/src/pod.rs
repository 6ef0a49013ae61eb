//! A pod, as far as kubelet's managers look at it.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::text::named;
use stelia_kubelet::{PodUid, QosClass};

/// A pod, as [`admit`](crate::admit) and every manager take it.
///
/// ```
/// use stelia_kubelet::QosClass;
/// use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
///
/// let amounts = Amounts { milli_cpus: Some(4000), memory: Some(1 << 30), ..Amounts::default() };
/// let mut pod = Pod {
///     uid: "7d3c".into(),
///     resources: None,
///     containers: vec![Container::new("vm", ContainerKind::App, Resources::guaranteed(amounts))],
/// };
/// assert_eq!(pod.qos(), QosClass::Guaranteed);
/// pod.containers[0].resources.limits.memory = Some(2 << 30);
/// assert_eq!(pod.qos(), QosClass::Burstable);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Any text that no other pod has.
    pub uid: String,
    /// Pod-level resources (`spec.resources`).
    pub resources: Option<Resources>,
    /// Its containers in kubelet's order: init containers and sidecars as listed, then the others.
    pub containers: Vec<Container>,
}

named! {
    /// When a container runs beside which others (`IsRestartableInitContainer`, `pkg/api/v1/pod/util.go`).
    pub enum ContainerKind {
        /// An init container that ends before the next one starts.
        Init = "init",
        /// A restartable init container: it runs beside the pod's containers.
        Sidecar = "sidecar",
        /// One of `spec.containers`.
        App = "app",
    }
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Unique within the pod.
    pub name: String,
    /// When it runs.
    pub kind: ContainerKind,
    /// What it requests, and its limits.
    pub resources: Resources,
}

/// `resources` of a container or a pod as the API server stores them, with the requests filled in
/// ([`Pod::with_defaults`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// What the scheduler sets aside for it.
    pub requests: Amounts,
    /// What it may use at most; devices are counted by their limit.
    pub limits: Amounts,
}

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// `cpu`, in thousandths.
    pub milli_cpus: Option<u64>,
    /// `memory`, bytes.
    pub memory: Option<u64>,
    /// `hugepages-*` by the size of a page; bytes both.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Extended resources, such as `nvidia.com/gpu`.
    pub devices: BTreeMap<String, u64>,
}

impl Amounts {
    /// Whether any resource is set that a pod as a whole may have: devices are not among them.
    fn is_set(&self) -> bool {
        self.milli_cpus.is_some() || self.memory.is_some() || !self.huge_pages.is_empty()
    }

    /// Fills in missing amounts from `other`.
    fn or(&mut self, other: &Self) {
        self.milli_cpus = self.milli_cpus.or(other.milli_cpus);
        self.memory = self.memory.or(other.memory);
        for (size, bytes) in &other.huge_pages {
            self.huge_pages.entry(*size).or_insert(*bytes);
        }
        for (name, count) in &other.devices {
            self.devices.entry(name.clone()).or_insert(*count);
        }
    }
}

impl Resources {
    /// Requests that equal the limits.
    pub fn guaranteed(amounts: Amounts) -> Self {
        Self {
            requests: amounts.clone(),
            limits: amounts,
        }
    }

    /// Whether requests equal limits, of CPU and of memory.
    pub(super) fn is_guaranteed(&self) -> bool {
        let equal = |request: Option<u64>, limit: Option<u64>| request.unwrap_or(0) != 0 && request == limit;
        equal(self.requests.milli_cpus, self.limits.milli_cpus) && equal(self.requests.memory, self.limits.memory)
    }
}

impl Container {
    /// A container.
    pub fn new(name: &str, kind: ContainerKind, resources: Resources) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            resources,
        }
    }
}

impl Pod {
    /// The pod-level resources, if any are set.
    pub fn own(&self) -> Option<&Resources> {
        let own = self.resources.as_ref();
        own.filter(|own| own.requests.is_set() || own.limits.is_set())
    }

    /// The pod as the API server stores it. A container's missing request becomes its limit. A missing request of the
    /// pod becomes what its containers request or, where they request nothing, its limit; for huge pages always its
    /// limit.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        for container in &mut self.containers {
            container.resources.requests.or(&container.resources.limits);
        }
        let count = |of: fn(&Amounts) -> Option<u64>| {
            let requests = self.containers.iter();
            let requests = requests.map(|container| (container.kind, of(&container.resources.requests)));
            let any = requests.clone().any(|(_, amount)| amount.is_some());
            any.then(|| {
                let amounts = requests.map(|(kind, amount)| (kind, amount.unwrap_or(0)));
                together(amounts, u64::saturating_add)
            })
        };
        let containers = Amounts {
            milli_cpus: count(|amounts| amounts.milli_cpus),
            memory: count(|amounts| amounts.memory),
            ..Amounts::default()
        };
        if let Some(own) = self.resources.as_mut().filter(|own| own.limits.is_set()) {
            own.requests.or(&containers);
            own.requests.or(&own.limits);
        }
        self
    }

    /// The QoS class, from the pod-level resources if there are any, else from all containers.
    pub fn qos(&self) -> QosClass {
        let all: Vec<&Resources> = match self.own() {
            Some(own) => vec![own],
            None => self.containers.iter().map(|container| &container.resources).collect(),
        };
        let of = |amounts: &Amounts| [amounts.milli_cpus.unwrap_or(0), amounts.memory.unwrap_or(0)];
        let sum = |amounts: fn(&Resources) -> &Amounts| {
            let amounts = all.iter().map(|own| of(amounts(own)));
            amounts.fold([0u64; 2], |[cpus, memory], own| {
                [cpus.saturating_add(own[0]), memory.saturating_add(own[1])]
            })
        };
        let limited = all.iter().all(|own| !of(&own.limits).contains(&0));
        match [sum(|own| &own.requests), sum(|own| &own.limits)] {
            [[0, 0], [0, 0]] => QosClass::BestEffort,
            [requests, limits] if requests == limits && limited => QosClass::Guaranteed,
            _ => QosClass::Burstable,
        }
    }

    /// What the scheduler counts for it (`PodRequests`): the pod-level resources where there are any, and of the rest what its
    /// containers request at the same time.
    pub fn requests(&self) -> Amounts {
        let all = || self.containers.iter().map(|one| (one.kind, &one.resources.requests));
        let sum = |of: &dyn Fn(&Amounts) -> Option<u64>| {
            let amounts = all().map(|(kind, requests)| (kind, of(requests).unwrap_or(0)));
            let sum = together(amounts, u64::saturating_add);
            (sum > 0).then_some(sum)
        };
        let sizes: BTreeSet<u64> = all()
            .flat_map(|(_, requests)| requests.huge_pages.keys().copied())
            .collect();
        let devices: BTreeSet<&String> = all().flat_map(|(_, requests)| requests.devices.keys()).collect();
        let of_size = |size| Some((size, sum(&|requests| requests.huge_pages.get(&size).copied())?));
        let of_device = |name: &String| Some((name.clone(), sum(&|requests| requests.devices.get(name).copied())?));
        let mut requests = self.own().map(|own| own.requests.clone()).unwrap_or_default();
        requests.or(&Amounts {
            milli_cpus: sum(&|requests| requests.milli_cpus),
            memory: sum(&|requests| requests.memory),
            huge_pages: sizes.into_iter().filter_map(of_size).collect(),
            devices: devices.into_iter().filter_map(of_device).collect(),
        });
        requests
    }

    pub(super) fn is_guaranteed(&self) -> bool {
        self.qos() == QosClass::Guaranteed
    }
}

/// A checkpoint's map by pod, with UIDs as text: the planner's own pods need no valid UIDs.
pub(super) fn by_uid<T: Clone>(checkpoint: &BTreeMap<PodUid, T>) -> BTreeMap<String, T> {
    let pods = checkpoint.iter();
    pods.map(|(pod, own)| (pod.as_str().to_owned(), own.clone())).collect()
}

/// What containers need at the same time: init containers run one after the other, each beside the sidecars before it.
pub(super) fn together<T: Copy + Default + Ord>(
    amounts: impl Iterator<Item = (ContainerKind, T)>,
    add: impl Fn(T, T) -> T,
) -> T {
    let (mut running, mut starting) = (T::default(), T::default());
    for (kind, amount) in amounts {
        let beside = add(running, amount);
        match kind {
            ContainerKind::Init => starting = starting.max(beside),
            ContainerKind::Sidecar | ContainerKind::App => running = beside,
        }
    }
    running.max(starting)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// CPUs in thousandths and memory in bytes.
    type CpuAndMemory = (u64, u64);
    type RequestsAndLimits = (CpuAndMemory, CpuAndMemory);

    fn amounts(milli_cpus: u64, memory: u64) -> Amounts {
        let some = |amount: u64| (amount > 0).then_some(amount);
        Amounts {
            milli_cpus: some(milli_cpus),
            memory: some(memory),
            ..Amounts::default()
        }
    }

    fn resources(requests: CpuAndMemory, limits: CpuAndMemory) -> Resources {
        Resources {
            requests: amounts(requests.0, requests.1),
            limits: amounts(limits.0, limits.1),
        }
    }

    fn pod(own: Option<Resources>, containers: &[Resources]) -> Pod {
        let container = |own: &Resources| Container::new("c", ContainerKind::App, own.clone());
        Pod {
            uid: String::new(),
            resources: own,
            containers: containers.iter().map(container).collect(),
        }
    }

    /// `ComputePodQOS`
    #[rstest]
    #[case(None, &[((0, 0), (0, 0))], QosClass::BestEffort)]
    #[case(None, &[((1, 1), (1, 1))], QosClass::Guaranteed)]
    #[case(None, &[((1, 1), (1, 1)), ((0, 0), (0, 0))], QosClass::Burstable)]
    #[case(None, &[((1, 0), (1, 0))], QosClass::Burstable)]
    #[case(None, &[((1, 1), (2, 1))], QosClass::Burstable)]
    #[case(None, &[((1, 1), (0, 0))], QosClass::Burstable)]
    #[case(Some(((2, 2), (2, 2))), &[((0, 0), (0, 0))], QosClass::Guaranteed)]
    #[case(Some(((1, 2), (2, 2))), &[((1, 1), (1, 1))], QosClass::Burstable)]
    #[case(Some(((0, 0), (0, 0))), &[((1, 1), (1, 1))], QosClass::Guaranteed)]
    fn the_class_is_that_of_all_containers_or_of_the_pods_own_resources(
        #[case] own: Option<RequestsAndLimits>,
        #[case] containers: &[RequestsAndLimits],
        #[case] expected: QosClass,
    ) {
        let own = own.map(|(requests, limits)| resources(requests, limits));
        let containers: Vec<Resources> = containers.iter().map(|(one, other)| resources(*one, *other)).collect();
        assert_eq!(pod(own, &containers).qos(), expected);
    }

    #[test]
    fn the_scheduler_counts_what_runs_at_the_same_time_and_the_pods_own_requests_first() {
        let one = |milli| resources((milli, 0), (milli, 0));
        let kinds = [
            (ContainerKind::Init, 900),
            (ContainerKind::Sidecar, 200),
            (ContainerKind::Init, 500),
            (ContainerKind::App, 400),
        ];
        let container = |(kind, milli): (ContainerKind, u64)| Container::new("c", kind, one(milli));
        let mut pod = Pod {
            containers: kinds.map(container).into(),
            ..Pod::default()
        };
        assert_eq!(pod.requests(), amounts(900, 0));
        pod.containers[0].resources.requests.devices = [("example.com/nic".to_owned(), 2)].into();
        pod.resources = Some(resources((1000, 0), (1000, 0)));
        let counted = pod.requests();
        assert_eq!((counted.milli_cpus, counted.memory), (Some(1000), None));
        assert_eq!(counted.devices["example.com/nic"], 2);
    }

    #[test]
    fn missing_requests_are_filled_in_as_by_the_api_server() {
        let own = resources((0, 0), (4000, 4096));
        let only_cpu = Resources {
            requests: amounts(500, 0),
            limits: Amounts {
                huge_pages: [(2048, 4096)].into(),
                ..amounts(1000, 0)
            },
        };
        let filled = pod(Some(own), &[only_cpu.clone(), only_cpu]).with_defaults();
        let requests = &filled.containers[0].resources.requests;
        assert_eq!((requests.milli_cpus, requests.memory), (Some(500), None));
        assert_eq!(requests.huge_pages, [(2048, 4096)].into());
        // The pod's requests: what its containers request, else its limit.
        assert_eq!(filled.resources.map(|own| own.requests), Some(amounts(1000, 4096)));
    }
}
