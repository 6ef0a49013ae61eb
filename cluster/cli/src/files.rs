//! Where objects come from: files, standard input, the API server.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::objects::Objects;

/// The endings of the files of a folder that are read.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];

/// Reads all of them; `-` is standard input, and of a folder its files.
///
/// # Errors
/// A file or a folder cannot be read. What is in them and cannot be understood is among the objects' problems.
pub fn read(objects: &mut Objects, from: &[PathBuf]) -> Result<(), String> {
    for path in from {
        for file in files(path)? {
            let text = text(&file)?;
            let before = objects.nodes.len() + objects.reports.len() + objects.pods.len();
            let source = file.display().to_string();
            objects.read(&source, &text);
            let is_empty = before == objects.nodes.len() + objects.reports.len() + objects.pods.len();
            if is_empty && text.trim().is_empty() {
                objects.problems.add(&source, "", "it is empty");
            }
        }
    }
    Ok(())
}

fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if path == Path::new("-") || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |cause| format!("read {}: {cause}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ENDINGS.contains(&ending) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        Err(format!("read {}: no file ends in .json, .yaml or .yml", path.display()))
    } else {
        Ok(files)
    }
}

/// A file's text, or that of standard input.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn text(path: &Path) -> Result<String, String> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    read.map_err(|cause| format!("read {}: {cause}", path.display()))
}
