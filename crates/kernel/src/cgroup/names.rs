//! Names of cgroups that are not UTF-8. A container that may write below its cgroup chooses such names too, and what is behind them must
//! be seen like anything else.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A byte B that is not UTF-8 becomes the character BYTES + B, at the end of the last plane for private use.
const BYTES: u32 = 0x0010_ff00;

fn is_byte(character: char) -> bool {
    u32::from(character) >= BYTES
}

/// The name, or path, as text. Different names have different texts.
pub(crate) fn text_of(name: &OsStr) -> String {
    let mut text = String::new();
    let byte = |byte: &u8| char::from_u32(BYTES + u32::from(*byte)).unwrap_or(char::REPLACEMENT_CHARACTER);
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_byte(character) {
                text.extend(character.encode_utf8(&mut [0; 4]).as_bytes().iter().map(byte))
            } else {
                text.push(character)
            }
        }
        text.extend(chunk.invalid().iter().map(byte));
    }
    text
}

/// The name, or path, that has this text.
pub(super) fn path_of(text: &str) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    for character in text.chars() {
        if is_byte(character) {
            path.push(u32::from(character).to_le_bytes()[0])
        } else {
            path.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes())
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cgroup::{CgroupPath, Cgroups, File, KernelCgroups};
    use crate::proc::{KernelProcs, Procs};

    #[test]
    fn a_process_in_a_cgroup_with_any_name_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = dir.path().join("a").join(OsStr::from_bytes(b"\xfe"));
        std::fs::create_dir_all(&cgroup).unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), "7\n").unwrap();
        let process = dir.path().join("7/task/7");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("cgroup"), b"0::/a/\xfe\n").unwrap();
        let (cgroups, parent) = (KernelCgroups::new(dir.path()), CgroupPath::parse("/a").unwrap());
        let found = parent.child(&cgroups.children(&parent).unwrap()[0]);
        assert_eq!(cgroups.read(&found, File::Procs).unwrap(), "7");
        assert_eq!(KernelProcs::new(dir.path()).cgroup(7).unwrap(), found);
    }

    #[test]
    fn a_name_in_utf_8_is_its_own_text() {
        for name in ["kubepods.slice", "cri-containerd-é", "\u{10fe00}"] {
            assert_eq!(text_of(OsStr::new(name)), name);
        }
    }

    proptest! {
        #[test]
        fn every_name_is_found_again_by_its_text(name: Vec<u8>) {
            let name = OsString::from_vec(name);
            prop_assert_eq!(path_of(&text_of(&name)), PathBuf::from(&name));
        }

        #[test]
        fn what_looks_like_an_escape_is_a_name_too(name: String) {
            let name = OsString::from(format!("{name}\u{10ff41}\u{10ffff}"));
            prop_assert_eq!(path_of(&text_of(&name)), PathBuf::from(&name));
        }
    }
}
