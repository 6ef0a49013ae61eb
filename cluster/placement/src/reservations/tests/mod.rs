mod behaviour;
mod world;

use std::collections::BTreeSet;

use super::*;

/// A node without cores: it gives the lowest CPUs that are free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plain {
    pub free: CpuSet,
    pub pods: BTreeSet<Uid>,
    pub cpus_at_container_start: bool,
}

#[derive(Default)]
pub(super) struct Lowest(HashMap<String, Plain>);

/// The lowest of the CPUs, if there are as many.
fn lowest(free: &CpuSet, count: usize) -> Option<CpuSet> {
    (free.len() >= count).then(|| free.iter().take(count).collect())
}

impl Rules for Lowest {
    type Node = Plain;
    type Request = usize;
    type Rejection = &'static str;

    fn put_node(&mut self, node: &str, described: Option<Plain>) -> bool {
        match described {
            Some(described) => drop(self.0.insert(node.to_owned(), described)),
            None => drop(self.0.remove(node)),
        }
        self.0.contains_key(node)
    }

    fn place(&mut self, node: &str, held: Held<usize>, request: &usize) -> Result<Option<CpuSet>, &'static str> {
        let chosen = held.iter().filter_map(|(_, one)| one.cpus.as_ref());
        let mut free = chosen.fold(self.0[node].free.clone(), |free, cpus| free.difference(cpus));
        for (_, one) in held.iter().filter(|(_, one)| one.cpus.is_none()) {
            let taken = lowest(&free, one.request).unwrap_or_default();
            free = free.difference(&taken);
        }
        let cpus = lowest(&free, *request).ok_or("too few CPUs are free")?;
        Ok(Some(cpus).filter(|cpus| !cpus.is_empty()))
    }

    fn own_cpus(&self, node: &str, request: &usize) -> OwnCpus {
        match self.0.get(node) {
            _ if *request == 0 => OwnCpus::Never,
            Some(node) if node.cpus_at_container_start => OwnCpus::AtRegistration,
            _ => OwnCpus::AtAdmission,
        }
    }

    fn object_shows(&self, node: &str, pod: Uid) -> bool {
        self.0.get(node).is_some_and(|node| node.pods.contains(&pod))
    }
}

pub(super) fn uid(number: u128) -> Uid {
    Uid::parse(&format!("{number:032x}")).unwrap()
}

pub(super) fn number(uid: Uid) -> u128 {
    u128::from_str_radix(&uid.to_string().replace('-', ""), 16).unwrap()
}

pub(super) fn node(name: &str) -> NodeName {
    Arc::from(name)
}

pub(super) fn plain(free: &str, pods: &[u128]) -> Plain {
    Plain {
        free: free.parse().unwrap(),
        pods: pods.iter().map(|pod| uid(*pod)).collect(),
        cpus_at_container_start: false,
    }
}

pub(super) fn pod(uid: u128, version: Version, on: Option<&str>, request: usize) -> ObservedPod<usize> {
    ObservedPod {
        uid: tests::uid(uid),
        shown_as: None,
        version,
        node: on.map(node),
        request: Some(request),
        cpus: None,
        is_running: false,
        ending: false,
    }
}

pub(super) fn asked(uid: u128, version: Version, request: usize) -> BindRequest<usize> {
    BindRequest {
        uid: tests::uid(uid),
        version,
        request,
    }
}

pub(super) fn seconds(seconds: u64) -> Moment {
    Duration::from_secs(seconds)
}

/// Which pods hold which CPUs on the node; `-` where the node will choose.
pub(super) fn held(reservations: &Reservations<Lowest>, on: &str) -> Vec<(u128, String)> {
    let cpus = |cpus: &Option<CpuSet>| cpus.as_ref().map_or("-".to_owned(), CpuSet::to_string);
    let held = reservations.held(on);
    let mut held: Vec<_> = held.iter().map(|(pod, one)| (number(*pod), cpus(&one.cpus))).collect();
    held.sort();
    held
}

pub(super) fn one_node(free: &str) -> Reservations<Lowest> {
    let mut reservations = Reservations::new(Lowest::default());
    reservations.object_changed(&node("a"), 1, plain(free, &[]), seconds(0));
    reservations
}

/// Binds a pod of so many CPUs to the node, after a second.
pub(super) fn bind(all: &mut Reservations<Lowest>, uid: u128, request: usize) {
    let begun = all.start_bind(asked(uid, 5, request), &node("a"), seconds(1)).unwrap();
    all.bind_succeeded(&begun, seconds(1));
}

/// A node that gives CPUs when a VM registers.
pub(super) fn late_node() -> Reservations<Lowest> {
    let mut all = Reservations::new(Lowest::default());
    let late = Plain {
        cpus_at_container_start: true,
        ..plain("0-7", &[])
    };
    all.object_changed(&node("a"), 1, late, seconds(0));
    all
}

/// A pod of four CPUs whose containers kubelet has started on the node.
pub(super) fn running(uid: u128, version: Version) -> ObservedPod<usize> {
    ObservedPod {
        is_running: true,
        ..pod(uid, version, Some("a"), 4)
    }
}
