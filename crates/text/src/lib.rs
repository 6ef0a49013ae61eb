//! What an error tells of a text that somebody else wrote, and enumerations whose values have names.

pub mod excerpt;
mod named;
