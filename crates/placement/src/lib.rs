//! Placement.
pub mod reservations;
