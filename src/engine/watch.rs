//! inotify: kubelet's directory, stelia.slice, pods' slices, and of each instance the files that other programs may change. An
//! event says what is to be read again, once, however often it happened.
//!
//! Any process of the host's root can use up root's inotify instances and watches (`fs.inotify.max_user_*`). While something is not
//! watched, everything is read every 2 s (`EngineState::next_look`), and watching it is tried again. A place that is watched again is read again: it
//! may have changed between its last reading and the watch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use stelia_kernel::System;
use stelia_kernel::cgroup::{CgroupPath, File, Limits};
use stelia_kernel::proc::Procs;
use stelia_kubelet::PodUid;
use stelia_kubelet::cpu_manager_state::CPU_MANAGER_STATE;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::vmm_exit::{Vmm, WatchedVmms};

/// What is to be read again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Kubelet,
    /// A file of stelia.slice changed.
    Slice,
    /// A scope came or went.
    Scope(PodUid),
    /// A pod's slice came or went.
    Pods,
    /// A file of an instance changed.
    Instance(PodUid),
    /// Only float's CPUs changed.
    Float(PodUid),
    /// One of its limits was written, or of its container's.
    Limits(PodUid),
    /// The kernel dropped events.
    Lost,
}

/// What a watch is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Kubelet,
    Slice,
    /// The directory of the pods' slices.
    Pods,
    /// Files and directories that no program but this one is to write, and `cgroup.events`.
    Instance(PodUid),
    Float(PodUid),
    /// Directories of the container, its pod and the scope.
    Limits(PodUid),
}

/// What the task that reads inotify shares with the watcher.
#[derive(Debug, Default)]
struct SharedEvents {
    events: Mutex<BTreeSet<Event>>,
    /// The watches that the kernel has not ended.
    places: Mutex<HashMap<WatchDescriptor, Place>>,
    changed: Notify,
}

impl SharedEvents {
    fn happened(&self, event: Event) {
        if lock(&self.events).insert(event) {
            self.changed.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no half-made change: each call changes a set or a map once.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An inotify instance with the task that reads it, which ends where the kernel gives no more events.
struct Source {
    watches: Watches,
    reader: AbortOnDropHandle<()>,
}

impl Source {
    fn start(shared: &Arc<SharedEvents>) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let mut events = inotify.into_event_stream(vec![0; 4096])?;
        let sink = shared.clone();
        let reader = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let is_over = event.mask.contains(EventMask::IGNORED);
                let event = if event.mask.contains(EventMask::Q_OVERFLOW) {
                    Some(Event::Lost)
                } else {
                    let name = event.name.as_ref().map(|name| name.to_string_lossy().into_owned());
                    let mut places = lock(&sink.places);
                    let place = if is_over {
                        places.remove(&event.wd)
                    } else {
                        places.get(&event.wd).cloned()
                    };
                    place.and_then(|place| meaning(place, name.as_deref()))
                };
                event.into_iter().for_each(|event| sink.happened(event));
            }
        });
        Ok(Self {
            watches,
            reader: AbortOnDropHandle::new(reader),
        })
    }
}

/// The watches in force.
pub(super) struct Watcher {
    /// Why nothing is watched, where the kernel gives no inotify instance.
    source: Result<Source, String>,
    descriptors: BTreeMap<(Place, PathBuf), WatchDescriptor>,
    /// What could not be watched when this was last tried.
    missed: BTreeSet<Place>,
    vmms: WatchedVmms,
    shared: Arc<SharedEvents>,
}

impl Watcher {
    /// Belongs to the runtime it is called in.
    pub(super) fn start() -> Self {
        let mut watcher = Self {
            source: Err(String::new()),
            descriptors: BTreeMap::new(),
            missed: BTreeSet::new(),
            vmms: WatchedVmms::default(),
            shared: Arc::default(),
        };
        watcher.revive();
        watcher
    }

    /// Try again to get an inotify instance, where there was none or it gives no more events.
    pub(super) fn revive(&mut self) {
        if self.source.as_ref().is_ok_and(|source| !source.reader.is_finished()) {
            return;
        }
        self.missed.extend(
            std::mem::take(&mut self.descriptors)
                .into_keys()
                .map(|(place, _)| place),
        );
        lock(&self.shared.places).clear();
        self.source = Source::start(&self.shared).map_err(|cause| {
            format!("the node is not watched (inotify: {cause}): everything is read every 2 s instead")
        });
    }

    /// What happened since this was last asked.
    pub(super) fn take(&self) -> BTreeSet<Event> {
        std::mem::take(&mut *lock(&self.shared.events))
    }

