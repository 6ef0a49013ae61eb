//! NodeTopology: what the engine knows, with what only the host and kubelet's configuration tell.

use std::path::Path;

use super::error::Error;
use super::manager::Options;
use super::options;
use crate::engine::{Handle, node_facts};
use crate::kubelet::config::{self, ConfigError, KubeletConfig};
use crate::node_topology::{name, numa, report};

/// The running kubelet's configuration, read off the reactor.
pub(super) async fn kubelet_config() -> Result<Result<KubeletConfig, ConfigError>, Error> {
    let read = tokio::task::spawn_blocking(|| config::read(Path::new("/proc"), Path::new("/")));
    read.await
        .map_err(|cause| Error::Failed(format!("read kubelet's configuration: {cause}")))
}

/// The object as JSON.
pub(super) async fn json(engine: &Handle, given: &Options) -> Result<String, Error> {
    options::known(given, &options::NODE_TOPOLOGY)?;
    let version = options::api_version(given)?;
    let named = options::text(given, "node-name")?;
    // Without it the report tells less, and the truth.
    let config = kubelet_config().await?.ok();
    let name = match named {
        Some(named) => {
            name::check(named).map_err(|cause| Error::InvalidArgument(format!("option \"node-name\": {cause}")))?
        }
        None => {
            let overridden = config.as_ref().and_then(|config| config.hostname_override.as_deref());
            let host = rustix::system::uname();
            let named = name::of_host(overridden, &host.nodename().to_string_lossy());
            name::check(named).map_err(|cause| Error::Failed(format!("option \"node-name\" is needed: {cause}")))?
        }
    };
    let sys = engine.system().sys.clone();
    let numa = tokio::task::spawn_blocking(move || numa::read(&sys)).await;
    let numa = numa.map_err(|cause| Error::Failed(format!("read the NUMA nodes: {cause}")))?;
    let numa = numa.map_err(|cause| Error::Failed(cause.to_string()))?;
    let facts = node_facts(&engine.view(), config.as_ref(), numa, name).map_err(Error::KubeletStateUnusable)?;
    serde_json::to_string(&report(&facts, version)).map_err(|cause| Error::Failed(format!("write the object: {cause}")))
}
