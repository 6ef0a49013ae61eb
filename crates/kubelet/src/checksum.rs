//! kubelet's checkpoint checksum: FNV-1a (32 bit) over the text that Go's printer makes of the structure.
//!
//! Source: kubelet's `checkpointmanager/checksum` and `k8s.io/utils/dump` (ForHash). Keys are sorted (text bytewise,
//! integers by value), single spaces separate, strings stand exactly as in the file, a missing map prints `map[]`.

use std::fmt::{Display, Write};

use super::cpu_manager_state::CheckpointError;

/// FNV-1a, 32 bit, over the bytes of `text`.
pub fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The checksum of a checkpoint's `data` string (cpu V4, memory V3), which is hashed as it stands in the file.
pub fn of_data(data: &str) -> u32 {
    fnv1a(&format!("(string){data}"))
}

/// CRC-32 (IEEE), which is the checksum of `dra_manager_state`.
pub(super) fn crc32(text: &str) -> u32 {
    !text.bytes().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

/// Compares the checksum in the file with that of its content.
///
/// # Errors
/// [`CheckpointError::Checksum`].
pub(super) fn verify(found: u32, computed: u32) -> Result<(), CheckpointError> {
    if found == computed {
        Ok(())
    } else {
        Err(CheckpointError::Checksum { found, computed })
    }
}

/// A map in the printer's form: `map[KEY:VALUE KEY:VALUE]`, in the order of the items.
pub(super) fn map<K: Display, V: Display>(items: impl Iterator<Item = (K, V)>) -> String {
    format!("map[{}]", joined(items.map(|(key, value)| format!("{key}:{value}"))))
}

/// A list in the printer's form: `[ITEM ITEM]`.
pub(super) fn list<V: Display>(items: impl Iterator<Item = V>) -> String {
    format!("[{}]", joined(items))
}

/// How Go prints nil, which is `null` in the file; else the text of the value.
pub(super) fn nil_or<T>(value: Option<&T>, text: impl Fn(&T) -> String) -> String {
    value.map_or_else(|| "<nil>".to_owned(), text)
}

fn joined<V: Display>(items: impl Iterator<Item = V>) -> String {
    let mut text = String::new();
    for item in items {
        let separator = if text.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{item}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a_of_32_bits() {
        // The reference values of the hash's authors.
        assert_eq!(fnv1a(""), 0x811c_9dc5);
        assert_eq!(fnv1a("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn a_data_string_is_hashed_with_its_type() {
        assert_eq!(of_data(r#"{"policyName":"none","defaultCPUSet":"4-6"}"#), 657_950_972);
    }

    #[test]
    fn maps_and_lists_have_the_printers_form() {
        assert_eq!(map([("b", 1), ("a", 2)].into_iter()), "map[b:1 a:2]");
        assert_eq!(map(std::iter::empty::<(u8, u8)>()), "map[]");
        assert_eq!(list([1, 22].into_iter()), "[1 22]");
    }
}
