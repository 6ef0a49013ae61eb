//! Copied rings: where they are, and what is read of them. All I/O of `ledger` is here.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use stelia_ledger::account::{Account, accounts};
use stelia_ledger::ring::verify::{Ring, verify};
use stelia_ledger::ring::{MAX_LINE_BYTES, read};
use stelia_ledger::verdict::Verdict;

/// The ending of a ring's files.
const SEGMENT: &str = "ledger";
/// The largest `ledger-size` that steliad.toml may have.
const MAX_RING_BYTES: u64 = 16 << 30;

/// The copied ring of a node, and what was read of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RingCopy {
    pub node: String,
    #[serde(serialize_with = "as_text")]
    pub directory: PathBuf,
    #[serde(flatten, serialize_with = "first_and_last")]
    pub verdict: Verdict,
    /// Whether the last line is incomplete, as in a copy that was made while the daemon wrote. It is not counted; the lines before it are.
    pub is_cut_off: bool,
    /// Those of all VMs; empty of a ring that has a fault, of which no account is made.
    #[serde(skip)]
    pub accounts: Vec<Account>,
    /// Why the ring is not counted.
    pub problem: Option<String>,
}

/// A path that is not UTF-8 is shown, too.
fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// Of a verdict what says which entries there are. Whose ring it is, and what is wrong with it, may be a stranger's text of any length.
fn first_and_last<S: Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    let members = [
        ("first_seq", verdict.first_seq),
        ("first_us", verdict.first_us),
        ("last_seq", verdict.last_seq),
        ("last_us", verdict.last_us),
        ("vouched_seq", verdict.vouched_seq),
    ];
    to.collect_map(members)
}

/// The rings that an argument names, of which nothing is read yet: `NODE=DIR`; or `DIR`, the copied folder of a node, or a folder with one such folder for each node.
///
/// # Errors
/// There is none.
pub fn of_argument(argument: &str) -> Result<Vec<RingCopy>, String> {
    if let Some((node, directory)) = argument.split_once('=')
        && stelia_koordinator::report::name::check(node.to_owned()).is_ok()
    {
        return Ok(vec![ring(node.to_owned(), Path::new(directory))]);
    }
    let directory = Path::new(argument);
    if has_segments(directory)? {
        return Ok(vec![ring(node_of(directory), directory)]);
    }
    let mut rings = Vec::new();
    for folder in entries(directory)? {
        // A copy of a node's /var/lib/stelia has the ring one level deeper.
        for copy in [folder.clone(), folder.join(SEGMENT)] {
            if copy.is_dir() && has_segments(&copy)? {
                rings.push(ring(node_of(&copy), &copy));
            }
        }
    }
    rings.sort_by(|one, other| one.node.cmp(&other.node));
    if rings.is_empty() {
        Err(format!(
            "read {argument}: there is no ledger here: no file NUMBER.ledger, nor in its folders"
        ))
    } else {
        Ok(rings)
    }
}

fn ring(node: String, directory: &Path) -> RingCopy {
    RingCopy {
        node,
        directory: directory.to_owned(),
        ..RingCopy::default()
    }
}

