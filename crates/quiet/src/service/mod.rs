#![doc = include_str!("README.md")]

pub mod carry_out;
pub mod check_order;
mod in_force;
mod journal;
mod peer;
pub mod program;
pub mod serve;
