//! A topology in few characters: CPUs whose numbers and cores go up in equal steps are one run.
//!
//! A run is `FIRST[+STEP]xCOUNT:SOCKET:NODE:CORE[/THREADS]`: COUNT CPUs from FIRST on, each STEP (1) higher than the one
//! before, on this socket and NUMA node; the first THREADS (1) of them are of core CORE, the next of the core after it.
//! Runs are separated by blanks. 256 CPUs of two sockets whose second threads come last are four runs.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use stelia_cpus::text::excerpt::excerpt;
use stelia_cpus::{Cpu, MAX_CPUS, Topology};

/// The widest step that is looked for: firmware that deals out CPUs to NUMA nodes in turns has as many as there are nodes.
const MAX_STEP: u32 = 16;

struct Run {
    first: u32,
    step: u32,
    count: u32,
    /// The first CPU's place.
    cpu: Cpu,
    threads: u32,
}

impl Run {
    /// The number and place of a CPU of the run.
    fn at(&self, index: u32) -> Option<(u32, Cpu)> {
        let number = self.first.checked_add(index.checked_mul(self.step)?)?;
        let core = self.cpu.core.checked_add(index.checked_div(self.threads)?)?;
        Some((number, Cpu { core, ..self.cpu }))
    }

    /// The longest run from a CPU on with this step.
    fn longest(left: &Topology, first: u32, cpu: Cpu, step: u32) -> Self {
        let run = |count, threads| Self {
            first,
            step,
            count,
            cpu,
            threads,
        };
        let count = |shape: &Self| {
            let there = |index: &u32| {
                let place = shape.at(*index);
                place.is_some_and(|(number, cpu)| left.cpus.get(&number) == Some(&cpu))
            };
            (0..MAX_CPUS).take_while(there).count().try_into().unwrap_or(1)
        };
        // With as many threads as there are CPUs, a run is of one core.
        let threads = count(&run(0, MAX_CPUS)).max(1);
        run(count(&run(0, threads)), threads)
    }

    fn text(&self) -> String {
        let Cpu { package, core, node } = self.cpu;
        let unless_one = |sign: &str, number: u32| match number {
            1 => String::new(),
            number => format!("{sign}{number}"),
        };
        let (step, threads) = (unless_one("+", self.step), unless_one("/", self.threads));
        format!("{}{step}x{}:{package}:{node}:{core}{threads}", self.first, self.count)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (cpus, package, node, cores) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let (from, count) = cpus.split_once('x')?;
        let (first, step) = from.split_once('+').unwrap_or((from, "1"));
        let (core, threads) = cores.split_once('/').unwrap_or((cores, "1"));
        let run = Self {
            first: first.parse().ok()?,
            step: step.parse().ok()?,
            count: count.parse().ok()?,
            cpu: Cpu {
                package: package.parse().ok()?,
                node: node.parse().ok()?,
                core: core.parse().ok()?,
            },
            threads: threads.parse().ok()?,
        };
        let last = run.at(run.count.checked_sub(1)?)?.0;
        (run.step > 0 && run.count <= MAX_CPUS && last < MAX_CPUS).then_some(run)
    }
}

pub(super) fn serialize<S: Serializer>(topology: &Topology, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&write(topology))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Topology, D::Error> {
    read(&String::deserialize(from)?).map_err(D::Error::custom)
}

pub(super) fn write(topology: &Topology) -> String {
    let mut left = topology.clone();
    let mut texts = Vec::new();
    while let Some((first, cpu)) = left.cpus.first_key_value().map(|(first, cpu)| (*first, *cpu)) {
        let runs = (1..=MAX_STEP).map(|step| Run::longest(&left, first, cpu, step));
        // If several are equally long, the narrowest wins.
        let Some(run) = runs.reduce(|best, run| if run.count > best.count { run } else { best }) else {
            break;
        };
        for (number, _) in (0..run.count.max(1)).filter_map(|index| run.at(index)) {
            left.cpus.remove(&number);
        }
        texts.push(run.text());
    }
    texts.join(" ")
}

pub(super) fn read(text: &str) -> Result<Topology, String> {
    let mut topology = Topology::default();
    for part in text.split(' ').filter(|part| !part.is_empty()) {
        let wrong = |why: &str| format!("topology: {:?} {why}", excerpt(part));
        let run = Run::parse(part).ok_or_else(|| wrong("is not a run of CPUs"))?;
        for index in 0..run.count {
            let (number, cpu) = run.at(index).ok_or_else(|| wrong("is not a run of CPUs"))?;
            if topology.cpus.insert(number, cpu).is_some() {
                return Err(wrong("has a CPU that is there twice"));
            }
        }
    }
    Ok(topology)
}
