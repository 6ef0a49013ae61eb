//! NodeTopology: the engine's view, completed from the host and kubelet's configuration.

use stelia_api::{Error, ErrorKind};
use stelia_koordinator::report::name;

use super::cached_readings::{Readings, Recent};
use super::manager::Options;
use super::options;
use crate::engine::{Handle, ObjectForm, node_name, node_topology};

/// The object as JSON.
pub(super) async fn json(engine: &Handle, readings: &Readings, given: &Options) -> Result<String, Error> {
    let (asked, named) = options::report(given)?;
    let engine = engine.clone();
    let read = move |recent: &mut Recent| write(&engine, recent, named, asked);
    readings.read(read).await
}

fn write(engine: &Handle, recent: &mut Recent, named: Option<String>, form: ObjectForm) -> Result<String, Error> {
    let config = recent.kubelet();
    let name = match named {
        Some(named) => name::check(named).map_err(ErrorKind::InvalidArgument.context("option \"node-name\""))?,
        None => {
            node_name(config.ok().flatten()).map_err(ErrorKind::Failed.context("option \"node-name\" is needed"))?
        }
    };
    let object = node_topology(engine.system(), &engine.view(), config, name, form)?;
    serde_json::to_string(&object).map_err(ErrorKind::Failed.context("write the object"))
}
