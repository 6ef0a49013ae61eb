#![doc = include_str!("../README.md")]

pub mod answer;
mod backoff;
pub mod decide;
pub mod http_server;
pub mod intervals;
pub mod metrics;
pub mod options;
pub mod program;
pub mod publisher;
pub mod rebind;
mod request;
pub mod source;
pub mod status;
pub mod withdraw;

pub use options::PublishOptions;
pub use publisher::Publisher;
pub use source::Reading;
pub use status::Status;
