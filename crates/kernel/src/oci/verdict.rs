//! Whether a runtime copes with a container whose cgroup is a threaded domain: what was seen when it was tried.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Identity, Manager, Runtime};

/// What was seen of one program. Kept below `/run`: after a boot the kernel may be another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeVerdict {
    /// Whose question it was asked.
    pub manager: Manager,
    pub binary: PathBuf,
    pub identity: Identity,
    /// Whether it answered about a container with threaded cgroups.
    pub copes: bool,
    /// Its own words, where it did not; one line.
    #[serde(default)]
    pub words: String,
    /// When it was tried, in microseconds since the epoch.
    pub tried_us: u64,
}

impl RuntimeVerdict {
    /// `None` where the text is no verdict.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether this is the verdict on the runtime whose program has this identity now. For another program, or if another
    /// manager asks, nothing is known: it is to be tried.
    pub fn is_of(&self, runtime: &Runtime, now: Identity) -> bool {
        self.manager == runtime.manager && self.binary == runtime.binary && self.identity == now
    }

    /// Write it, so that a reader finds the former one or this one. Its folder is made where it is missing.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        // Two containers of one runtime may be tried at the same time.
        let mut partial = file.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let text = serde_json::to_string(self)?;
        let written = fs::write(&partial, text + "\n").and_then(|()| fs::rename(&partial, file));
        if written.is_err() {
            // Whether or not it was made: the first error is the one to tell.
            let _ = fs::remove_file(&partial);
        }
        written
    }
}

/// Where the verdict on a runtime is; `run` is `/run`. Slashes of the program's path become colons.
pub fn verdict_file(run: &Path, runtime: &Runtime) -> PathBuf {
    let binary = runtime.binary.to_string_lossy();
    let binary = binary.trim_start_matches('/').replace('/', ":");
    let name = format!("{}:{binary}.json", runtime.manager.name());
    run.join("stelia/runtimes").join(name)
}
