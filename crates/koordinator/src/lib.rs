#![doc = include_str!("../README.md")]

pub mod allocator;
pub mod report;
