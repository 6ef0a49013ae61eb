use std::fs;

use proptest::prelude::*;

use super::*;
use crate::testing::{Shape, shapes};

/// The files of a host below a directory, as the kernel prints them.
fn written(topology: &Topology) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: String, text: String| {
        let path = dir.path().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    write("cpu/online".into(), topology.online().to_string());
    for (number, cpu) in &topology.cpus {
        let file = |name: &str| format!("cpu/cpu{number}/topology/{name}");
        write(file("physical_package_id"), cpu.package.to_string());
        write(file("core_id"), cpu.core.to_string());
    }
    let nodes: BTreeSet<u32> = topology.cpus.values().map(|cpu| cpu.node).collect();
    for node in nodes {
        let here = topology.cpus.iter().filter(|(_, cpu)| cpu.node == node);
        let cpus: CpuSet = here.map(|(number, _)| *number).collect();
        write(format!("node/node{node}/cpulist"), cpus.to_string());
    }
    dir
}

#[test]
fn hosts_of_the_article_and_of_4096_cpus_are_read() {
    for (nodes, cores, near, sibling) in [(2, 32, "0-31,64-95", 65), (16, 128, "0-127,2048-2175", 2049)] {
        let shape = Shape {
            nodes,
            cores,
            threads: 2,
            interleaved: true,
        };
        let host = shape.topology();
        let dir = written(&host);
        let read = Topology::read(dir.path()).unwrap();
        assert_eq!(read, host);
        assert_eq!(read.near(&"1".parse().unwrap()).to_string(), near);
        assert_eq!(read.siblings(1), [1, sibling].into_iter().collect());
    }
}

#[test]
fn a_list_that_the_kernel_cut_off_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("devices/system/cpu/online");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // One thread of each core, where siblings are numbered one after the other.
    let all: CpuSet = (0..4096).step_by(2).collect();
    let text = all.to_string();
    fs::write(&path, &text[..PAGE - 1]).unwrap();
    let error = Topology::read(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("cpu/online") && error.contains("cut the list off"),
        "{error}"
    );
    // A kernel that prints it whole.
    fs::write(&path, format!("{text}\n")).unwrap();
    assert_eq!(list(&path).unwrap(), all);
}

#[test]
fn a_host_of_two_sockets_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("devices/system/cpu/online", "0-3\n");
    for cpu in 0..4u32 {
        write(
            &format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"),
            &format!("{}\n", cpu / 2),
        );
        write(&format!("devices/system/cpu/cpu{cpu}/topology/core_id"), "0\n");
    }
    write("devices/system/node/node0/cpulist", "0-1\n");
    write("devices/system/node/node1/cpulist", "2-3\n");
    let topology = Topology::read(dir.path()).unwrap();
    assert_eq!(
        topology.cpus[&3],
        Cpu {
            package: 1,
            core: 0,
            node: 1
        }
    );
    assert_eq!(topology.online().to_string(), "0-3");
}

