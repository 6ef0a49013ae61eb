//! The declaration of a helper, on the command line or in a TOML file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    /// Before QEMU, which may need it.
    #[default]
    Before,
    /// When QEMU answers on QMP, so its sockets exist.
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnExit {
    /// It is started again, after a pause that doubles up to 30 s.
    #[default]
    Restart,
    /// The guest is shut down and the runner fails.
    Fatal,
    Ignore,
}

/// A helper as declared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct HelperSpec {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) start: Start,
    #[serde(default)]
    pub(crate) on_exit: OnExit,
    /// QEMU starts when this path exists.
    pub(crate) wait_for: Option<PathBuf>,
    /// Program and arguments; never empty.
    #[serde(deserialize_with = "command")]
    pub(crate) command: Vec<String>,
}

/// A line, or its words.
fn command<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Command {
        Line(String),
        Words(Vec<String>),
    }
    match Command::deserialize(from)? {
        Command::Line(line) => words(&line).map_err(D::Error::custom),
        Command::Words(words) => Ok(words),
    }
}

/// As a shell splits a line without expanding anything; what begins with # is a comment.
fn words(line: &str) -> Result<Vec<String>, &'static str> {
    shlex::split(line).ok_or("command: a quote is not closed, or nothing follows the last backslash")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    helper: Vec<HelperSpec>,
}

/// Parses a file of `[[helper]]` tables.
pub(crate) fn parse_file(text: &str) -> Result<Vec<HelperSpec>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    file.helper.into_iter().map(checked).collect()
}

/// `name=NAME[,start=…][,on-exit=…][,wait-for=PATH],command=COMMAND LINE`; the command is all that follows its key.
pub(crate) fn parse_argument(text: &str) -> Result<HelperSpec, String> {
    let (keys, line) = match text.strip_prefix("command=") {
        Some(command) => ("", command),
        None => text.split_once(",command=").ok_or("command= is missing")?,
    };
    let mut written = HelperSpec::default();
    let mut seen = BTreeSet::new();
    for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(format!("{pair:?} is not KEY=VALUE"))?;
        if !seen.insert(key) {
            return Err(format!("{key} is given twice"));
        }
        match key {
            "name" => written.name = value.to_owned(),
            "start" => written.start = word(key, value)?,
            "on-exit" => written.on_exit = word(key, value)?,
            "wait-for" => written.wait_for = Some(value.into()),
            _ => return Err(format!("{key:?} is not known")),
        }
    }
    written.command = words(line).map_err(|text| format!("{}: {text}", written.name))?;
    checked(written)
}

/// A variant by its name in the file.
fn word<'a, T: Deserialize<'a>>(key: &str, value: &'a str) -> Result<T, String> {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};
    let deserializer: StrDeserializer<'a, Error> = value.into_deserializer();
    T::deserialize(deserializer).map_err(|error| format!("{key}: {error}"))
}

fn checked(written: HelperSpec) -> Result<HelperSpec, String> {
    let name = &written.name;
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 32 || !name.bytes().all(good) {
        return Err(format!("name {name:?}: give 1 to 32 letters, digits, '.', '_' or '-'"));
    }
    if written.command.first().is_none_or(String::is_empty) {
        return Err(format!("{name}: command is empty"));
    }
    if written.start == Start::After && written.wait_for.is_some() {
        return Err(format!("{name}: wait-for needs start = before"));
    }
    Ok(written)
}

/// The helpers of the file, then those of the command line; each name once.
pub(crate) fn all(file: Vec<HelperSpec>, arguments: &[HelperSpec]) -> Result<Vec<HelperSpec>, Error> {
    let all: Vec<HelperSpec> = file.into_iter().chain(arguments.iter().cloned()).collect();
    let mut names = BTreeSet::new();
    match all.iter().find(|spec| !names.insert(spec.name.clone())) {
        Some(twice) => Err(Error::Helper {
            name: twice.name.clone(),
            text: "declared twice".into(),
        }),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn an_argument_and_a_table_say_the_same() {
        let argument = "name=virtiofsd,start=before,on-exit=fatal,wait-for=/run/fs.sock,command=/usr/libexec/virtiofsd --x=a,b 'c d'";
        let table = r#"
            [[helper]]
            name = "virtiofsd"
            on-exit = "fatal"
            wait-for = "/run/fs.sock"
            command = ["/usr/libexec/virtiofsd", "--x=a,b", "c d"]
        "#;
        assert_eq!(parse_file(table).unwrap(), [parse_argument(argument).unwrap()]);
    }

    #[rstest]
    #[case("  a  b\tc ", &["a", "b", "c"])]
    #[case("a 'b c' d", &["a", "b c", "d"])]
    #[case("a --x='y \"z\"'", &["a", "--x=y \"z\""])]
    #[case("a \"b \\\" \\\\ \\n\"", &["a", "b \" \\ \\n"])]
    #[case("a\\ b ''", &["a b", ""])]
    fn words_are_split_as_a_shell_does(#[case] line: &str, #[case] words: &[&str]) {
        assert_eq!(
            parse_argument(&format!("name=x,command={line}")).unwrap().command,
            words
        );
    }

    #[test]
    fn little_is_enough() {
        let spec = parse_argument("name=x,command=y").unwrap();
        assert_eq!(
            (spec.start, spec.on_exit, spec.wait_for),
            (Start::Before, OnExit::Restart, None)
        );
        assert_eq!(parse_file("").unwrap(), []);
    }

    #[rstest]
    #[case("name=x", "command= is missing")]
    #[case("name=x,command=", "x: command is empty")]
    #[case("command=y", "name \"\": give 1 to 32")]
    #[case("name=a b,command=y", "name \"a b\"")]
    #[case("name=x,name=y,command=y", "name is given twice")]
    #[case("name=x,start=soon,command=y", "start: unknown variant `soon`")]
    #[case("name=x,colour=red,command=y", "\"colour\" is not known")]
    #[case("name=x,before,command=y", "\"before\" is not KEY=VALUE")]
    #[case("name=x,command='y", "x: command: a quote is not closed")]
    #[case("name=x,command=\"y", "x: command: a quote is not closed")]
    #[case("name=x,command=\"y\\", "x: command: a quote is not closed")]
    #[case("name=x,command=y\\", "nothing follows the last backslash")]
    #[case("name=x,start=after,wait-for=/y,command=z", "wait-for needs start = before")]
    fn what_is_wrong_is_named(#[case] text: &str, #[case] expected: &str) {
        let error = parse_argument(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_file_with_an_unknown_key_is_refused_by_name() {
        let error = parse_file("[[helper]]\nname='x'\ncommand='y'\nrestart='no'\n").unwrap_err();
        assert!(error.contains("restart"), "{error}");
    }

    #[test]
    fn a_name_is_given_once() {
        let spec = parse_argument("name=x,command=y").unwrap();
        let error = all(vec![spec.clone()], std::slice::from_ref(&spec)).unwrap_err();
        assert_eq!(error.to_string(), "helper x: declared twice");
        assert_eq!(all(vec![], std::slice::from_ref(&spec)).unwrap(), [spec]);
    }
}