/// The node's name as the path tells it: that of the folder, or of the one above a folder `ledger`.
fn node_of(directory: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    match name(directory) {
        Some(own) if own != SEGMENT => own,
        _ => (directory.parent().and_then(name)).unwrap_or_else(|| directory.display().to_string()),
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |cause| format!("read {}: {cause}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<io::Result<_>>().map_err(failed)
}

/// The ring's files, ascending.
fn segments(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut segments = entries(directory)?;
    segments.retain(|path| path.extension().is_some_and(|ending| ending == SEGMENT));
    segments.sort();
    Ok(segments)
}

fn has_segments(directory: &Path) -> Result<bool, String> {
    Ok(!segments(directory)?.is_empty())
}

/// Why the ring must not be read, if it is larger than any that a node has. Answers whether its last line is incomplete. That it is a folder
/// with regular files, and no symbolic link, is checked by who opens them.
fn check_files(directory: &Path) -> Result<bool, String> {
    let segments = segments(directory)?;
    let mut all: u64 = 0;
    for path in &segments {
        let metadata = fs::symlink_metadata(path).map_err(|cause| format!("look at {}: {cause}", path.display()))?;
        if !metadata.is_file() {
            return Err(format!("open {}: it is no regular file", path.display()));
        }
        all = all.saturating_add(metadata.len());
        if all > MAX_RING_BYTES {
            return Err(format!(
                "read {}: with the segments before it has {all} bytes: a ring has at most {MAX_RING_BYTES}",
                path.display()
            ));
        }
    }
    let mut is_cut_off = false;
    for path in &segments {
        is_cut_off = ends_within_line(path).map_err(|cause| format!("read {}: {cause}", path.display()))?;
    }
    Ok(is_cut_off)
}

/// Whether the last line of a file is incomplete. A file with a line that is longer than any of a ring is not read further: it may be sparse and huge.
fn ends_within_line(path: &Path) -> io::Result<bool> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(MAX_LINE_BYTES as u64)
            .read_until(b'\n', &mut line)?
        {
            0 => return Ok(false),
            _ if line.ends_with(b"\n") => {}
            MAX_LINE_BYTES => {
                let long = format!("it has a line of more than {MAX_LINE_BYTES} bytes, which no ring has");
                return Err(io::Error::other(long));
            }
            _ => return Ok(true),
        }
    }
}

/// A public key, and the node whose it is; without a node it may be any node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKey {
    pub node: Option<String>,
    pub key: String,
}

impl RingCopy {
    /// Checks the copy, and makes the accounts of a period. With keys, a day's head that none of the node's signed is a fault: a ring that is
    /// passed off as another node's, too, if the keys have nodes.
    #[must_use]
    pub fn read(mut self, period: (u64, u64), keys: &[NodeKey]) -> Self {
        match self.check(keys).and_then(|()| self.accounts(period)) {
            Ok(accounts) => self.accounts = accounts,
            Err(problem) => self.problem = Some(problem),
        }
        self
    }

    fn accounts(&self, (since_us, until_us): (u64, u64)) -> Result<Vec<Account>, String> {
        let mut fault = None;
        let entries = read::entries(&self.directory, Some(since_us)).map_err(|cause| cause.to_string())?;
        let good = entries.map_while(|next| next.map_err(|cause| fault = Some(cause.to_string())).ok());
        let made = accounts(good, since_us, until_us, None);
        fault.map_or(Ok(made.into_values().collect()), Err)
    }

    /// Checks every line of the copy. No account is made yet.
    fn check(&mut self, keys: &[NodeKey]) -> Result<(), String> {
        let is_cut_off = check_files(&self.directory)?;
        let may_sign = |key: &&NodeKey| key.node.as_ref().is_none_or(|node| *node == self.node);
        let own: Vec<String> = keys.iter().filter(may_sign).map(|key| key.key.clone()).collect();
        if own.is_empty() && !keys.is_empty() {
            return Err(format!("no --key is for node {}", self.node));
        }
        self.verdict = verify(Ring::Directory(&self.directory), &own, None).map_err(|cause| cause.to_string())?;
        if self.verdict.segments == 0 {
            let path = self.directory.display();
            return Err(format!("read {path}: there is no ledger here: no file NUMBER.ledger"));
        }
        let faults = &self.verdict.faults;
        // An incomplete last line is a fault; if it is the only one, the lines before it are good.
        self.is_cut_off = is_cut_off && faults.len() == 1 && self.verdict.entries > 0;
        match faults.as_slice() {
            [fault] if !self.is_cut_off => Err(fault.to_string()),
            [fault, others @ ..] if !others.is_empty() => Err(format!("{fault} (and {} more)", others.len())),
            _ => Ok(()),
        }
    }
}
