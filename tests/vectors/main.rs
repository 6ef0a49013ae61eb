//! Runs recorded cases of others' code: `make vectors DIR=folder` sets STELIA_VECTORS. It prints how many match and the
//! first that do not, and fails if there are any.

mod cpu_sequences;
mod cpus;
mod koordinator;
mod merge;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;
use stelia_cpus::{Cpu, Topology};

/// Differences printed for each file.
const SHOWN: usize = 10;

/// What is held against a case's expectation.
enum Verdict {
    Match,
    Differs {
        expected: String,
        got: String,
    },
    /// For this reason nothing is compared.
    LeftOut(&'static str),
}

/// Judges the cases of one file.
type Judge = Box<dyn Fn(&Value) -> anyhow::Result<Verdict>>;

/// A format of cases: it tells by a file's first line whether it is its own, and judges the cases of a folder.
type Format = fn(folder: &Path, first: &Value) -> Option<anyhow::Result<Judge>>;

const FORMATS: [Format; 3] = [koordinator::open, merge::open, cpus::open];

/// A host of the cases.
#[derive(Deserialize)]
struct Machine {
    name: String,
    #[serde(default)]
    cpus_per_core: usize,
    #[serde(default)]
    num_sockets: usize,
    cpus: Vec<MachineCpu>,
}

#[derive(Deserialize)]
struct MachineCpu {
    cpu: u32,
    #[serde(default)]
    core: u32,
    socket: u32,
    numa: u32,
    #[serde(default)]
    uncore: u32,
    raw_core: u32,
}

impl Machine {
    fn topology(&self) -> Topology {
        let describe = |cpu: &MachineCpu| {
            let described = Cpu {
                package: cpu.socket,
                core: cpu.raw_core,
                node: cpu.numa,
            };
            (cpu.cpu, described)
        };
        Topology {
            cpus: self.cpus.iter().map(describe).collect(),
        }
    }
}

/// The folder's machines; where it brings none, those of our own copy of these cases.
fn machines(folder: &Path, own: &str) -> anyhow::Result<Vec<Machine>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/vectors")
        .join(own);
    let folder = if folder.join("topologies.json").exists() {
        folder
    } else {
        &own
    };
    let path = folder.join("topologies.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

#[derive(Default)]
struct Tally {
    matched: usize,
    compared: usize,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let given = std::env::var_os("STELIA_VECTORS").filter(|folder| !folder.is_empty());
    let folder = given.map_or_else(|| root.join("tests/data/vectors"), |folder| root.join(folder));
    match run(&folder) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything matches.
fn run(folder: &Path) -> anyhow::Result<bool> {
    let mut total = Tally::default();
    for path in cases_below(folder)? {
        let tally = file(&path).with_context(|| path.display().to_string())?;
        total.matched += tally.matched;
        total.compared += tally.compared;
    }
    println!("{} of {} match", total.matched, total.compared);
    Ok(total.compared > 0 && total.matched == total.compared)
}

fn cases_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(cases_below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "ndjson") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn file(path: &Path) -> anyhow::Result<Tally> {
    let text = fs::read_to_string(path)?;
    let cases = text.lines().filter(|line| !line.is_empty()).map(serde_json::from_str);
    let cases: Vec<Value> = cases.collect::<Result<_, _>>()?;
    let Some(first) = cases.first() else {
        return Ok(Tally::default());
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let Some(judge) = FORMATS.iter().find_map(|format| format(folder, first)) else {
        bail!("its format is none of those known");
    };
    let judge = judge?;
    let (mut tally, mut left_out) = (Tally::default(), BTreeMap::new());
    for case in &cases {
        let id = case["id"].as_str().unwrap_or("a case without id");
        match judge(case).with_context(|| id.to_owned())? {
            Verdict::LeftOut(why) => *left_out.entry(why).or_insert(0) += 1,
            Verdict::Match => {
                tally.compared += 1;
                tally.matched += 1;
            }
            Verdict::Differs { expected, got } => {
                tally.compared += 1;
                if tally.compared - tally.matched <= SHOWN {
                    println!("{id}: expected {expected}, got {got}");
                }
            }
        }
    }
    print!("{}: {} of {} match", path.display(), tally.matched, tally.compared);
    for (why, count) in left_out {
        print!("; {count} left out: {why}");
    }
    println!();
    Ok(tally)
}
