use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stelia_cpus::testing::{Shape, shapes};

use super::*;

fn vcpus(count: u32) -> Vec<Vcpu> {
    let bare = |index| Vcpu {
        index,
        props: BTreeMap::new(),
    };
    (0..count).map(bare).collect()
}

/// A guest as `-smp sockets=,cores=,threads=` makes it; QEMU counts threads fastest.
fn guest(sockets: u32, cores: u32, threads: u32) -> Vec<Vcpu> {
    let one = |index: u32| {
        let thread = index % threads;
        let core = index / threads % cores;
        let socket = index / threads / cores;
        let props = [
            ("socket-id", socket),
            ("core-id", core),
            ("thread-id", thread),
            ("node-id", socket),
        ];
        Vcpu {
            index,
            props: props
                .into_iter()
                .map(|(name, id)| (name.to_owned(), i64::from(id)))
                .collect(),
        }
    };
    (0..sockets * cores * threads).map(one).collect()
}

/// Two NUMA nodes of 8 cores; the siblings are n and n + 16.
fn host() -> Topology {
    Shape {
        nodes: 2,
        cores: 8,
        threads: 2,
        interleaved: true,
    }
    .topology()
}

fn pins(policy: PlacementPolicy, vcpus: &[Vcpu], cpus: &str) -> (Vec<u32>, Option<String>) {
    let placement = place(policy, vcpus, [], &cpus.parse().unwrap(), &host());
    (
        placement.pins.iter().map(|(_, cpu)| cpu.unwrap()).collect(),
        placement.note,
    )
}

#[test]
fn each_policy_has_its_order() {
    let four = vcpus(4);
    assert_eq!(pins(PlacementPolicy::Linear, &four, "1-2,17-18").0, [1, 2, 17, 18]);
    assert_eq!(pins(PlacementPolicy::FullPcpus, &four, "1-2,17-18").0, [1, 17, 2, 18]);
    assert_eq!(
        pins(PlacementPolicy::SpreadByPcpus, &four, "1-2,17-18").0,
        [1, 2, 17, 18]
    );
    assert_eq!(pins(PlacementPolicy::FullPcpus, &four, "0-2,17-18").0, [1, 17, 2, 18]);
    assert_eq!(
        pins(PlacementPolicy::SpreadByPcpus, &vcpus(3), "1-2,17-18").0,
        [1, 2, 17]
    );
    assert_eq!(pins(PlacementPolicy::Guest, &four, "1-2,17-18").0, [1, 2, 17, 18]);
}

#[test]
fn guest_siblings_share_a_core_and_guest_sockets_a_node() {
    let (cpus, note) = pins(PlacementPolicy::Guest, &guest(2, 2, 2), "0-1,8-9,16-17,24-25");
    assert_eq!((cpus, note), (vec![0, 16, 1, 17, 8, 24, 9, 25], None));
    // The larger guest node takes the host node it fits.
    let (cpus, note) = pins(PlacementPolicy::Guest, &guest(2, 1, 2), "0,8-10,16,24-26");
    assert_eq!((cpus, note), (vec![0, 16, 8, 24], None));
}

#[test]
fn what_the_set_cannot_give_is_said() {
    let (cpus, note) = pins(PlacementPolicy::Guest, &guest(1, 2, 2), "1-3,17");
    assert_eq!(cpus, [1, 17, 2, 3]);
    assert_eq!(note.unwrap(), "1 guest cores are split over several host cores");
    let (_, note) = pins(PlacementPolicy::Guest, &guest(1, 2, 2), "1,8,17,24");
    assert!(note.unwrap().contains("several NUMA nodes"));
}

#[test]
fn more_vcpus_than_cpus_are_not_pinned_and_a_note_says_so() {
    for policy in PlacementPolicy::ALL {
        let placement = place(policy, &vcpus(3), [], &"4-5".parse().unwrap(), &host());
        assert_eq!(placement.pins, [0, 1, 2].map(|index| (ThreadRole::Vcpu(index), None)));
        assert!(placement.note.unwrap().contains("3 vCPUs for 2 CPUs"));
    }
}

#[test]
fn an_offline_cpu_comes_last() {
    let mut topology = host();
    topology.cpus.remove(&1);
    for policy in PlacementPolicy::ALL {
        let placement = place(policy, &vcpus(3), [], &"1-2,3".parse().unwrap(), &topology);
        assert_eq!(
            placement.pins.last(),
            Some(&(ThreadRole::Vcpu(2), Some(1))),
            "{policy:?}"
        );
    }
}