/// A CPU's files: socket, `core_id`, NUMA node, and what more the kernel says of its core.
type Files<'a> = (i64, i64, Option<u32>, &'a [(&'a str, String)]);

/// Hosts whose ids are as given; the CPUs are numbered from 0.
fn made_of(cpus: &[Files<'_>]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: String, text: String| {
        let path = dir.path().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let all: CpuSet = (0..cpus.len() as u32).collect();
    write("cpu/online".into(), all.to_string());
    let mut nodes: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for (number, (package, core, node, more)) in (0u32..).zip(cpus) {
        let file = |name: &str| format!("cpu/cpu{number}/topology/{name}");
        write(file("physical_package_id"), package.to_string());
        write(file("core_id"), core.to_string());
        more.iter().for_each(|(name, text)| write(file(name), text.clone()));
        if let Some(node) = node {
            nodes.entry(*node).or_default().insert(number);
        }
    }
    for (node, cpus) in nodes {
        write(format!("node/node{node}/cpulist"), cpus.to_string());
    }
    dir
}

/// The cores, each by its CPUs.
fn cores(topology: &Topology) -> Vec<String> {
    let mut cores: BTreeMap<(u32, u32), CpuSet> = BTreeMap::new();
    for (number, cpu) in &topology.cpus {
        cores.entry((cpu.package, cpu.core)).or_default().insert(*number);
    }
    let mut cores: Vec<CpuSet> = cores.into_values().collect();
    cores.sort_by_key(|core| core.iter().next());
    cores.iter().map(CpuSet::to_string).collect()
}

/// A package of two dies, each with a core 0 of CPUs 0 and 2, and 1 and 3.
fn dies<'a>(node: fn(u32) -> u32, more: &'a [Vec<(&'a str, String)>; 4]) -> Vec<Files<'a>> {
    let cpu = |number: u32| (0, 0, Some(node(number)), more[number as usize].as_slice());
    (0..4).map(cpu).collect()
}

#[test]
fn cores_of_different_dies_are_told_apart_by_the_kernels_lists_by_dies_and_by_nodes() {
    type FilesOfCpu = fn(u32) -> Vec<(&'static str, String)>;
    let of = |list: FilesOfCpu| [0, 1, 2, 3].map(list);
    let lists: [FilesOfCpu; 4] = [
        |cpu| vec![("core_cpus_list", format!("{},{}", cpu % 2, cpu % 2 + 2))],
        |cpu| vec![("thread_siblings_list", format!("{},{}", cpu % 2, cpu % 2 + 2))],
        |cpu| vec![("die_id", (cpu % 2).to_string())],
        // A list that does not name the CPU itself is not believed.
        |cpu| vec![("core_cpus_list", "9".to_owned()), ("die_id", (cpu % 2).to_string())],
    ];
    for list in lists {
        let dir = made_of(&dies(|_| 0, &of(list)));
        assert_eq!(cores(&Topology::read(dir.path()).unwrap()), ["0,2", "1,3"]);
        // kubelet knows neither lists of siblings nor dies.
        assert_eq!(cores(&Topology::read_as_kubelet(dir.path()).unwrap()), ["0-3"]);
    }
    let dir = made_of(&dies(|cpu| cpu % 2, &of(|_| Vec::new())));
    assert_eq!(cores(&Topology::read(dir.path()).unwrap()), ["0,2", "1,3"]);
    assert_eq!(cores(&Topology::read_as_kubelet(dir.path()).unwrap()), ["0,2", "1,3"]);
}

/// VMware: both CPUs of a socket have the same `core_id`, and are no siblings.
#[test]
fn where_the_kernel_and_kubelet_count_cores_differently_each_is_read_as_it_counts() {
    let own: Vec<[(&str, String); 1]> = (0..4).map(|cpu| [("thread_siblings_list", cpu.to_string())]).collect();
    let cpu = |cpu: usize| (cpu as i64 / 2, 0, Some(cpu as u32 / 2), own[cpu].as_slice());
    let dir = made_of(&(0..4).map(cpu).collect::<Vec<_>>());
    assert_eq!(cores(&Topology::read(dir.path()).unwrap()), ["0", "1", "2", "3"]);
    assert_eq!(cores(&Topology::read_as_kubelet(dir.path()).unwrap()), ["0-1", "2-3"]);
}

/// POWER, s390 and RISC-V: -1 is "none".
#[test]
fn cpus_without_a_socket_are_of_one_and_those_without_a_core_are_each_their_own() {
    let power = made_of(&[(-1, 0, Some(0), &[]), (-1, 0, Some(0), &[]), (-1, 8, Some(8), &[])]);
    for topology in [
        Topology::read(power.path()).unwrap(),
        Topology::read_as_kubelet(power.path()).unwrap(),
    ] {
        assert_eq!(cores(&topology), ["0-1", "2"]);
        let cpu = |package, core, node| Cpu { package, core, node };
        let found: Vec<Cpu> = topology.cpus.values().copied().collect();
        assert_eq!(found, [cpu(0, 0, 0), cpu(0, 0, 0), cpu(0, 8, 8)]);
    }
    // s390: a core is told apart by its book as well.
    let book = |book: u32| vec![("book_id", book.to_string()), ("drawer_id", "0".to_owned())];
    let books = [book(0), book(0), book(1)];
    let files: Vec<Files<'_>> = books.iter().map(|book| (-1, 1, None, book.as_slice())).collect();
    let s390 = made_of(&files);
    assert_eq!(cores(&Topology::read(s390.path()).unwrap()), ["0-1", "2"]);
    assert_eq!(cores(&Topology::read_as_kubelet(s390.path()).unwrap()), ["0-1", "2"]);
    // Without NUMA each socket is a node to kubelet, also the one that is none.
    let riscv = made_of(&[(-1, -1, None, &[]), (-1, -1, None, &[])]);
    assert_eq!(cores(&Topology::read(riscv.path()).unwrap()), ["0", "1"]);
    assert_eq!(cores(&Topology::read_as_kubelet(riscv.path()).unwrap()), ["0-1"]);
    let mixed = made_of(&[(-1, 0, None, &[]), (0, 0, None, &[]), (3, 0, None, &[])]);
    let places =
        |topology: Topology| -> Vec<(u32, u32)> { topology.cpus.values().map(|cpu| (cpu.package, cpu.node)).collect() };
    assert_eq!(places(Topology::read(mixed.path()).unwrap()), [(0, 0), (1, 0), (4, 0)]);
    assert_eq!(
        places(Topology::read_as_kubelet(mixed.path()).unwrap()),
        [(0, 0), (1, 1), (4, 4)]
    );
}

#[test]
fn a_file_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Topology::read(dir.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("cpu/online: "), "{error}");
    let dir = made_of(&[(0, 0, Some(0), &[])]);
    fs::remove_file(dir.path().join("devices/system/node/node0/cpulist")).unwrap();
    let error = Topology::read(dir.path()).unwrap_err();
    assert!(error.to_string().contains("node0/cpulist: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever `core_id` says, the host's siblings are those of the kernel's lists.
    #[test]
    fn siblings_are_the_kernels(shape in shapes().prop_filter("small", |shape| shape.nodes * shape.cores <= 16), ids in 1i64..9) {
        let host = shape.topology();
        let lists: Vec<[(&str, String); 1]> = host
            .cpus
            .keys()
            .map(|cpu| [("core_cpus_list", host.siblings(*cpu).to_string())])
            .collect();
        let files: Vec<Files<'_>> = host
            .cpus
            .values()
            .zip(&lists)
            .map(|(cpu, list)| (i64::from(cpu.package), i64::from(cpu.core) % ids, Some(cpu.node), list.as_slice()))
            .collect();
        let read = Topology::read(made_of(&files).path()).unwrap();
        for cpu in host.cpus.keys() {
            prop_assert_eq!(read.siblings(*cpu), host.siblings(*cpu));
            prop_assert_eq!((read.cpus[cpu].package, read.cpus[cpu].node), (host.cpus[cpu].package, host.cpus[cpu].node));
        }
    }
}
