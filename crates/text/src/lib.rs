#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

pub mod excerpt;
mod json_string;
mod named;
pub mod near;
