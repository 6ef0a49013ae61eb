//! Excerpts for error messages: of a text from outside, whatever its length and content, a piece that fits on one line. And `named!`, enumerations whose
//! values have names (in JSON, settings and on D-Bus). `json_string!`: types that are a string
//! in JSON. `near` finds the known name that a misspelt one stands for.
#![deny(missing_docs)]

pub mod excerpt;
mod json_string;
mod named;
pub mod near;

pub use crate::{json_string, named};
