//! The daemon's system calls, as strace writes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::*;

/// The daemon has done its work if it makes no system call for so long.
const IDLE_TIME: Duration = Duration::from_secs(1);

pub struct Trace {
    /// Ends when this is dropped.
    _strace: Strace,
    log: PathBuf,
}

#[derive(Debug)]
pub struct Calls {
    names: BTreeMap<String, usize>,
    /// Those that change something: cgroups, affinities, or units of systemd.
    pub changes: Vec<String>,
}

impl Trace {
    pub fn start() -> Self {
        let log = std::env::temp_dir().join("steliad-test.strace");
        let _ = fs::remove_file(&log);
        // Paths beside descriptors, and enough of a message to see whom it is for.
        let strace = Strace::on_daemon(&["-y", "-s", "400", "-o", log.to_str().expect("path")]);
        let trace = Self { _strace: strace, log };
        trace.wait_quiet();
        trace
    }

    fn length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |file| file.len())
    }

    fn wait_quiet(&self) {
        let mut before = (Instant::now(), self.length());
        wait_until("the daemon is at rest", || {
            if self.length() != before.1 {
                before = (Instant::now(), self.length());
            }
            before.0.elapsed() > IDLE_TIME
        });
    }

    /// The daemon's system calls during this work, and until it is at rest.
    pub fn during(&self, work: impl FnOnce()) -> Calls {
        let from = usize::try_from(self.length()).expect("a length");
        work();
        self.wait_quiet();
        let text = fs::read(&self.log).expect("the trace");
        Calls::parse(&utf8(&text[from..]))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.log);
    }
}

impl Calls {
    fn parse(text: &str) -> Self {
        let (mut names, mut changes) = (BTreeMap::new(), Vec::new());
        for line in text.lines() {
            // `PID name(…) = …`. The end of an interrupted call has its own line, and signals are no calls.
            let call = line
                .split_once(' ')
                .and_then(|(_, call)| call.trim_start().split_once('('));
            let Some((name, arguments)) = call else { continue };
            if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            *names.entry(name.to_owned()).or_insert(0) += 1;
            let is_change = match name {
                "write" | "writev" | "pwrite64" => arguments.split(',').next().is_some_and(|fd| fd.contains(CGROUP)),
                "mkdir" | "mkdirat" | "rmdir" | "unlinkat" | "setxattr" | "fsetxattr" | "removexattr" => true,
                "sched_setaffinity" => true,
                "sendmsg" => arguments.contains("org.freedesktop.systemd1"),
                _ => false,
            };
            if is_change {
                changes.push(line.to_owned());
            }
        }
        Self { names, changes }
    }

    pub fn total(&self) -> usize {
        self.names.values().sum()
    }

    pub fn opened(&self) -> usize {
        let opens = ["open", "openat"].iter().filter_map(|name| self.names.get(*name));
        opens.sum()
    }

    pub fn print(&self, what: &str) {
        let mut names: Vec<(&String, &usize)> = self.names.iter().collect();
        names.sort_unstable_by(|a, b| b.1.cmp(a.1));
        let names = names.iter().take(8).map(|(name, times)| format!(", {times} {name}"));
        let (total, changes, names) = (self.total(), self.changes.len(), names.collect::<String>());
        println!("  {what}: {total} system calls, {changes} changes{names}");
    }
}
