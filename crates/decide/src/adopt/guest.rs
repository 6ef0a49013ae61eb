//! A guest's topology by QEMU's option `-smp`.

use std::collections::BTreeMap;

/// Limit of a guest's CPUs: every machine type of QEMU allows fewer.
const MAX_GUEST_CPUS: u32 = 1 << 16;

/// Sockets, dies, clusters (modules on x86), cores and threads: their product is `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestShape {
    /// CPUs that the guest starts with.
    pub cpus: u32,
    /// CPUs that it may have, with those that are plugged later (`maxcpus`).
    pub most: u32,
    pub sockets: u32,
    pub dies: u32,
    pub clusters: u32,
    pub cores: u32,
    pub threads: u32,
}

impl GuestShape {
    /// Where the vCPU of this index is in the guest, in the words of QMP's `query-cpus-fast`. QEMU counts threads first, then
    /// cores, clusters, dies and sockets.
    pub fn place(&self, index: u32) -> BTreeMap<String, i64> {
        let mut rest = index;
        let mut next = |of: u32| {
            let id = rest.checked_rem(of).unwrap_or_default();
            rest = rest.checked_div(of).unwrap_or_default();
            i64::from(id)
        };
        let [thread, core, cluster, die] = [self.threads, self.cores, self.clusters, self.dies].map(&mut next);
        let places = [
            ("socket-id", i64::from(rest)),
            ("die-id", die),
            ("cluster-id", cluster),
            ("core-id", core),
            ("thread-id", thread),
        ];
        places.map(|(name, id)| (name.to_owned(), id)).into()
    }
}

/// The topology that a command line gives its guest; `None` where it has no `-smp`, several, or one that is not understood.
/// What is left out is as QEMU 6.2 and later have it: all cores in one socket.
pub fn shape(command: &[String]) -> Option<GuestShape> {
    let mut given = command
        .iter()
        .zip(command.iter().skip(1))
        .filter(|(word, _)| is_smp(word));
    let (_, value) = given.next()?;
    match given.next() {
        None => parse(value),
        Some(_) => None,
    }
}

/// QEMU takes one dash or two.
fn is_smp(word: &str) -> bool {
    word == "-smp" || word == "--smp"
}

