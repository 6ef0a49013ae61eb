//! The holder: a child of the daemon that keeps a new scope alive until the container's processes are in it.
//!
//! systemd starts a scope only with a process in it, and ends the scope when it is empty. If that were a process of the
//! container and the daemon died before it wrote a record, a scope without a record would remain, with the process in
//! it. The holder reads its standard input, a pipe from the daemon: when the daemon dies the holder ends, and an
//! otherwise empty scope with it.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};

/// Makes the daemon's binary a holder.
const ARGUMENT: &str = "--hold-scope";

/// Starts holders.
pub trait Holders: Send + Sync {
    fn start(&self) -> io::Result<Box<dyn Hold>>;
}

/// A running holder; it ends when this is dropped.
pub trait Hold: Send {
    fn pid(&self) -> u32;
}

/// Real processes: the daemon's own binary with `--hold-scope`.
#[derive(Debug, Clone, Copy)]
pub struct KernelHolders;

#[derive(Debug)]
struct Holder(Child);

impl Holders for KernelHolders {
    fn start(&self) -> io::Result<Box<dyn Hold>> {
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Box::new(Holder(child)))
    }
}

impl Hold for Holder {
    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It can only have ended already; the wait is for a process that was just killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Be a holder: wait for the end of standard input.
pub fn hold() {
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
