//! What Kubernetes' users call a pod.

use std::fmt;

/// A pod's namespace and name, e.g. `default/vm`: unique among a cluster's pods at one time, not over time as the UID
/// is. For people; nothing is decided by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    namespace: Box<str>,
    name: Box<str>,
}

impl PodName {
    /// `None` where Kubernetes would not accept the pair: a namespace is a DNS label, a pod's name a DNS subdomain (RFC
    /// 1123, as `k8s.io/apimachinery/pkg/util/validation` checks them). So no name steers a terminal, or grows.
    pub fn new(namespace: &str, name: &str) -> Option<Self> {
        let valid = is_label(namespace) && name.len() <= 253 && name.split('.').all(is_subdomain_part);
        valid.then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
        })
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pod's name within its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// `namespace/name`, as kubectl and the container runtimes write it.
impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether Kubernetes takes the text as a DNS label (RFC 1123): the name of a namespace or of a container.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_subdomain_part(text)
}

/// Lower-case letters, digits and dashes, no dash at either end. Only the whole of a subdomain has a length.
fn is_subdomain_part(text: &str) -> bool {
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_accepts_is_a_name() {
        let name = PodName::new("team-a", "virt-launcher-web.1-x7k2p").unwrap();
        assert_eq!(name.to_string(), "team-a/virt-launcher-web.1-x7k2p");
        assert_eq!((name.namespace(), name.name()), ("team-a", "virt-launcher-web.1-x7k2p"));
        assert!(PodName::new("n", &"a".repeat(253)).is_some());
    }

    #[test]
    fn what_kubernetes_refuses_is_none() {
        let long = "a".repeat(254);
        for (namespace, name) in [
            ("", "vm"),
            ("default", ""),
            ("default", "a..b"),
            ("default", "a/b"),
            ("default", "VM"),
            ("default", "vm\n"),
            ("a.b", "vm"),
            ("-a", "vm"),
            ("default", "vm-"),
            ("default", long.as_str()),
            (&long[..64], "vm"),
        ] {
            assert_eq!(PodName::new(namespace, name), None, "{namespace}/{name}");
        }
    }
}
