//! A plugin's answer to Allocate (`ContainerAllocateResponse` of `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`), of which only
//! the device files are read. It is a message of protobuf; fields that are not known are skipped.

use std::collections::BTreeSet;

/// `devices` of the answer, and `host_path` of each.
const DEVICES: u64 = 3;
const HOST_PATH: u64 = 2;

/// The files below the host's `/dev` that the plugin gave the container; what is behind a part that is not understood is left out.
pub(super) fn device_files(answer: &[u8]) -> BTreeSet<String> {
    let devices = Fields(answer).filter(|(number, _)| *number == DEVICES);
    let paths = devices.flat_map(|(_, device)| Fields(device).filter(|(number, _)| *number == HOST_PATH));
    paths
        .filter_map(|(_, path)| String::from_utf8(path.to_vec()).ok())
        .collect()
}

/// The fields of a message that have a length, each with its number.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tag = self.varint()?;
            let length = match tag & 7 {
                0 => {
                    self.varint()?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(self.varint()?).ok()?,
                5 => 4,
                _ => return None,
            };
            let (value, rest) = self.0.split_at_checked(length)?;
            self.0 = rest;
            if tag & 7 == 2 {
                return Some((tag >> 3, value));
            }
        }
    }
}

impl Fields<'_> {
    /// Seven bits a byte, the lowest first; the last byte has no highest bit.
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(value.len()).unwrap()];
        bytes.extend(value);
        bytes
    }

    fn device(host: &str) -> Vec<u8> {
        let parts = [
            field(1, b"/dev/in-container"),
            field(2, host.as_bytes()),
            field(3, b"mrw"),
        ];
        field(3, &parts.concat())
    }

    #[test]
    fn the_files_of_devices_are_found_among_other_fields() {
        let environment = field(1, &[field(1, b"PCI_RESOURCE_X"), field(2, b"0000:3b:00.0")].concat());
        // A field of a later version of the API that is a number.
        let answer = [
            environment,
            vec![9 << 3, 0x80, 1],
            device("/dev/vfio/12"),
            device("/dev/vfio/vfio"),
        ]
        .concat();
        let expected = ["/dev/vfio/12", "/dev/vfio/vfio"].map(str::to_owned);
        assert_eq!(device_files(&answer), expected.into());
    }

    #[test]
    fn what_is_cut_or_no_message_is_no_file() {
        let answer = device("/dev/vfio/12");
        for end in 0..answer.len() {
            assert!(device_files(&answer[..end]).is_empty(), "{end}");
        }
        assert!(device_files(&[0xff; 32]).is_empty());
        assert!(device_files(&[3 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_empty());
    }
}
