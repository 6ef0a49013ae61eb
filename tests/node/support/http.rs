//! One request by HTTP/1 on a connection of its own.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::utf8;

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

/// `head`: the request line and headers, but not those of the body. An HTTP/1.0 answer without a length ends with the connection.
pub fn exchange(mut to: impl Write, from: impl Read, head: &str, body: &str) -> io::Result<Answer> {
    let of_body = match body {
        "" => String::new(),
        _ => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    write!(to, "{head}\r\n{of_body}\r\n{body}")?;
    let mut from = BufReader::new(from);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_lowercase());
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no answer: {lines:?}")))?;
    let length = |line: &String| line.strip_prefix("content-length:")?.trim().parse().ok();
    let length = lines
        .iter()
        .find_map(length)
        .unwrap_or(if head.contains("HTTP/1.0") { u64::MAX } else { 0 });
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    let body = utf8(&bytes);
    Ok(Answer { status, body })
}
