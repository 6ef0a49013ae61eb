//! Whether kubelet's CPU manager state can be used: that depends on what chooses the CPUs on this node.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use stelia_cpus::text::excerpt::excerpt;
use stelia_koordinator::allocator::CpuSource;
use stelia_kubelet::CpuManagerState;

/// kubelet's state by its file, or why it cannot be used.
///
/// # Errors
/// A text with the path.
pub fn usable_state(file: io::Result<Vec<u8>>, path: &Path, source: CpuSource) -> Result<CpuManagerState, String> {
    let bytes = match file {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound && !source.needs_static_policy() => {
            return Ok(CpuManagerState::absent());
        }
        read => read.map_err(|cause| format!("read {}: {cause}", path.display()))?,
    };
    let state = CpuManagerState::parse(&bytes).map_err(|cause| format!("{}: {cause}", path.display()))?;
    if !state.is_static() && source.needs_static_policy() {
        return Err(format!(
            "{}: CPU manager policy is {:?}, not \"static\"",
            path.display(),
            excerpt(&state.policy)
        ));
    }
    Ok(state)
}

/// Where steliad chooses the CPUs: why it must not, because a DRA driver gives CPUs to containers as well. Neither knows what the other
/// gave, so the same CPU would be given twice. `drivers`: by name, each with the file that shows it.
pub fn refused_beside(drivers: &BTreeMap<String, PathBuf>) -> Option<String> {
    let (name, file) = drivers.first_key_value()?;
    Some(format!(
        "the DRA driver {:?} gives CPUs to containers ({}), and steliad would give the same CPUs again: cpu-source = \"steliad\" is refused \
         beside it",
        excerpt(name),
        file.display()
    ))
}
