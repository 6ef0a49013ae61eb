//! Programs that tests run and what they print, files that they read and write, and waiting.

use std::env::current_exe;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// An emulated node on a busy machine can be slow; what is measured is printed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A program and its arguments: a line of words none of which has blanks, or a list of them.
pub trait Argv {
    fn argv(&self) -> Vec<&str>;
}

impl Argv for str {
    fn argv(&self) -> Vec<&str> {
        words(self)
    }
}

impl Argv for String {
    fn argv(&self) -> Vec<&str> {
        words(self)
    }
}

impl<const N: usize> Argv for [&str; N] {
    fn argv(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<T: AsRef<str>> Argv for Vec<T> {
    fn argv(&self) -> Vec<&str> {
        self.iter().map(AsRef::as_ref).collect()
    }
}

/// The words of a part of a command line, none of which has blanks.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Run a program; what it says goes into the panic when it fails.
pub fn run(argv: &(impl Argv + ?Sized)) -> String {
    let out = output(argv);
    let argv = argv.argv();
    assert!(out.status.success(), "{argv:?}: {}\n{}", out.status, said(&out));
    utf8(&out.stdout).trim().to_owned()
}

pub fn output(argv: &(impl Argv + ?Sized)) -> Output {
    let argv = argv.argv();
    let (program, arguments) = argv.split_first().expect("a program");
    Command::new(program).args(arguments).output().expect(program)
}

/// Of an even number the larger of the two in the middle.
pub fn median<T: Ord + Copy>(mut of: Vec<T>) -> T {
    of.sort_unstable();
    of[of.len() / 2]
}

pub fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All that a program said, to both outputs.
pub fn said(out: &Output) -> String {
    utf8(&[&out.stdout[..], &out.stderr].concat())
}

/// Whether a program fails, with these words in what it says to its standard error.
pub fn assert_fails(out: &Output, mentions: &str) {
    let told = utf8(&out.stderr);
    let is_so = !out.status.success() && told.contains(mentions);
    assert!(is_so, "not {mentions:?}: {out:?}");
}

pub fn assert_says(text: &str, mentions: &[&str]) {
    let is_said = mentions.iter().all(|one| text.contains(one));
    assert!(is_said, "not {mentions:?}: {text}");
}

pub fn json(text: &str) -> Value {
    parse(text)
}

/// The text that a JSON value is; empty when it is none.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub fn parse<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// What a command prints as JSON, and whether it succeeded.
pub fn printed(argv: &(impl Argv + ?Sized)) -> (Value, Output) {
    let out = output(argv);
    let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    (value, out)
}

/// The journal of this boot, only the messages that this filters.
pub fn journal(filter: &(impl Argv + ?Sized)) -> String {
    run(&[words("journalctl -b -q --no-pager -o cat"), filter.argv()].concat())
}

/// The last lines of these units, for the message of a wait that failed.
pub fn journal_of(units: &[&str]) -> String {
    let units: Vec<String> = units.iter().map(|unit| format!("--unit={unit}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    let last = words("journalctl -b --no-pager -o short-monotonic -n 100");
    let out = output(&[last, units].concat());
    format!("; the journal says:\n{}", utf8(&out.stdout))
}

pub fn property(name: &str, unit: &str) -> String {
    run(&["systemctl", "show", "-P", name, unit])
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
    text.trim().to_owned()
}

/// The same of a file that may not be there: nothing then.
pub fn read_if_there(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

pub fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let (path, text) = (path.as_ref(), text.as_ref());
    fs::write(path, text).unwrap_or_else(|e| panic!("{:?} to {}: {e}", utf8(text), path.display()));
}

/// The same of a file whose folder may not be there.
pub fn put_new(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let folder = path.as_ref().parent().expect("a folder");
    fs::create_dir_all(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    put(path, text);
}

/// What the line with this beginning has behind it.
pub fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name:?}: {text}")).trim().to_owned()
}

/// The number that a text begins with, up to the first blank.
pub fn number<T: FromStr>(text: &str) -> T {
    let first = words(text).first().and_then(|word| word.parse().ok());
    first.unwrap_or_else(|| panic!("no number: {text:?}"))
}

/// What is in a folder that may not be there, by name.
pub fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string());
    names.flatten().collect()
}

/// A file beside the tests, which containers see too.
pub fn beside(name: &str) -> PathBuf {
    current_exe().expect("own path").with_file_name(name)
}

/// A command for this module's test `process`, which does what the environment's variable says.
pub fn process_words(module: &str, variable: &str) -> Vec<String> {
    let me = current_exe().expect("own path").display().to_string();
    let test = format!("{module}::process");
    let words = ["env", variable, &me, &test, "--exact", "--ignored", "--nocapture"];
    words.map(str::to_owned).to_vec()
}

/// A process that ends with this value.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn kill(signal: &str, pid: impl Display) {
    run(&format!("kill {signal} {pid}"));
}

/// What a wait waits for: that something is so, or something that comes.
pub trait Awaited {
    type Found;

    fn found(self) -> Option<Self::Found>;
}

impl Awaited for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Awaited for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Wait until `now` is true or answers, and say how long that took.
pub fn wait_until<A: Awaited>(what: &str, now: impl FnMut() -> A) -> A::Found {
    wait_until_or(what, String::new, now)
}

/// The same; when it comes too late, `seen` says what there was instead.
pub fn wait_until_or<A: Awaited>(what: &str, seen: impl Fn() -> String, now: impl FnMut() -> A) -> A::Found {
    wait_within(PATIENCE, what, seen, now)
}

/// The same, no longer than `patience`.
pub fn wait_within<A: Awaited>(
    patience: Duration,
    what: &str,
    seen: impl Fn() -> String,
    mut now: impl FnMut() -> A,
) -> A::Found {
    let started = Instant::now();
    loop {
        if let Some(found) = now().found() {
            println!("  {what}: after {} ms", started.elapsed().as_millis());
            return found;
        }
        let is_late = started.elapsed() >= patience;
        assert!(!is_late, "not within {patience:?}: {what}{}", seen());
        sleep(Duration::from_millis(20));
    }
}
