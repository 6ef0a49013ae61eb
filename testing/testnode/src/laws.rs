//! After any operations the model's counts and collected sets equal what a full scan finds.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};

use super::cpusets::Partition;
use super::procs::ForkKind;
use super::tree::up;
use super::{Kernel, Model, State, topology};

const PLACES: [&str; 9] = [
    "/stelia.slice",
    "/stelia.slice/x.scope",
    "/stelia.slice/x.scope/instance",
    "/stelia.slice/x.scope/instance/vcpu",
    "/stelia.slice/x.scope/instance/float",
    "/stelia.slice/y.scope",
    "/stelia.slice/y.scope/vcpu",
    "/z",
    "/z/inner",
];

const LISTS: [&str; 7] = ["", "2-3", "2", "4-5", "2-5", "0-7", "6"];

#[derive(Debug, Clone)]
enum Act {
    Create(usize),
    Remove(usize),
    Cpus(usize, usize),
    Exclusive(usize, usize),
    Partition(usize, usize),
    Control(usize, bool),
    Threaded(usize),
    Freeze(usize, bool),
    Fork(usize, bool),
    End(usize),
    Move(usize, usize, bool),
    Online(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let place = 0..PLACES.len();
    let list = 0..LISTS.len();
    prop_oneof![
        2 => place.clone().prop_map(Act::Create),
        1 => place.clone().prop_map(Act::Remove),
        2 => (place.clone(), list.clone()).prop_map(|(at, list)| Act::Cpus(at, list)),
        4 => (place.clone(), list).prop_map(|(at, list)| Act::Exclusive(at, list)),
        4 => (place.clone(), 0..3usize).prop_map(|(at, word)| Act::Partition(at, word)),
        1 => (place.clone(), any::<bool>()).prop_map(|(at, on)| Act::Control(at, on)),
        1 => place.clone().prop_map(Act::Threaded),
        1 => (place.clone(), any::<bool>()).prop_map(|(at, on)| Act::Freeze(at, on)),
        2 => (0..8usize, any::<bool>()).prop_map(|(task, thread)| Act::Fork(task, thread)),
        1 => (0..8usize).prop_map(Act::End),
        3 => (0..8usize, place, any::<bool>()).prop_map(|(task, at, thread)| Act::Move(task, at, thread)),
        1 => (0..3usize).prop_map(Act::Online),
    ]
}

fn perform(state: &mut State, act: &Act) {
    let at = |index: usize| CgroupPath::parse(PLACES[index]).unwrap();
    // The first ones belong to systemd, containerd and the like.
    let task = |state: &State, index: usize| state.tasks.keys().copied().filter(|id| *id > 103).nth(index);
    let _ = match act {
        Act::Create(place) => state.create(&at(*place)),
        Act::Remove(place) => state.remove(&at(*place)),
        Act::Cpus(place, list) => state.write_file(&at(*place), File::Cpus, LISTS[*list]),
        Act::Exclusive(place, list) => state.write_file(&at(*place), File::CpusExclusive, LISTS[*list]),
        Act::Partition(place, word) => {
            let word = ["member", "root", "isolated"][*word];
            state.write_file(&at(*place), File::Partition, word)
        }
        Act::Control(place, on) => {
            let word = if *on { "+cpuset" } else { "-cpuset" };
            state.write_file(&at(*place), File::SubtreeControl, word)
        }
        Act::Threaded(place) => state.write_file(&at(*place), File::Type, "threaded"),
        Act::Freeze(place, on) => state.write_file(&at(*place), File::Freeze, if *on { "1" } else { "0" }),
        Act::Fork(index, thread) => {
            let creator = task(state, *index).unwrap_or(1);
            let thread = *thread && creator != 1;
            let kind = if thread { ForkKind::Thread } else { ForkKind::Process };
            state.fork(creator, "task", kind).map(drop)
        }
        Act::End(index) => task(state, *index).map_or(Ok(()), |id| state.end(id)),
        Act::Move(index, place, thread) => {
            let file = if *thread { File::Threads } else { File::Procs };
            let id = task(state, *index).unwrap_or_default();
            state.write_file(&at(*place), file, &id.to_string())
        }
        Act::Online(which) => {
            let online: CpuSet = ["0-7", "0-1,4-7", "0-3"][*which].parse().unwrap();
            state.hotplug(online)
        }
    };
    state.after_change();
}

/// Every cgroup with every list present.
fn start() -> (Model, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let model = Model::node(&topology(2, 2, 2), directory.path(), Kernel::V6_12).unwrap();
    for place in PLACES {
        let mut state = model.lock();
        let at = CgroupPath::parse(place).unwrap();
        state.create(&at).unwrap();
        state.write_control(&at, "+cpuset").unwrap();
    }
    (model, directory)
}

fn check(state: &State) {
    let all: Vec<(&CgroupPath, _)> = state.groups.iter().collect();
    for (path, group) in &all {
        let inside = |other: &CgroupPath| up(other).as_ref() == Some(*path);
        let children: Vec<_> = all.iter().filter(|(other, _)| inside(other)).collect();
        let names: BTreeSet<String> = children.iter().map(|(child, _)| child.name().to_owned()).collect();
        assert_eq!(group.children, names, "{path}");
        let threaded = children.iter().filter(|(_, child)| child.threaded).count();
        assert_eq!(group.threaded_children, threaded, "{path}");
        let own: BTreeSet<i32> = state
            .tasks
            .iter()
            .filter(|(_, task)| task.cgroup == **path)
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(group.tasks, own, "{path}");
        let within = state.tasks.values().filter(|task| task.cgroup.is_within(path)).count();
        assert_eq!(group.within, within, "{path}");
        let lists = children.iter().flat_map(|(_, child)| child.cpuset.exclusive.iter());
        assert_eq!(group.claims.exclusive, lists.collect(), "{path}");
        let sizes: usize = children.iter().map(|(_, child)| child.cpuset.exclusive.len()).sum();
        assert_eq!(group.claims.exclusive.len(), sizes, "{path}: lists meet");
        if let Ok(processes) = state.processes_in(path) {
            let here =
                |(id, task): &(&i32, &super::procs::Task)| task.process == **id && state.domain(&task.cgroup) == **path;
            let slowly: Vec<i32> = state.tasks.iter().filter(here).map(|(id, _)| *id).collect();
            assert_eq!(processes, slowly, "{path}");
        }
        let siblings: Vec<_> = all.iter().map(|(other, _)| (*other).clone()).collect();
        let sibling = |other: &&CgroupPath| *other != *path && up(other) == up(path);
        for as_partition in [false, true] {
            for list in LISTS {
                for exclusive in [false, true] {
                    let mut trial = group.cpuset.clone();
                    trial.held = CpuSet::new();
                    let list = list.parse().unwrap();
                    if exclusive {
                        trial.exclusive = list
                    } else {
                        trial.cpus = list
                    }
                    let slowly = siblings
                        .iter()
                        .filter(sibling)
                        .any(|other| state.clashes(&trial, other, as_partition).unwrap());
                    let quickly = state.siblings_allow(path, &trial, as_partition).is_err();
                    assert_eq!(
                        quickly,
                        slowly && **path != CgroupPath::root(),
                        "{path} {trial:?} {as_partition}"
                    );
                }
            }
        }
        // Nothing is left to follow from what was written.
        let parent = up(path).unwrap_or_else(CgroupPath::root);
        let above = if parent == CgroupPath::root() {
            state.cpus.clone()
        } else {
            state.granted(&parent)
        };
        let parents = state.group(&parent).unwrap().cpuset.partition.is_valid() || parent == CgroupPath::root();
        match group.cpuset.partition {
            Partition::Valid { remote: true, .. } => assert!(group.cpuset.held.is_subset(&above), "{path}"),
            Partition::Valid { remote: false, .. } => {
                assert!(parents, "{path}");
                assert_eq!(group.cpuset.held, group.cpuset.wanted().intersection(&above), "{path}");
            }
            _ => assert!(group.cpuset.held.is_empty(), "{path}"),
        }
    }
    let held = |isolated_only: bool| -> CpuSet {
        let counts = |partition| match partition {
            Partition::Valid { isolated, remote } => (remote && !isolated_only) || (isolated && isolated_only),
            _ => false,
        };
        let groups = all.iter().filter(|(_, group)| counts(group.cpuset.partition));
        groups.flat_map(|(_, group)| group.cpuset.held.iter()).collect()
    };
    assert_eq!(state.isolated(), held(true));
    assert!(held(false).is_subset(&state.taken(&CgroupPath::root())));
    for (id, threads) in &state.processes {
        let slowly = state
            .tasks
            .iter()
            .filter(|(_, task)| task.process == *id)
            .map(|(id, _)| *id);
        assert_eq!(*threads, slowly.collect(), "threads of {id}");
    }
    for scope in state.children(&CgroupPath::slice()) {
        for cgroup in [scope.clone(), scope.child("instance")] {
            let file = state
                .directory
                .join("cgroup")
                .join(&cgroup.as_str()[1..])
                .join("cgroup.events");
            let expected = state.groups.contains_key(&cgroup).then(|| state.events(&cgroup) + "\n");
            assert_eq!(std::fs::read_to_string(file).ok(), expected, "{cgroup}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_counted_is_what_is_there(acts in proptest::collection::vec(act(), 1..60)) {
        let (model, _directory) = start();
        for act in &acts {
            let mut state = model.lock();
            perform(&mut state, act);
            check(&state);
        }
    }
}