    /// Returns once something happened, or at once if it has already.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Reports a change of an instance that inotify has no event for.
    pub(super) fn notifier(&self, pod: &PodUid) -> impl Fn() + Send + 'static {
        let (shared, pod) = (self.shared.clone(), pod.clone());
        move || shared.happened(Event::Instance(pod.clone()))
    }

    /// Watch for the end of exactly this VMM of an instance.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub(super) fn watch_vmm(&mut self, procs: &dyn Procs, pod: &PodUid, vmm: Option<Vmm>) -> Result<(), String> {
        let wake = self.notifier(pod);
        self.vmms.watch(procs, pod, vmm, wake)
    }

    /// Watch nothing of an instance any more.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.vmms.forget(pod);
        for place in [Place::Instance, Place::Float, Place::Limits] {
            // Without paths nothing can fail.
            let _ = self.watch(place(pod.clone()), &[]);
        }
    }

    /// Watch exactly these paths for this place. A path that does not exist is not watched, which is not an error.
    ///
    /// # Errors
    /// Why one of them cannot be watched; the others are.
    pub(super) fn watch(&mut self, place: Place, paths: &[PathBuf]) -> Result<(), String> {
        let watched = self.try_to_watch(&place, paths);
        if watched.is_err() {
            self.missed.insert(place);
        } else if self.missed.remove(&place) && !paths.is_empty() {
            self.shared.happened(everything_of(place));
        }
        watched
    }

    fn try_to_watch(&mut self, place: &Place, paths: &[PathBuf]) -> Result<(), String> {
        let watches = match &mut self.source {
            Ok(source) => &mut source.watches,
            Err(_) if paths.is_empty() => return Ok(()),
            Err(cause) => return Err(cause.clone()),
        };
        let from = (place.clone(), PathBuf::new());
        let here = self
            .descriptors
            .range(from..)
            .take_while(|((other, _), _)| other == place);
        let gone: Vec<(Place, PathBuf)> = here
            .map(|(key, _)| key)
            .filter(|(_, path)| !paths.contains(path))
            .cloned()
            .collect();
        for key in gone {
            if let Some(descriptor) = self.descriptors.remove(&key) {
                lock(&self.shared.places).remove(&descriptor);
                // The kernel drops the watch of a removed file by itself.
                let _ = watches.remove(descriptor);
            }
        }
        let mut failed = Ok(());
        for path in paths {
            let key = (place.clone(), path.clone());
            // The kernel ends the watch of a file that was removed, and of one that was made again in its place.
            let known = self.descriptors.get(&key);
            if known.is_some_and(|descriptor| lock(&self.shared.places).contains_key(descriptor)) {
                continue;
            }
            match watches.add(path, mask(place, path)) {
                Ok(descriptor) => {
                    lock(&self.shared.places).insert(descriptor.clone(), place.clone());
                    self.descriptors.insert(key, descriptor);
                }
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => {
                    failed = Err(format!(
                        "{} is not watched ({cause}): everything is read every 2 s instead",
                        path.display()
                    ));
                }
            }
        }
        failed
    }
}

/// Where a cgroup is mounted.
pub(super) fn directory(system: &System, cgroup: &CgroupPath) -> PathBuf {
    system.cgroup_root.join(cgroup.as_str().trim_start_matches('/'))
}

/// What may have happened at a place while it was not watched.
fn everything_of(place: Place) -> Event {
    match place {
        Place::Kubelet => Event::Kubelet,
        Place::Slice => Event::Slice,
        Place::Pods => Event::Pods,
        Place::Instance(pod) | Place::Float(pod) => Event::Instance(pod),
        Place::Limits(pod) => Event::Limits(pod),
    }
}

/// What an event at a place says; `name` is that of the file in a directory.
fn meaning(place: Place, name: Option<&str>) -> Option<Event> {
    match (place, name) {
        // Much else happens in kubelet's directory: only the name of its state file counts.
        (Place::Kubelet, Some(CPU_MANAGER_STATE)) => Some(Event::Kubelet),
        (Place::Kubelet, _) => None,
        (Place::Slice, Some(name)) => Some(PodUid::from_scope(name).map_or(Event::Slice, Event::Scope)),
        (Place::Slice, None) => Some(Event::Slice),
        (Place::Pods, _) => Some(Event::Pods),
        // Other files there are written by the container runtime or by this program.
        (Place::Limits(pod), Some(name)) if is_limit(name) => Some(Event::Limits(pod)),
        (Place::Limits(_), _) => None,
        (Place::Float(pod), Some(name)) if name == File::Cpus.name() => Some(Event::Float(pod)),
        (Place::Instance(pod) | Place::Float(pod), _) => Some(Event::Instance(pod)),
    }
}

fn is_limit(name: &str) -> bool {
    let sizes = name.starts_with("hugetlb.") && name.ends_with(".max");
    sizes || Limits::FILES.iter().any(|file| file.name() == name)
}

fn mask(place: &Place, path: &Path) -> WatchMask {
    if let Place::Limits(_) = place {
        // A writer closes the file; the kernel's own memory events, which a pod can cause at will, are not writes.
        WatchMask::CLOSE_WRITE
    } else if path.is_dir() {
        // A cgroup's files are modified; a partition that the kernel made invalid gives the same event.
        WatchMask::MOVED_TO
            | WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
    } else {
        WatchMask::MODIFY | WatchMask::DELETE_SELF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_containers_directory_only_its_limits_are_looked_at() {
        let pod = PodUid::parse("b9e4f71c-64a5-4f8d-8574-41363cbaf8e5").unwrap();
        let told = |name| meaning(Place::Limits(pod.clone()), Some(name));
        for name in [
            "memory.max",
            "cpu.max",
            "io.max",
            "hugetlb.1GB.rsvd.max",
            "hugetlb.2MB.max",
        ] {
            assert_eq!(told(name), Some(Event::Limits(pod.clone())), "{name}");
        }
        for name in ["cgroup.procs", "memory.events", "cpuset.cpus", "hugetlb.2MB.events"] {
            assert_eq!(told(name), None, "{name}");
        }
        assert_eq!(meaning(Place::Limits(pod), None), None);
    }
}