fn parse(value: &str) -> Option<GuestShape> {
    let mut given: BTreeMap<&str, u32> = BTreeMap::new();
    for (place, part) in value.split(',').enumerate() {
        let (key, number) = match part.split_once('=') {
            Some(pair) => pair,
            // The first value needs no key.
            None if place == 0 => ("cpus", part),
            None => return None,
        };
        let plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let number: u32 = number
            .parse()
            .ok()
            .filter(|number| plain && (1..=MAX_GUEST_CPUS).contains(number))?;
        let known = [
            "cpus", "maxcpus", "sockets", "dies", "clusters", "modules", "cores", "threads",
        ];
        if !known.contains(&key) || given.insert(key, number).is_some() {
            return None;
        }
    }
    let get = |key: &str| given.get(key).copied();
    let dies = get("dies").unwrap_or(1);
    // Modules are x86's clusters; a machine has one of the two.
    let clusters = get("clusters").unwrap_or(1).checked_mul(get("modules").unwrap_or(1))?;
    let (sockets, cores, threads) = (get("sockets"), get("cores"), get("threads"));
    let asked = get("maxcpus").or(get("cpus"));
    let inner = dies.checked_mul(clusters)?;
    let all = |sockets: u32, cores: u32, threads: u32| {
        let product = inner.checked_mul(sockets)?.checked_mul(cores)?.checked_mul(threads)?;
        (product <= MAX_GUEST_CPUS).then_some(product)
    };
    // What one level has so that all of them have `most` CPUs.
    let rest = |most: u32, others: Option<u32>| {
        let others = others?;
        most.is_multiple_of(others)
            .then_some(most / others)
            .filter(|count| *count > 0)
    };
    let (sockets, cores, threads) = match (asked, sockets, cores, threads) {
        (None, sockets, cores, threads) => (sockets.unwrap_or(1), cores.unwrap_or(1), threads.unwrap_or(1)),
        (Some(most), Some(sockets), Some(cores), None) => (sockets, cores, rest(most, all(sockets, cores, 1))?),
        (Some(most), None, Some(cores), threads) => {
            let threads = threads.unwrap_or(1);
            (rest(most, all(1, cores, threads))?, cores, threads)
        }
        (Some(most), sockets, None, threads) => {
            let (sockets, threads) = (sockets.unwrap_or(1), threads.unwrap_or(1));
            (sockets, rest(most, all(sockets, 1, threads))?, threads)
        }
        (Some(_), Some(sockets), Some(cores), Some(threads)) => (sockets, cores, threads),
    };
    let product = all(sockets, cores, threads)?;
    let most = asked.unwrap_or(product);
    let cpus = get("cpus").unwrap_or(most);
    (product == most && cpus <= most).then_some(GuestShape {
        cpus,
        most,
        sockets,
        dies,
        clusters,
        cores,
        threads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Option<(u32, u32, [u32; 5])> {
        let shape = shape(&["qemu-kvm", "-smp", value].map(str::to_owned))?;
        let levels = [shape.sockets, shape.dies, shape.clusters, shape.cores, shape.threads];
        Some((shape.cpus, shape.most, levels))
    }

    #[test]
    fn a_topology_is_read_as_qemu_reads_it() {
        for (value, expected) in [
            ("4", (4, 4, [1, 1, 1, 4, 1])),
            ("cpus=4", (4, 4, [1, 1, 1, 4, 1])),
            ("4,sockets=2,cores=1,threads=2", (4, 4, [2, 1, 1, 1, 2])),
            ("8,sockets=2,cores=2", (8, 8, [2, 1, 1, 2, 2])),
            ("8,cores=2,threads=2", (8, 8, [2, 1, 1, 2, 2])),
            ("8,sockets=2", (8, 8, [2, 1, 1, 4, 1])),
            ("8,threads=2", (8, 8, [1, 1, 1, 4, 2])),
            ("sockets=2,cores=2,threads=2", (8, 8, [2, 1, 1, 2, 2])),
            (
                "1,maxcpus=4,sockets=4,dies=1,clusters=1,cores=1,threads=1",
                (1, 4, [4, 1, 1, 1, 1]),
            ),
            (
                "16,sockets=1,dies=2,modules=2,cores=2,threads=2",
                (16, 16, [1, 2, 2, 2, 2]),
            ),
        ] {
            assert_eq!(of(value), Some(expected), "{value}");
        }
        for bad in [
            "",
            "0",
            "x",
            "4,",
            "4,4",
            "4,cores",
            "4,books=2",
            "4,cores=0",
            "4,cores=3",
            "4,sockets=2,cores=2,threads=2",
            "8,maxcpus=4",
            "+4",
            "4,cores=2,cores=2",
            "99999999999",
            "65537",
            "cpus=4294967295,sockets=65536,cores=65536",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
        let words = |words: &[&str]| shape(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["qemu-kvm", "-smp", "2", "-smp", "4"]), None);
        assert_eq!(words(&["qemu-kvm", "-smp"]), None);
        assert_eq!(words(&["firecracker"]), None);
        assert!(words(&["qemu-kvm", "--smp", "2"]).is_some());
    }

    #[test]
    fn threads_are_counted_before_cores_and_cores_before_sockets() {
        let shape = shape(&["q", "-smp", "8,sockets=2,cores=2,threads=2"].map(str::to_owned)).unwrap();
        let place = |index: u32| {
            let place = shape.place(index);
            ["socket-id", "core-id", "thread-id"].map(|name| place[name])
        };
        assert_eq!(place(0), [0, 0, 0]);
        assert_eq!(place(3), [0, 1, 1]);
        assert_eq!(place(6), [1, 1, 0]);
    }
}
