//! A publisher against every way in which an API server answers or does not, one request after the other, on a clock that is moved.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod answers;
mod credentials;
mod events;
mod node;
mod object;
mod pods;
mod support;
mod withdraw;
