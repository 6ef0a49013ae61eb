//! kubelet's checkpoint checksum: FNV-1a (32 bit) over the text Go's `%#v`-like printer gives the structure.
//!
//! Source: kubelet's `checkpointmanager/checksum` and `util/hash` (DeepHashObject). Keys are sorted bytewise, single
//! spaces separate, strings stand exactly as in the file, a missing map prints `map[]`.

use std::collections::BTreeMap;
use std::fmt::Write;

/// FNV-1a, 32 bit, over the bytes of `text`.
pub fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The text hashed for schema V2 (`entries` = pod UID → container name → CPU list).
pub fn cpu_v2_text(policy: &str, default: &str, entries: &BTreeMap<String, BTreeMap<String, String>>) -> String {
    let mut text = format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){default} \
         Entries:(map[string]map[string]string)map["
    );
    for (index, (pod, containers)) in entries.iter().enumerate() {
        let separator = if index == 0 { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{pod}:map[");
        for (index, (container, cpus)) in containers.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            let _ = write!(text, "{separator}{container}:{cpus}");
        }
        text.push(']');
    }
    text.push_str("] Checksum:(checksum.Checksum)0}");
    text
}
