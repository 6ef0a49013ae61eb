//! The Node's name.

/// Longest name of a Node, in bytes (a DNS subdomain, RFC 1123).
const MAX_BYTES: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a name that a Kubernetes Node can have: lower-case letters, digits, '-' and '.', a letter or digit at either end of each \
     part, at most {MAX_BYTES} bytes"
)]
pub struct NameError {
    /// The name, or the beginning of a long one.
    name: String,
}

/// The name by which kubelet registers the Node, unless a cloud provider names it: `--hostname-override`, else the
/// host's name, without blanks at its ends and in lower case.
pub fn of_host(hostname_override: Option<&str>, hostname: &str) -> String {
    let given = hostname_override.map(str::trim).filter(|name| !name.is_empty());
    given.unwrap_or(hostname.trim()).to_lowercase()
}

/// Checks a name.
///
/// # Errors
/// No Node can have this name.
pub fn check(name: String) -> Result<String, NameError> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-');
    if name.len() <= MAX_BYTES && name.split('.').all(part) {
        Ok(name)
    } else {
        Err(NameError {
            name: stelia_cpus::text::excerpt::excerpt(&name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_called_as_kubelet_registers_it() {
        assert_eq!(of_host(None, "Worker-1.Example \n"), "worker-1.example");
        assert_eq!(of_host(Some(" Node7 "), "worker-1"), "node7");
        assert_eq!(of_host(Some(""), "worker-1"), "worker-1");
    }

    #[test]
    fn what_can_be_no_node_is_refused() {
        for good in ["a", "0", "worker-1", "10.0.0.7", "a.b-c.d", &"a".repeat(253)] {
            assert_eq!(check(good.to_owned()).unwrap(), good);
        }
        for bad in [
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "a.-b",
            "A",
            "a_b",
            "a b",
            "a\n",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(check(bad.to_owned()).is_err(), "{bad:?}");
        }
        let told = check("x".repeat(1000)).unwrap_err().to_string();
        assert!(told.len() < 300, "{told}");
    }
}
