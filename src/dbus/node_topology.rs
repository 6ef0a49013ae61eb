//! NodeTopology: the engine's view, completed from the host and kubelet's configuration.

use stelia_api::{Error, ErrorKind};
use stelia_node_report::{name, numa, profile};

use super::manager::Options;
use super::options;
use super::readings::{Readings, Recent};
use crate::engine::{Handle, Places, complete, node_facts};

/// The object as JSON.
pub(super) async fn json(engine: &Handle, readings: &Readings, given: &Options) -> Result<String, Error> {
    options::known(given, &options::NODE_TOPOLOGY)?;
    let asked = options::report(given)?;
    let named = options::text(given, "node-name")?;
    let engine = engine.clone();
    let read = move |recent: &mut Recent| write(&engine, recent, named, asked);
    readings.read(read).await
}

fn write(engine: &Handle, recent: &mut Recent, named: Option<String>, asked: options::Report) -> Result<String, Error> {
    // Without kubelet's configuration the report has less, and nothing wrong.
    let config = recent.kubelet_config().as_ref().ok();
    let name = match named {
        Some(named) => name::check(named).map_err(ErrorKind::InvalidArgument.context("option \"node-name\""))?,
        None => {
            let overridden = config.and_then(|config| config.hostname_override.as_deref());
            let host = rustix::system::uname();
            let named = name::of_host(overridden, &host.nodename().to_string_lossy());
            name::check(named).map_err(ErrorKind::Failed.context("option \"node-name\" is needed"))?
        }
    };
    let numa = numa::read(&engine.system().sys).map_err(|cause| ErrorKind::Failed.because(cause.to_string()))?;
    let view = engine.view();
    let mut facts =
        node_facts(&view, config, numa, name).map_err(|problem| ErrorKind::KubeletStateUnusable.because(problem))?;
    let kubelet = recent.kubelet_root();
    let places = Places {
        cgroups: &*engine.system().cgroups,
        root: engine.system().root(),
        kubelet: &kubelet,
    };
    complete(&mut facts, &view, places);
    let object = profile::object(&facts, asked.profile, asked.version, asked.method);
    serde_json::to_string(&object).map_err(ErrorKind::Failed.context("write the object"))
}
