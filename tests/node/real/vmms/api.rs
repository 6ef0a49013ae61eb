//! HTTP requests to a VMM's API socket.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::http::{Answer, exchange};

/// An emulated VMM that writes a snapshot takes this long at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API socket of a VMM.
pub struct Api(pub PathBuf);

impl Api {
    /// Whether anything answers: the VMM binds the socket some time after its start.
    pub fn is_there(&self) -> bool {
        UnixStream::connect(&self.0).is_ok()
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let asked = UnixStream::connect(&self.0).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost");
            exchange(&stream, &stream, &head, body)
        });
        asked.unwrap_or_else(|error| panic!("{method} {path} on {}: {error}", self.0.display()))
    }

    /// The answer to a request that must not be refused, as JSON where it has a body.
    pub fn must(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, path, body);
        assert!(answer.is_success(), "{method} {path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}
