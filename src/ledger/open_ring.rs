//! The ring as the ledger's thread opens it and writes to it.

use stelia_ledger::entry::{Entry, Event};
use stelia_ledger::replay::LedgerState;
use stelia_ledger::ring::Appended;

/// Writes entries to the open ring.
pub(crate) trait RingWriter: Send {
    /// # Errors
    /// Why the entry was not written.
    fn append(&mut self, entry: &mut Entry) -> Result<Appended, String>;
    fn starts_segment(&self) -> bool;
    fn limit(&mut self, bytes: u64);
    /// Sign the hash of entry `seq` as the head of a day.
    fn sign(&self, day: &str, seq: u64, hash: &str) -> Event;
}

/// An open ring, and its state.
pub(crate) struct OpenedRing {
    pub(crate) writer: Box<dyn RingWriter>,
    /// Bytes of an incomplete line that a crash left and that were removed.
    pub(crate) cut_bytes: u64,
    /// The first line that fails verification, in words.
    pub(crate) fault: Option<String>,
    /// Number and hash of the last entry.
    pub(crate) last: Option<(u64, String)>,
    /// The state after the last segment, from which the recorder resumes.
    pub(crate) replay: LedgerState,
    /// The last signed head, an [`Event::Head`].
    pub(crate) head: Option<Event>,
    pub(crate) boot_id: String,
    /// The public key, base64.
    pub(crate) key: String,
    /// Why the key is new, as a sentence; `None` if it is the former one.
    pub(crate) new_key: Option<String>,
}

/// Opens the ring.
pub(crate) trait RingOpener: Send {
    /// # Errors
    /// Why entries cannot be written. The caller tries again.
    fn open(&mut self, bytes: u64) -> Result<OpenedRing, String>;

    /// The size of the ring's files, in bytes.
    fn bytes(&self) -> u64;
}
