#![doc = include_str!("../README.md")]

pub mod devices;
pub mod hints;
pub mod planned_nodes;
pub mod room;
pub mod settings;
pub mod start;
mod subject;
pub mod why;

pub use subject::{Subject, machine};
