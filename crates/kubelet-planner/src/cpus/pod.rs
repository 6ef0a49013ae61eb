//! A pod as far as the CPU manager looks at it.

/// What a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An init container that ends before the next one starts.
    Init,
    /// A restartable init container: it runs beside the pod's containers.
    Sidecar,
    /// One of the pod's containers.
    App,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The CPUs it requests, in thousandths.
    pub milli_cpus: u64,
    /// Its own requests equal its limits, of CPU and of memory. Looked at under pod-level resources only: without them, all
    /// containers of a Guaranteed pod are so.
    pub guaranteed: bool,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its QoS class is Guaranteed.
    pub guaranteed: bool,
    /// It has pod-level resources (`spec.resources`), and requests so many CPUs there, in thousandths.
    pub milli_cpus: Option<u64>,
    /// Its containers: init containers and sidecars in their order, then the others.
    pub containers: Vec<Container>,
}

impl Pod {
    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The exclusive CPUs of a container: those of a whole number, in a Guaranteed pod; 0 for the shared pool. With pod-level
    /// resources the container must itself be Guaranteed, if kubelet looks at them.
    pub(crate) fn exclusive(&self, container: &Container, pod_level: bool) -> usize {
        let qualifies = container.guaranteed || self.milli_cpus.is_none() || !pod_level;
        match self.guaranteed && qualifies {
            true => whole(container.milli_cpus),
            false => 0,
        }
    }

    /// The exclusive CPUs of the pod as a whole: its own request, or what its containers need at the same time.
    pub(super) fn exclusive_in_all(&self, pod_level: bool) -> usize {
        if let (true, Some(own)) = (pod_level, self.milli_cpus) {
            return if self.guaranteed { whole(own) } else { 0 };
        }
        let (mut running, mut starting) = (0, 0);
        for container in self.containers.iter() {
            let cpus = self.exclusive(container, pod_level);
            match container.kind {
                Kind::Init => starting = starting.max(running + cpus),
                Kind::Sidecar | Kind::App => running += cpus,
            }
        }
        running.max(starting)
    }
}

fn whole(milli_cpus: u64) -> usize {
    match milli_cpus.is_multiple_of(1000) {
        true => usize::try_from(milli_cpus / 1000).unwrap_or(usize::MAX),
        false => 0,
    }
}
