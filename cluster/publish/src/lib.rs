#![doc = include_str!("../README.md")]
//!
//! | module | what it is |
//! |---|---|
//! | [`program`] | the command line, start and end |
//! | [`source`] | the daemon's folder, followed |
//! | [`reading`] | what is known of the daemon at one moment |
//! | [`options`] | a publisher's options |
//! | [`intervals`] | all its times |
//! | [`publisher`] | carries out what is decided: requests, and waiting for time and readings |
//! | [`decide`] | which request is due, and what follows from an answer: no I/O, no clock |
//! | [`answer`] | what an answer of the API server means |
//! | [`status`] | what a publisher does and what keeps it from more; [`metrics`] and [`http_server`] show it |
//! | [`withdraw`](mod@withdraw) | takes back what was published |

pub mod answer;
mod backoff;
pub mod decide;
pub mod http_server;
pub mod intervals;
pub mod metrics;
pub mod options;
pub mod program;
pub mod publisher;
pub mod reading;
mod request;
pub mod source;
pub mod status;
mod token_bucket;
pub mod withdraw;

pub use options::PublishOptions;
pub use publisher::Publisher;
pub use reading::Reading;
pub use status::Status;
