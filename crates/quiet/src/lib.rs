#![doc = include_str!("../README.md")]

pub mod client;
pub mod files;
pub mod order;
