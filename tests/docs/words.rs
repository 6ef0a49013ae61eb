//! Names and texts use the field's words: no told, found, kept or seen in the names of types, modules and constants, no sentence of a man
//! page or a help text that begins with "Of", and "machine" only where it is not a VM.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{files, read, root};

/// Words that say that something was told or found, or are metaphors, as parts of a name in CamelCase, snake_case or capitals.
const PRIVATE: [&str; 30] = [
    "again", "bell", "birth", "clerk", "company", "crowd", "dear", "desk", "door", "found", "fuse", "heard", "house",
    "kept", "known", "longest", "look", "looked", "most", "patience", "seen", "shelf", "standing", "tell", "told",
    "unseen", "untold", "who", "whom", "whose",
];

/// Names that have such a word because others use it: file, name and why.
const FOREIGN: [(&str, &str, &str); 1] = [(
    "crates/runner/src/lib.rs",
    "EXIT_NOT_FOUND",
    "the shell's exit status 127: command not found",
)];

/// Names with "machine" that are not a VM's.
const MACHINES: [&str; 5] = [
    "virtual machine",
    "machine id",
    "machine-id",
    "physical machine",
    "state machine",
];

/// The sources of programs and libraries, without tests and benchmarks.
fn sources() -> Vec<(String, String)> {
    let mut paths = files(&root().join("src"), "rs");
    for folder in crate::CRATES {
        paths.extend(files(&root().join(folder), "rs"));
    }
    paths.sort();
    let named = paths.iter().map(|path| (name(path), path));
    let ours = named.filter(|(name, _)| !is_test(name));
    ours.map(|(name, path)| (name, read(path))).collect()
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn is_test(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.any(|part| {
        ["tests", "tests.rs", "testing", "testing.rs", "benches"].contains(&part)
            || part.ends_with("_tests.rs")
            || part.ends_with("_tests")
    })
}

/// The name that a line of a source declares: a type, a trait, a module or a constant.
fn declared(line: &str) -> Option<&str> {
    let mut line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub") {
        let rest = rest.trim_start();
        line = match rest.strip_prefix('(') {
            Some(limited) => limited.split_once(')')?.1.trim_start(),
            None => rest,
        };
    }
    let (kind, rest) = line.split_once(' ')?;
    let is_item = ["struct", "enum", "trait", "mod", "const", "static", "type", "union"].contains(&kind);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    let declared = &rest[..end];
    (is_item && !["fn", "_"].contains(&declared)).then_some(declared)
}

/// The words of a name, in small letters.
fn words(name: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut word = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && !before.is_uppercase() {
            words.insert(std::mem::take(&mut word));
        }
        if c != '_' {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.insert(word);
    words.remove("");
    words
}

#[test]
fn names_of_types_modules_and_constants_are_the_fields() {
    let private: BTreeSet<String> = PRIVATE.iter().map(|word| (*word).to_owned()).collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let Some(name) = declared(line) else { continue };
            if words(name).is_disjoint(&private) {
                continue;
            }
            match FOREIGN
                .iter()
                .find(|(place, foreign, _)| *place == file && *foreign == name)
            {
                Some(entry) => {
                    used.insert(entry);
                }
                None => wrong.push(format!("{file}:{}: {name}", number + 1)),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "names that do not say what the thing is:\n{}",
        wrong.join("\n")
    );
    let unused: Vec<_> = FOREIGN.iter().filter(|entry| !used.contains(entry)).collect();
    assert!(unused.is_empty(), "exceptions that nothing needs: {unused:?}");
}

/// What is wrong with a text: sentences that begin with "Of", and a VM that is called a machine.
fn faults(text: &str) -> Vec<&'static str> {
    let mut faults = Vec::new();
    if text.starts_with("Of ") || [". Of ", ": Of ", "? Of "].iter().any(|of| text.contains(of)) {
        faults.push("a sentence begins with \"Of\"");
    }
    let mut rest = text.to_lowercase();
    for machine in MACHINES {
        rest = rest.replace(machine, "");
    }
    if rest
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| ["machine", "machines"].contains(&word))
    {
        faults.push("\"machine\" says neither VM nor node");
    }
    faults
}

#[test]
fn man_pages_are_plain_sentences() {
    let mut wrong = Vec::new();
    for path in ["1", "5", "7", "8"]
        .iter()
        .flat_map(|section| files(&root().join("docs"), section))
    {
        for (number, line) in read(&path).lines().enumerate() {
            // A request's line has the text behind the request, and fonts are escapes.
            let text = line
                .replace("\\fB", "")
                .replace("\\fI", "")
                .replace("\\fR", "")
                .replace("\\-", "-");
            let text = text.strip_prefix(".B ").or(text.strip_prefix(".I ")).unwrap_or(&text);
            wrong.extend(
                faults(text)
                    .into_iter()
                    .map(|fault| format!("{}:{}: {fault}", name(&path), number + 1)),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Comments of types and members are help texts where clap derives a command line from them, and documentation elsewhere. Comments of tests
/// at the end of a file are read too.
#[test]
fn comments_are_plain_sentences() {
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let comment = ["///", "//!", "//"]
                .iter()
                .find_map(|start| line.trim_start().strip_prefix(start));
            let Some(comment) = comment else { continue };
            let faults = faults(comment.trim()).into_iter();
            let of = faults.filter(|fault| fault.contains("Of") || is_help(&text));
            wrong.extend(of.map(|fault| format!("{file}:{}: {fault}", number + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether comments of a source become help texts of a command line.
fn is_help(source: &str) -> bool {
    source.contains("#[arg(") || source.contains("#[command(")
}

#[test]
fn a_name_is_divided_into_its_words() {
    let all = |name: &str| words(name).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(all("SeenPod"), "pod seen");
    assert_eq!(all("MOST_NODES"), "most nodes");
    assert_eq!(all("found"), "found");
    assert_eq!(declared("pub(crate) const MOST: u32 = 1;"), Some("MOST"));
    assert_eq!(declared("pub enum Whom {"), Some("Whom"));
    assert_eq!(declared("const fn told() {}"), None);
    assert_eq!(declared("    let told = 1;"), None);
    assert_eq!(faults("Of a VM"), ["a sentence begins with \"Of\""]);
    assert_eq!(faults("The machine id of a virtual machine"), Vec::<&str>::new());
    assert_eq!(faults("The machine's CPUs").len(), 1);
}
