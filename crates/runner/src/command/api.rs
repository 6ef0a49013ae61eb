//! The API socket of Cloud Hypervisor (`--api-socket path=PATH`) and Firecracker (`--api-sock PATH`).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::error::Error;
use crate::vmm::Dialect;

/// The arguments with the API socket: unchanged if they name this one, otherwise with it added. A VMM has only one API socket.
pub(super) fn with_socket(dialect: Dialect, given: &[OsString], socket: &Path) -> Result<Vec<OsString>, Error> {
    let (option, key) = match dialect {
        Dialect::CloudHypervisor => ("--api-socket", "path="),
        Dialect::Firecracker => ("--api-sock", ""),
    };
    let wrong = |text: String| Err(Error::Usage(format!("--api-socket {}: {text}", socket.display())));
    if dialect == Dialect::CloudHypervisor && socket.to_string_lossy().contains(',') {
        return wrong("Cloud Hypervisor takes no comma in it".into());
    }
    // What follows `--` is not an option.
    let own = given.split(|arg| arg == "--").next().unwrap_or_default();
    if dialect == Dialect::Firecracker && own.iter().any(|arg| arg == "--no-api") {
        return wrong("Firecracker is given --no-api".into());
    }
    match value(own, option) {
        None => {
            let mut value = OsString::from(key);
            value.push(socket);
            let (own, rest) = given.split_at(own.len());
            Ok([own, &[option.into(), value], rest].concat())
        }
        Some(value) if names(&value, key, socket) => Ok(given.to_vec()),
        Some(value) => wrong(format!(
            "the VMM's arguments have {option} {}: give the same socket",
            value.to_string_lossy()
        )),
    }
}

/// The value of `option VALUE` or `option=VALUE`.
fn value(args: &[OsString], option: &str) -> Option<OsString> {
    args.iter().enumerate().find_map(|(at, arg)| {
        let rest = arg.to_str()?.strip_prefix(option)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value.into()),
            None if rest.is_empty() => Some(args.get(at + 1).cloned().unwrap_or_default()),
            None => None,
        }
    })
}

/// Whether the value is the socket's path, with or without the key.
fn names(value: &OsStr, key: &str, socket: &Path) -> bool {
    let path = value.to_str().and_then(|text| text.strip_prefix(key));
    path.map_or(value, OsStr::new) == socket
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    use Dialect::{CloudHypervisor, Firecracker};

    fn completed(dialect: Dialect, args: &[&str], socket: &str) -> Result<Vec<String>, String> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let done = with_socket(dialect, &args, Path::new(socket)).map_err(|error| error.to_string())?;
        Ok(done.into_iter().map(|arg| arg.into_string().unwrap()).collect())
    }

    #[rstest]
    #[case(CloudHypervisor, &["--kernel", "/k"], &["--kernel", "/k", "--api-socket", "path=/run/api"])]
    #[case(Firecracker, &["--id", "a", "--", "--x"], &["--id", "a", "--api-sock", "/run/api", "--", "--x"])]
    #[case(CloudHypervisor, &["--api-socket", "path=/run/api"], &["--api-socket", "path=/run/api"])]
    #[case(CloudHypervisor, &["--api-socket", "/run/api"], &["--api-socket", "/run/api"])]
    #[case(CloudHypervisor, &["--api-socket=path=/run/api"], &["--api-socket=path=/run/api"])]
    #[case(Firecracker, &["--id=a", "--api-sock", "/run/api"], &["--id=a", "--api-sock", "/run/api"])]
    fn the_socket_is_added_where_it_is_absent(
        #[case] dialect: Dialect,
        #[case] args: &[&str],
        #[case] expected: &[&str],
    ) {
        assert_eq!(completed(dialect, args, "/run/api").unwrap(), expected);
    }

    #[rstest]
    #[case(CloudHypervisor, &["--api-socket", "path=/other"], "/a", "have --api-socket path=/other: give the same socket")]
    #[case(CloudHypervisor, &["--api-socket", "fd=3"], "/a", "have --api-socket fd=3: give the same socket")]
    #[case(CloudHypervisor, &["--api-socket"], "/a", "give the same socket")]
    #[case(CloudHypervisor, &[], "/a,b", "takes no comma in it")]
    #[case(Firecracker, &["--api-sock=/other"], "/a", "have --api-sock /other: give the same socket")]
    #[case(Firecracker, &["--no-api"], "/a", "Firecracker is given --no-api")]
    fn another_socket_or_none_is_a_named_error(
        #[case] dialect: Dialect,
        #[case] args: &[&str],
        #[case] socket: &str,
        #[case] expected: &str,
    ) {
        let error = completed(dialect, args, socket).unwrap_err();
        assert!(error.starts_with(&format!("--api-socket {socket}: ")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
