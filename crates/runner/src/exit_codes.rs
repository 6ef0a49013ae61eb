//! The exit codes of the runner; `--help` explains them.

/// The container could not be registered: the daemon refused it, or the registration failed for good (EX_UNAVAILABLE).
pub(crate) const REFUSED: u8 = 69;
/// A helper with `on-exit=fatal` ended, or one did not get ready (EX_SOFTWARE).
pub(crate) const HELPER: u8 = 70;
/// The runner itself failed: a process could not be started, a system call failed (EX_OSERR).
pub(crate) const RUNNER: u8 = 71;
/// The daemon was not reachable within `--register-timeout` (EX_TEMPFAIL).
pub(crate) const UNREACHABLE: u8 = 75;
/// Options of `run` do not go together, as clap's own refusals.
pub(crate) const USAGE: u8 = 2;
/// The VMM was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The VMM was not found.
pub(crate) const NOT_FOUND: u8 = 127;
