//! The key with which the head of each day is signed: the number and hash of the day's last entry.
//!
//! It is made of the kernel's random numbers when the ledger first starts on a host, and is bound to the host's machine id, so that hosts
//! with copies of one disk do not share a key. The public part of a retired key stays in `key.retired`, because heads in the ring are
//! signed with it.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rustix::rand::{GetRandomFlags, getrandom};

use super::RingError;
use super::folder::Folder;
use crate::entry::Event;

const KEY_FILE: &str = "key";
const RETIRED_KEYS_FILE: &str = "key.retired";
/// The first line of the file. Another format has another number.
const FORMAT: &str = "stelia-ledger key 1";
/// Limit of a key file, in bytes; enough for some hundred retired keys.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("{} is no key of this version; without it a new one is made", _0.display())]
    Format(PathBuf),
    #[error("random numbers: {0}")]
    Random(io::Error),
}

/// Where the signing key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrigin {
    /// It was read from the file.
    Loaded,
    /// It was made, because there was none.
    New,
    /// It was made, because the file had the key of another machine id: this host was started from a copy of a disk.
    Cloned,
}

/// An ed25519 key.
pub struct Key(SigningKey);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Key({})", self.public())
    }
}

impl Key {
    /// `machine_id` is the text of `/etc/machine-id`. If it is empty, an existing key is used whatever its machine id is.
    ///
    /// # Errors
    /// The system's, or the file is not a key. It is not overwritten; a new key is made once the file is removed.
    pub fn load_or_make(directory: &Path, machine_id: &str) -> Result<(Self, KeyOrigin), KeyError> {
        let folder = Folder::make(directory)?;
        let machine = machine_id.lines().next().unwrap_or_default().trim();
        let Some(text) = read_text(&folder, KEY_FILE)? else {
            return Ok((Self::make(&folder, machine)?, KeyOrigin::New));
        };
        let stored = parse_key_file(&text).ok_or_else(|| KeyError::Format(directory.join(KEY_FILE)));
        let (stored_machine, seed) = stored?;
        let key = Self(SigningKey::from_bytes(&seed));
        if machine.is_empty() || machine == stored_machine {
            return Ok((key, KeyOrigin::Loaded));
        }
        // Written before the key is replaced. After a crash in between the next start does both again.
        let public = key.public();
        let mut retired = retired(directory)?;
        if !retired.contains(&public) {
            retired.push(public);
            folder.replace(RETIRED_KEYS_FILE, (retired.join("\n") + "\n").as_bytes())?;
        }
        Ok((Self::make(&folder, machine)?, KeyOrigin::Cloned))
    }

    fn make(folder: &Folder, machine: &str) -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        // Waits until the kernel's generator is initialised after boot. So few bytes are never returned in part (getrandom(2)).
        let count =
            getrandom(seed.as_mut_slice(), GetRandomFlags::empty()).map_err(|error| KeyError::Random(error.into()))?;
        if count != seed.len() {
            return Err(KeyError::Random(io::ErrorKind::UnexpectedEof.into()));
        }
        let text = format!("{FORMAT}\nmachine {machine}\nseed {}\n", STANDARD.encode(seed));
        folder.replace(KEY_FILE, text.as_bytes())?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The public part, base64.
    pub fn public(&self) -> String {
        STANDARD.encode(self.0.verifying_key().as_bytes())
    }

    /// Signs that `seq` with its hash is the last entry of the day. The event must be written within 4096 entries, whose hashes
    /// [`verify`](super::verify) holds.
    pub fn sign_head(&self, day: &str, seq: u64, hash: &str) -> Event {
        let signature = self.0.sign(head_text(day, seq, hash).as_bytes());
        Event::Head {
            day: day.to_owned(),
            seq,
            hash: hash.to_owned(),
            key: self.public(),
            signature: STANDARD.encode(signature.to_bytes()),
        }
    }
}

/// The public keys that are no longer in use, base64, the oldest first.
pub fn retired(directory: &Path) -> Result<Vec<String>, RingError> {
    let text = read_text(&Folder::open(directory)?, RETIRED_KEYS_FILE)?.unwrap_or_default();
    Ok(text.lines().map(str::to_owned).collect())
}

/// The text that is signed.
fn head_text(day: &str, seq: u64, hash: &str) -> String {
    format!("stelia-ledger head 1\n{day}\n{seq}\n{hash}\n")
}

/// Whether a head is signed by the key that it names.
pub(super) fn is_signed(day: &str, seq: u64, hash: &str, key: &str, signature: &str) -> bool {
    let key = from_base64(key).and_then(|key| VerifyingKey::from_bytes(&key).ok());
    let signature = from_base64(signature).map(|signature| Signature::from_bytes(&signature));
    let (Some(key), Some(signature)) = (key, signature) else {
        return false;
    };
    key.verify_strict(head_text(day, seq, hash).as_bytes(), &signature)
        .is_ok()
}

fn from_base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// The machine id and the seed in a key file.
fn parse_key_file(text: &str) -> Option<(&str, [u8; 32])> {
    let mut lines = text.lines();
    lines.next().filter(|line| *line == FORMAT)?;
    let machine = lines.next()?.strip_prefix("machine ")?;
    let seed = from_base64(lines.next()?.strip_prefix("seed ")?)?;
    lines.next().is_none().then_some((machine, seed))
}

/// `None` if there is no such file.
fn read_text(folder: &Folder, name: &str) -> Result<Option<String>, RingError> {
    let Some(file) = folder.read(name)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = file.take(MAX_KEY_FILE_BYTES).read_to_end(&mut bytes);
    read.map_err(RingError::system("read", &folder.path().join(name)))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
