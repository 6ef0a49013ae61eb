//! A bus for one test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::system_bus::Bus;

/// A bus of its own; it ends with this value.
pub(super) struct PrivateBus(Child, String);

impl PrivateBus {
    pub(super) fn start() -> Self {
        let mut bus = Command::new("dbus-daemon");
        bus.args(["--session", "--nofork", "--print-address"]);
        let mut bus = bus.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        let output = bus.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut address).unwrap();
        Self(bus, address.trim().to_owned())
    }

    pub(super) async fn connect(&self) -> Bus {
        Bus::connect(&self.address().parse().unwrap()).await.unwrap()
    }

    pub(super) fn address(&self) -> &str {
        &self.1
    }

    pub(super) fn stop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
