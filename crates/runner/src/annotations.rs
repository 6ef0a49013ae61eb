//! Koordinator's annotations of the pod ([`koordinator`]), as files of a downward API volume. An annotation that the pod does not
//! have is an empty file.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use stelia_koordinator::allocator::{AllocationRequest, koordinator};

use super::error::Error;

/// Limit of all annotations of a pod together, in bytes.
const MAX_ANNOTATIONS_BYTES: u64 = 256 * 1024;

/// Adds the requests in the files.
///
/// # Errors
/// A file cannot be read or parsed, or contradicts the command line.
pub fn add(request: &mut AllocationRequest, spec: Option<&Path>, status: Option<&Path>) -> Result<(), Error> {
    if let Some(path) = spec {
        text(path)
            .and_then(|text| koordinator::add_spec(request, &text).map_err(invalid))
            .map_err(Error::path("read the resource-spec in", path))?;
    }
    if let Some(path) = status {
        request.schedule = text(path)
            .and_then(|text| koordinator::schedule(&text).map_err(invalid))
            .map_err(Error::path("read the resource-status in", path))?;
    }
    Ok(())
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_ANNOTATIONS_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_ANNOTATIONS_BYTES {
        return Err(invalid(format!("it has more than {MAX_ANNOTATIONS_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status");
        let read = |path: &Path| {
            let mut options = AllocationRequest::default();
            add(&mut options, None, Some(path))
                .map(|()| options)
                .map_err(|error| error.to_string())
        };
        let error = read(&path).unwrap_err();
        assert!(
            error.starts_with("read the resource-") && error.contains("No such file"),
            "{error}"
        );
        std::fs::write(&path, r#"{"cpuset":"2-3"}"#).unwrap();
        assert_eq!(read(&path).unwrap().schedule.cpus, Some("2-3".parse().unwrap()));
        std::fs::write(&path, " ".repeat(MAX_ANNOTATIONS_BYTES as usize + 1)).unwrap();
        assert!(read(&path).unwrap_err().contains("more than"));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read(&path).is_err());
    }
}
