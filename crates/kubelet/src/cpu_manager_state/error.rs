//! Why a checkpoint file cannot be used, and the checks that are the same for each of them.

use serde::de::DeserializeOwned;
use stelia_cpus::text::excerpt::{cause, name};
use stelia_cpus::{CpuSet, ParseError};

use crate::{PodUid, checksum};

/// A checkpoint larger than this is refused before it is parsed, in bytes (a real one of 512 pods is under 100 kB).
pub const MAX_BYTES: usize = 8 << 20;

/// A checkpoint whose CPU lists name more CPUs than this together is refused: a list of a few bytes can name thousands. On
/// the largest machine it is every CPU in 128 containers.
pub const MAX_LISTED: usize = 1 << 20;

/// Why a checkpoint cannot be used. The texts do not name the file: the caller adds it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The file has no bytes (a tool other than kubelet crashed between open and write).
    #[error("the file is empty")]
    Empty,
    /// The file is longer than `MAX_BYTES`.
    #[error("the file has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// The file is not a JSON object; the text says where.
    #[error("the file is damaged: {0}")]
    Malformed(String),
    /// The file is not JSON of a known shape; the text says where.
    #[error("the file is of no known schema: {0}")]
    UnknownSchema(String),
    /// The checksum does not fit the content.
    #[error("checksum mismatch (stored {found}, computed {computed})")]
    Checksum {
        /// As the file says.
        found: u32,
        /// As computed from the content.
        computed: u32,
    },
    /// A CPU list in it does not parse.
    #[error("{place}: {cause}")]
    Cpus {
        /// Which list.
        place: String,
        /// What is wrong with it.
        cause: ParseError,
    },
    /// Its CPU lists are together longer than `MAX_LISTED`.
    #[error("the file's CPU lists have more than {MAX_LISTED} CPUs together")]
    TooManyCpus,
    /// A key that should be a pod UID is not one.
    #[error("{0:?} is not a pod UID")]
    PodUid(String),
}

impl CheckpointError {
    /// Whether no kubelet uses the file: its content is not what a kubelet wrote. Otherwise it may be that of a newer one.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Empty | Self::Malformed(_) | Self::Checksum { .. } | Self::Cpus { .. }
        )
    }
}

/// The bytes of a checkpoint, unless it is empty or longer than `MAX_BYTES`.
///
/// # Errors
/// [`CheckpointError::Empty`], [`CheckpointError::TooLarge`].
pub(crate) fn content(bytes: &[u8]) -> Result<&[u8], CheckpointError> {
    if bytes.len() > MAX_BYTES {
        return Err(CheckpointError::TooLarge(bytes.len()));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(CheckpointError::Empty);
    }
    Ok(bytes)
}

/// JSON of exactly one shape.
///
/// # Errors
/// [`CheckpointError::Malformed`], [`CheckpointError::UnknownSchema`], an unknown key included.
pub(crate) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CheckpointError> {
    // A structure could be written as a list too; kubelet does not, and keys would go unchecked.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(CheckpointError::Malformed("it is not a JSON object".to_owned()));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            CheckpointError::UnknownSchema(cause(&error))
        } else {
            CheckpointError::Malformed(cause(&error))
        }
    })
}

pub(crate) fn unknown(what: &str) -> CheckpointError {
    CheckpointError::UnknownSchema(what.to_owned())
}

/// The checksum of a schema that must have one.
pub(crate) fn needed(checksum: Option<u32>) -> Result<u32, CheckpointError> {
    checksum.ok_or_else(|| unknown("missing field `checksum`"))
}

/// The keys in the string of an envelope, which has the checksum.
pub(crate) fn sealed<T: DeserializeOwned>(
    data: &str,
    checksum: u32,
    own_checksum: impl Fn(&T) -> Option<u32>,
) -> Result<T, CheckpointError> {
    checksum::verify(checksum, checksum::of_data(data))?;
    let file = json(data.as_bytes())?;
    match own_checksum(&file) {
        Some(_) => Err(unknown("unknown field `checksum` in data")),
        None => Ok(file),
    }
}

pub(crate) fn pod_uid(text: &str) -> Result<PodUid, CheckpointError> {
    PodUid::parse(text).map_err(|error| CheckpointError::PodUid(error.0))
}

/// The key of the shared pool's list, for messages of errors.
pub(crate) fn default_place() -> String {
    "defaultCpuSet".to_owned()
}

/// Reads the CPU lists of one file and bounds them together.
pub(crate) struct CpuLists {
    /// CPUs that the lists not read yet may name.
    remaining: usize,
}

impl Default for CpuLists {
    fn default() -> Self {
        Self { remaining: MAX_LISTED }
    }
}

impl CpuLists {
    /// Read one list; `place` names it in errors.
    ///
    /// # Errors
    /// [`CheckpointError::Cpus`], [`CheckpointError::TooManyCpus`].
    pub(crate) fn read(&mut self, text: &str, place: impl FnOnce() -> String) -> Result<CpuSet, CheckpointError> {
        let parsed = text.parse::<CpuSet>();
        let cpus = parsed.map_err(|cause| CheckpointError::Cpus { place: place(), cause })?;
        let remaining = self.remaining.checked_sub(cpus.len());
        self.remaining = remaining.ok_or(CheckpointError::TooManyCpus)?;
        Ok(cpus)
    }

    /// The list of a whole pod.
    pub(crate) fn of_pod(&mut self, pod: &str, text: &str) -> Result<CpuSet, CheckpointError> {
        self.read(text, || format!("the entry of pod {}", name(pod)))
    }
}