/// How many physical cores a list of CPUs touches.
fn touched(topology: &Topology, cpus: impl Iterator<Item = u32>) -> usize {
    let core = |cpu: u32| topology.cpus.get(&cpu).map(|cpu| (cpu.package, cpu.core));
    cpus.map(core).collect::<BTreeSet<_>>().len()
}

proptest! {
    #[test]
    fn every_vcpu_has_a_cpu_of_its_own_within_the_set(
        shape in shapes(), bits in proptest::collection::vec(any::<bool>(), 1024), sockets in 1u32..5, threads in 1u32..3,
        take in 0u32..100,
    ) {
        let topology = shape.topology();
        let cpus: CpuSet = topology.online().iter().filter(|cpu| bits[*cpu as usize % 1024]).collect();
        let count = cpus.len() as u32 * take / 100;
        let cores = count / sockets / threads;
        let mut list = guest(sockets, cores.max(1), threads);
        list.truncate(count as usize);
        let mut reversed = list.clone();
        reversed.reverse();
        for policy in PlacementPolicy::ALL {
            let placement = place(policy, &list, [], &cpus, &topology);
            prop_assert_eq!(&placement, &place(policy, &reversed, [], &cpus, &topology));
            let used: CpuSet = placement.pins.iter().filter_map(|(_, cpu)| *cpu).collect();
            prop_assert_eq!(used.len(), list.len());
            prop_assert!(used.is_subset(&cpus));
            prop_assert!(placement.pins.iter().map(|(role, _)| *role).eq((0..list.len() as u32).map(ThreadRole::Vcpu)));
        }
        let full: Vec<u32> = place(PlacementPolicy::FullPcpus, &list, [], &cpus, &topology).pins.iter().filter_map(|pin| pin.1).collect();
        let spread: Vec<u32> =
            place(PlacementPolicy::SpreadByPcpus, &list, [], &cpus, &topology).pins.iter().filter_map(|pin| pin.1).collect();
        let cores_of_set = touched(&topology, cpus.iter());
        prop_assert_eq!(touched(&topology, spread.iter().copied()), cores_of_set.min(list.len()));
        // As few cores as can hold them: the largest ones.
        let mut sizes: Vec<usize> = host_cores::cores(&cpus, &topology).iter().map(|core| core.cpus.len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = 0;
        let least = sizes.iter().take_while(|size| { let more = room < list.len(); room += **size; more }).count();
        prop_assert_eq!(touched(&topology, full.iter().copied()), least);
    }

    #[test]
    fn guest_siblings_are_host_siblings_when_the_set_is_of_whole_cores(
        shape in shapes(), picked in proptest::collection::vec(any::<bool>(), 512), sockets in 1u32..4,
    ) {
        let topology = shape.topology();
        let cores = host_cores::cores(&topology.online(), &topology);
        let whole: Vec<_> = cores.into_iter().enumerate().filter(|(n, _)| picked[n % 512]).map(|(_, core)| core).collect();
        let cpus: CpuSet = whole.iter().flat_map(|core| core.cpus.iter().copied()).collect();
        let cores = whole.len() as u32 / sockets;
        prop_assume!(cores > 0);
        let placement = place(PlacementPolicy::Guest, &guest(sockets, cores, shape.threads), [], &cpus, &topology);
        for siblings in placement.pins.chunks(shape.threads as usize) {
            prop_assert_eq!(touched(&topology, siblings.iter().filter_map(|pin| pin.1)), 1);
        }
    }
}

#[test]
fn io_threads_take_what_the_vcpus_leave_over() {
    let threads = [0, 1].map(ThreadRole::IoThread);
    let topology = stelia_testnode::topology(2, 2, 2);
    for policy in PlacementPolicy::ALL {
        let pins = |cpus: &str| place(policy, &vcpus(2), threads, &cpus.parse().unwrap(), &topology).pins;
        let placed = pins("2-4");
        let without = place(policy, &vcpus(2), [], &"2-4".parse().unwrap(), &topology).pins;
        assert_eq!(placed[..2], without, "{policy:?}");
        assert_eq!((placed[2].0, placed[3]), (threads[0], (threads[1], None)));
        assert!(placed[2].1.is_some());
        assert_eq!(pins("2-3")[2].1, None);
        assert!(pins("2").iter().all(|(_, cpu)| cpu.is_none()));
    }
}
