//! steliad beside real programs, which a job of `tests/real/jobs/` copies into the node: `make check-long SECTIONS=real BIN=DIR`, docs/real.md.

mod crio;
pub mod image;
mod kubelet;
mod virt_launcher;
mod vmms;

use std::path::PathBuf;

/// One of the programs that the job brought. Each test names those that it needs, as its job does.
fn program(name: &str) -> PathBuf {
    let path = PathBuf::from("/job/real").join(name);
    assert!(path.exists(), "{} is not there: docs/real.md", path.display());
    path
}
