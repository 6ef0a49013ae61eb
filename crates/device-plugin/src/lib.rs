#![doc = include_str!("../README.md")]

mod allocate;
mod allocated_devices;
pub mod api;
mod cdi;
mod connections;
mod daemon;
mod file_error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod offer;
mod plugin;
pub mod program;
mod registration;
mod required_files;
mod service;
mod status;
#[cfg(test)]
mod tests;

/// The extended resource that pods ask for.
pub const RESOURCE: &str = stelia_api::VM_RESOURCE;
