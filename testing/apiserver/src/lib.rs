#![doc = include_str!("../README.md")]

mod apply;
mod checks;
mod counts;
mod discovery;
mod failure;
mod faults;
mod fields;
mod http_server;
mod lists;
mod managers;
mod query;
mod requests;
mod resources;
mod rules;
mod schema;
mod select;
mod server;
mod service;
mod store;
mod watch;
mod write;

pub use counts::{Count, LoggedRequest};
pub use faults::{Answer, Fault};
pub use http_server::serve;
pub use schema::Schema;
pub use server::{DefinitionError, Server};
pub use service::{Body, Closed};

/// The published definition of NodeResourceTopology, without descriptions.
pub const TOPOLOGIES: &str = include_str!("../../../crates/koordinator/src/report/tests/crd.yaml");

impl Server {
    /// With NodeResourceTopology beside what [`Server::new`] has.
    ///
    /// # Errors
    /// None of this program's own definitions has one.
    pub fn with_topologies() -> Result<Self, DefinitionError> {
        let server = Self::new()?;
        server.define_yaml(TOPOLOGIES)?;
        Ok(server)
    }

    /// Takes over a CustomResourceDefinition as it is in a manifest.
    ///
    /// # Errors
    /// It is not YAML, or not a definition.
    pub fn define_yaml(&self, definition: &str) -> Result<(), DefinitionError> {
        let definition =
            serde_saphyr::from_str(definition).map_err(|error| DefinitionError::new(&error.to_string()))?;
        self.define(&definition)
    }
}
