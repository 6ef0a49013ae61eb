//! steliad beside CRI-O, with crun and conmon.
