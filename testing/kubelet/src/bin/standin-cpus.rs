//! Which CPUs kubelet's static policy would give a container now: what the stand-in for kubelet allocates by.
//!
//! `standin-cpus STATE COUNT RESERVED [OPTION=VALUE…]`: the state file, how many CPUs, the reserved ones (a list, may be empty).
//! Prints the CPUs, or kubelet's reason and message on standard error with exit code 1. That a pool of the stand-in's need not
//! be all of the node, as kubelet would demand at its start, is on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use kubelet_planner::cpus::{CpuGroups, CpuOptions, CpuState, Kubelet, StaticPolicy};
use kubelet_planner::{Amounts, Container, ContainerKind, Pod, Resources};
use stelia_cpus::{CpuSet, Topology};
use stelia_kubelet::CpuManagerState;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match answer(&arguments) {
        Ok(cpus) => {
            println!("{cpus}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answer(arguments: &[String]) -> anyhow::Result<CpuSet> {
    let [path, count, reserved, options @ ..] = arguments else {
        bail!("standin-cpus STATE COUNT RESERVED [OPTION=VALUE…]");
    };
    let count: u64 = count.parse().with_context(|| format!("COUNT {count:?}"))?;
    let reserved: CpuSet = reserved.parse().with_context(|| format!("RESERVED {reserved:?}"))?;
    let given: Option<BTreeMap<String, String>> = options
        .iter()
        .map(|option| {
            option
                .split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect();
    let options = CpuOptions::parse(&given.context("an option is OPTION=VALUE")?)?;

    let sys = Path::new("/sys");
    let node = Topology::read_as_kubelet(sys).context("read /sys")?;
    let topology = CpuGroups::new(&node, &node.caches(sys));
    options.check(&topology)?;
    let bytes = fs::read(path).with_context(|| format!("read {path}"))?;
    let mut state = CpuState::from(&CpuManagerState::parse(&bytes).with_context(|| path.clone())?);

    let amounts = Amounts {
        milli_cpus: Some(count.saturating_mul(1000)),
        memory: Some(1),
        ..Amounts::default()
    };
    let pod = Pod {
        uid: "new".to_owned(),
        resources: None,
        containers: vec![Container::new(
            "new",
            ContainerKind::App,
            Resources::guaranteed(amounts),
        )],
    };
    let mut policy = StaticPolicy::new(&topology, options, Kubelet::default(), reserved.len(), &reserved)?;
    match policy.allocate(&mut state, &pod, &pod.containers[0], None) {
        Ok(Some(answer)) => Ok(answer.cpus),
        Ok(None) => bail!("COUNT is 0"),
        Err(refusal) => bail!("{}: {refusal}", refusal.reason()),
    }
}
