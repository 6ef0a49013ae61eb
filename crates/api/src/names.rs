//! The names on the bus.

use stelia_kubelet::PodUid;

pub const BUS_NAME: &str = "io.stelia.Isolation1";
pub const MANAGER_PATH: &str = "/io/stelia/Isolation1";
/// Where the runner socket is, on the host and (its directory mounted read-only) in the pods.
pub const RUNNER_SOCKET: &str = "/run/stelia/runner/socket";
/// The extended resource by which a container asks for a VM.
pub const VM_RESOURCE: &str = "stelia.io/vm";
/// AttachVcpus answers this CPU for a thread that is not pinned.
pub const NOT_PINNED: u32 = u32::MAX;

/// The object path of a pod's instance: the UID is escaped as systemd escapes labels (`_` and two hex digits for what is
/// not a letter, and for a digit in front).
pub fn instance_path(pod: &PodUid) -> String {
    let mut path = format!("{MANAGER_PATH}/instance/");
    for (index, byte) in pod.as_str().bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit()) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("_{byte:02x}"));
        }
    }
    path
}

/// The pod's UID in the object path of its instance; `None` for another path.
pub fn instance_uid(path: &str) -> Option<String> {
    let escaped = path.strip_prefix(MANAGER_PATH)?.strip_prefix("/instance/")?;
    let mut bytes = escaped.bytes();
    let mut uid = Vec::new();
    while let Some(byte) = bytes.next() {
        uid.push(match byte {
            b'_' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(uid).ok().filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_escaped_as_systemd_does() {
        let pod = PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap();
        assert_eq!(
            instance_path(&pod),
            "/io/stelia/Isolation1/instance/_33ceda12c_2d3ee9_2d40fa_2d9f42_2d61428fe654a6"
        );
        assert_eq!(instance_uid(&instance_path(&pod)).as_deref(), Some(pod.as_str()));
    }

    #[test]
    fn another_path_is_not_an_instance() {
        for path in [
            MANAGER_PATH,
            "/x",
            "/io/stelia/Isolation1/instance/",
            "/io/stelia/Isolation1/instance/a_2",
        ] {
            assert_eq!(instance_uid(path), None, "{path}");
        }
    }
}
