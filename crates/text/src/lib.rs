#![doc = include_str!("../README.md")]

pub mod excerpt;
mod named;
