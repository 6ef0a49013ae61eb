//! The option `--fd NAME=WHAT`.

use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DescriptorSpec {
    pub(crate) name: String,
    pub(crate) source: Source,
}

/// What a descriptor is opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file or a device, for reading and writing.
    File(PathBuf),
    /// A connection to this UNIX stream socket.
    Socket(PathBuf),
    /// A queue of this tap interface, in the network namespace of the container.
    Tap(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Socket(path) => write!(f, "socket:{}", path.display()),
            Source::Tap(interface) => write!(f, "tap:{interface}"),
        }
    }
}

/// Limit of an interface's name, in bytes without the NUL at the end (IFNAMSIZ of linux/if.h).
const MAX_INTERFACE_BYTES: usize = 15;

/// `NAME=PATH`, `NAME=socket:PATH` or `NAME=tap:INTERFACE`. A path is absolute, so that a misspelt prefix is not a file's name.
pub(crate) fn parse(text: &str) -> Result<DescriptorSpec, String> {
    let (name, what) = text.split_once('=').ok_or("give NAME=PATH")?;
    let is_name_char = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if name.is_empty() || !name.chars().all(is_name_char) {
        return Err(format!("{name:?} is not a name: letters, digits, - _ ."));
    }
    let path = |text: &str| {
        if text.starts_with('/') {
            Ok(PathBuf::from(text))
        } else {
            Err(format!("{text:?} is not an absolute path"))
        }
    };
    let source = match what.split_once(':') {
        Some(("socket", socket)) => Source::Socket(path(socket)?),
        Some(("tap", interface)) => {
            let wrong = |char: char| char == '/' || char.is_whitespace() || char == '%';
            if interface.is_empty() || interface.len() > MAX_INTERFACE_BYTES || interface.contains(wrong) {
                return Err(format!("{interface:?} is not an interface's name"));
            }
            Source::Tap(interface.to_owned())
        }
        _ => Source::File(path(what).map_err(|text| format!("{text}, socket:PATH or tap:INTERFACE"))?),
    };
    Ok(DescriptorSpec {
        name: name.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("vhost=/dev/vhost-net", "vhost", Source::File("/dev/vhost-net".into()))]
    #[case("d-1=/a:b=c", "d-1", Source::File("/a:b=c".into()))]
    #[case("fs=socket:/run/fs", "fs", Source::Socket("/run/fs".into()))]
    #[case("net_0.1=tap:tap0", "net_0.1", Source::Tap("tap0".into()))]
    fn a_descriptor_is_a_name_and_what_is_opened(#[case] text: &str, #[case] name: &str, #[case] source: Source) {
        let spec = parse(text).unwrap();
        assert_eq!(format!("{}={}", spec.name, spec.source), text);
        assert_eq!((spec.name.as_str(), spec.source), (name, source));
    }

    #[rstest]
    #[case("vhost", "give NAME=PATH")]
    #[case("=/dev/vhost-net", "is not a name")]
    #[case("a b=/x", "is not a name")]
    #[case("a}=/x", "is not a name")]
    #[case("a=", "is not an absolute path")]
    #[case("a=relative", "socket:PATH or tap:INTERFACE")]
    #[case("a=sock:/x", "is not an absolute path")]
    #[case("a=socket:x", "is not an absolute path")]
    #[case("a=tap:", "is not an interface's name")]
    #[case("a=tap:longer-than-15-by", "is not an interface's name")]
    #[case("a=tap:tap%d", "is not an interface's name")]
    fn what_is_not_understood_is_refused_with_the_reason(#[case] text: &str, #[case] reason: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
