//! The trial of an OCI runtime: does it answer its manager about a container whose cgroup is a threaded domain?
//!
//! Found by trying, because versions say little (distributions carry patches, and a wrapper has none). Two stands are made in
//! our own delegated cgroup, with sleeping processes: a plain one and one in the shape of a container that is isolated in
//! place. The runtime is asked about each what its manager asks it at a restart, with a copy of a running container's state in
//! which the stand is put in the container's place. Where it answers about the plain stand and not about the other one, it
//! does not cope; where it answers about neither, the trial has failed and says nothing of the runtime.
//!
//! `steliad-try-runtime@.service` runs it. The container itself is not asked about, and of its files only its state is read.

mod question;
mod stand;
mod state;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use stelia_node::oci::{Identity, Runtime, Verdict, runtime_of, verdict_file};

use stand::{Shape, Stand};

/// Exit code where nothing was found out: 1 says that the runtime does not cope, and clap takes 2 for wrong usage.
const NOT_TRIED: u8 = 3;

/// Try the runtime of a running container, keep the verdict and say it.
pub(crate) fn main(container_id: &str) -> ExitCode {
    match attempt(container_id) {
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
            ExitCode::from(NOT_TRIED)
        }
    }
}

fn attempt(container_id: &str) -> anyhow::Result<Verdict> {
    let runtime = runtime_of(Path::new("/"), container_id)
        .context("no container of containerd or CRI-O has this id and a runtime that is runc or crun")?;
    let identity = || Identity::of(&runtime.binary).with_context(|| format!("look at {}", runtime.binary.display()));
    let before = identity()?;
    let file = runtime.state_file(container_id);
    let state = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let trial = Trial {
        runtime: &runtime,
        container_id,
        state: &state,
    };

    if let Err(words) = trial.of(Shape::Plain)? {
        bail!(
            "{} does not answer about a plain cgroup: {words}",
            runtime.binary.display()
        );
    }
    let answered = trial.of(Shape::Threaded)?;
    // What was asked first and what was asked last are one program.
    if identity()? != before {
        bail!("{} was replaced meanwhile", runtime.binary.display());
    }

    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let verdict = Verdict {
        manager: runtime.manager,
        binary: runtime.binary.clone(),
        identity: before,
        copes: answered.is_ok(),
        words: answered.err().unwrap_or_default(),
        tried_us: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX),
    };
    let kept = verdict_file(Path::new("/run"), &runtime);
    verdict
        .write(&kept)
        .with_context(|| format!("write {}", kept.display()))?;
    Ok(verdict)
}

struct Trial<'a> {
    runtime: &'a Runtime,
    container_id: &'a str,
    /// The container's, as the runtime keeps it.
    state: &'a str,
}

impl Trial<'_> {
    /// Ask about a stand of this shape; the inner error is the runtime's words. Whatever comes of it, the stand is removed.
    fn of(&self, shape: Shape) -> anyhow::Result<Result<(), String>> {
        let stand = Stand::make(shape)?;
        let answered = self.ask(&stand);
        let removed = stand.remove();
        let answered = answered?;
        removed?;
        Ok(answered)
    }

    fn ask(&self, stand: &Stand) -> anyhow::Result<Result<(), String>> {
        let process = stand.process()?;
        let state = state::with_stand(self.runtime.kind, self.state, &process)
            .with_context(|| format!("copy {}", self.runtime.state_file(self.container_id).display()))?;
        let folder = Folder::make()?;
        let root = folder.0.join("root");
        let kept = root.join(self.container_id);
        let file = kept.join(self.runtime.kind.file());
        fs::create_dir_all(&kept).with_context(|| format!("create {}", kept.display()))?;
        fs::write(&file, state).with_context(|| format!("write {}", file.display()))?;
        let log = folder.0.join("log.json");
        let output = question::command(self.runtime, &root, &log, self.container_id)
            .output()
            .with_context(|| format!("run {}", self.runtime.binary.display()))?;
        let logged = fs::read_to_string(&log).unwrap_or_default();
        Ok(question::answer(self.runtime.manager, &output, &logged, process.pid))
    }
}

/// A folder of our own below that for temporary files, gone when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("steliad-try-runtime-{}", std::process::id()));
        // One that exists is nobody's who should be trusted with it.
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The unit's folder for temporary files ends with the unit.
        let _ = fs::remove_dir_all(&self.0);
    }
}
