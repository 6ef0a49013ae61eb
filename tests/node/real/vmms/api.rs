//! HTTP requests to a VMM's API socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::*;

/// An emulated VMM that writes a snapshot takes this long at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API socket of a VMM.
pub struct Api(PathBuf);

/// A VMM's answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Api {
    pub fn new(socket: PathBuf) -> Self {
        Self(socket)
    }

    /// Whether anything answers: the VMM binds the socket some time after its start.
    pub fn is_there(&self) -> bool {
        UnixStream::connect(&self.0).is_ok()
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let asked = self.exchange(method, path, body);
        asked.unwrap_or_else(|error| panic!("{method} {path} on {}: {error}", self.0.display()))
    }

    /// The answer to a request that must not be refused, as JSON where it has a body.
    pub fn must(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, path, body);
        assert!(answer.is_success(), "{method} {path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        let mut stream = UnixStream::connect(&self.0)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        // With a body of no bytes both VMMs want none of its headers.
        let of_body = match body {
            "" => String::new(),
            _ => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{of_body}\r\n{body}"
        )?;
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_lowercase());
        }
        let status = lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("no answer: {lines:?}")))?;
        let length = lines
            .iter()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut bytes = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut bytes)?;
        Ok(Answer {
            status,
            body: utf8(&bytes),
        })
    }
}
