//! The check of an OCI runtime, `--try-runtime`: does it answer its manager about a container whose cgroup is a threaded domain?
//!
//! The runtime is run to find out, because its version does not say it: distributions carry patches, and a wrapper has no version. Two
//! stand-ins for a container are made in the unit's own delegated cgroup, with sleeping processes: a plain one, and one with the cgroups of
//! a container that is isolated in place. The runtime is asked about each as its manager asks at a restart, with a copy of a running
//! container's state in which the stand-in replaces the container. If it answers about the plain one only, it does not cope with threaded
//! cgroups. If it answers about neither, the check has failed and says nothing about the runtime.
//!
//! `steliad-try-runtime@.service` runs it. The runtime is not asked about the container itself, of whose files only those of the runtime are read.

mod container_state;
mod question;
mod stand_in;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use stelia_kernel::oci::{Program, Runtime, RuntimeVerdict, open_runtime, verdict_file};

use stand_in::{Shape, StandIn};
use stelia_kernel::clock::now_us;

/// Exit code of a check that failed: 1 says that the runtime does not cope, and clap takes 2 for wrong usage.
const EXIT_CHECK_FAILED: u8 = 3;

/// Check the runtime of a running container, write the verdict to its file and print it.
pub(crate) fn main(container_id: &str) -> ExitCode {
    match check(container_id) {
        Ok(verdict) if verdict.copes => {
            println!("{} copes with threaded cgroups", verdict.binary.display());
            ExitCode::SUCCESS
        }
        Ok(verdict) => {
            println!(
                "{} does not cope with threaded cgroups: {}",
                verdict.binary.display(),
                verdict.words
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("steliad: the runtime of container {container_id:?} was not tried: {error:#}");
            ExitCode::from(EXIT_CHECK_FAILED)
        }
    }
}

fn check(container_id: &str) -> anyhow::Result<RuntimeVerdict> {
    // Both answers are those of the program that is open, whatever has its name by then.
    let (runtime, program) = open_runtime(Path::new("/"), container_id)?;
    let file = runtime.state_file(container_id);
    let state = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let check = Check {
        runtime: &runtime,
        program: &program,
        container_id,
        state: &state,
    };

    if let Err(words) = check.ask_about(Shape::Plain)? {
        bail!(
            "{} does not answer about a plain cgroup: {words}",
            runtime.binary.display()
        );
    }
    let answered = check.ask_about(Shape::Threaded)?;

    let verdict = RuntimeVerdict {
        manager: runtime.manager,
        binary: runtime.binary.clone(),
        identity: program.identity(),
        copes: answered.is_ok(),
        words: answered.err().unwrap_or_default(),
        tried_us: now_us(),
    };
    let file = verdict_file(Path::new("/run"), &runtime);
    verdict
        .write(&file)
        .with_context(|| format!("write {}", file.display()))?;
    Ok(verdict)
}

/// One check of a runtime with one container's state.
struct Check<'a> {
    runtime: &'a Runtime,
    program: &'a Program,
    container_id: &'a str,
    /// The container's state, as the runtime stores it.
    state: &'a str,
}

impl Check<'_> {
    /// Ask about a stand-in of this shape. The inner error is what the runtime printed. The stand-in is removed in any case.
    fn ask_about(&self, shape: Shape) -> anyhow::Result<Result<(), String>> {
        let stand_in = StandIn::make(shape)?;
        let answered = self.ask(&stand_in);
        let removed = stand_in.remove();
        let answered = answered?;
        removed?;
        Ok(answered)
    }

    fn ask(&self, stand_in: &StandIn) -> anyhow::Result<Result<(), String>> {
        let process = stand_in.process()?;
        let state = container_state::with_stand_in(self.runtime.kind, self.state, &process)
            .with_context(|| format!("copy {}", self.runtime.state_file(self.container_id).display()))?;
        let directory = TemporaryDirectory::make()?;
        let root = directory.0.join("root");
        let container = root.join(self.container_id);
        let file = container.join(self.runtime.kind.file());
        fs::create_dir_all(&container).with_context(|| format!("create {}", container.display()))?;
        fs::write(&file, state).with_context(|| format!("write {}", file.display()))?;
        self.copy_configuration(&container)?;
        let log = directory.0.join("log.json");
        let run = || format!("run {}", self.runtime.binary.display());
        let mut command = self.program.command(&self.runtime.binary).with_context(run)?;
        question::ask(&mut command, self.runtime, &root, &log, self.container_id);
        let output = command.output().with_context(run)?;
        let logged = fs::read_to_string(&log).unwrap_or_default();
        Ok(question::answer(self.runtime.manager, &output, &logged, process.pid))
    }

    /// crun keeps the container's configuration beside its state, and reads it to answer `state`; runc keeps none.
    fn copy_configuration(&self, container: &Path) -> anyhow::Result<()> {
        let kept = self.runtime.state_file(self.container_id).with_file_name("config.json");
        match fs::copy(&kept, container.join("config.json")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("copy {}", kept.display()))
            }
            _ => Ok(()),
        }
    }
}

/// A directory of the check's own, removed when this is dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("steliad-try-runtime-{}", std::process::id()));
        // A directory that exists was made by another process, which is not trusted with the state.
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // The unit's private /tmp is removed with the unit in any case.
        let _ = fs::remove_dir_all(&self.0);
    }
}
