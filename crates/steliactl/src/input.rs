//! Files of bounded length.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::client::Failure;

/// Reads at most `most` + 1 bytes: the parser refuses a file that is longer than `most`.
pub(crate) fn bytes(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    take(File::open(path)?, most)
}

/// As `bytes`, as text; `-` is standard input.
pub(crate) fn text(path: &Path, most: usize) -> Result<String, Failure> {
    let bytes = match path == Path::new("-") {
        true => take(io::stdin().lock(), most),
        false => bytes(path, most),
    };
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    text.map_err(|cause| Failure::Other(format!("read {}: {cause}", path.display())))
}

fn take(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
