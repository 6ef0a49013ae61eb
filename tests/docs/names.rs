//! Commands, options, settings, errors and units that the operators' pages name are those of the programs.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Command, CommandFactory};
use stelia_api::ErrorKind;
use stelia_settings::Fragment;

use crate::{files, quoted, read, root};

/// Everything written for operators: the pages, README, and the man pages as they read.
fn pages() -> Vec<(String, String)> {
    let docs = root().join("docs");
    let mut paths = files(&docs, "md");
    paths.push(root().join("README.md"));
    let pages = paths.iter().map(|path| (path.display().to_string(), read(path)));
    let manuals = ["1", "5", "7", "8"]
        .into_iter()
        .flat_map(|section| files(&docs, section));
    let manuals = manuals.map(|path| {
        (
            path.display().to_string(),
            read(&path).replace("\\-", "-").replace("\\ ", " "),
        )
    });
    pages.chain(manuals).collect()
}

/// Lines of blocks of code, and what stands between backticks.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("\n```").skip(1).step_by(2);
    let lines = blocks.flat_map(|block| block.lines().skip(1)).map(str::to_owned);
    lines.chain(quoted(text)).collect()
}

/// The words after each call of `program`, up to what ends a command.
fn calls(text: &str, program: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for line in commands(text) {
        for (_, rest) in line
            .match_indices(program)
            .map(|(at, found)| line.split_at(at + found.len()))
        {
            let Some(rest) = rest.strip_prefix(' ') else { continue };
            let ends = |word: &&str| !word.starts_with(['|', '#', ';', '&', ')', '>', '…']);
            let words: Vec<String> = rest.split_whitespace().take_while(ends).map(str::to_owned).collect();
            calls.extend((!words.is_empty()).then_some(words));
        }
    }
    calls
}

fn has_option(command: &Command, option: &str) -> bool {
    let mut names = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut below = command.get_subcommands();
    names.any(|name| name == option)
        || ["help", "version"].contains(&option)
        || below.any(|sub| sub.get_name() != "help" && has_option(sub, option))
}

#[test]
fn every_command_and_option_of_steliactl_that_is_named_exists() {
    let mut command = steliactl::cli::Cli::command();
    command.build();
    let mut named = BTreeSet::new();
    for (page, text) in pages() {
        for words in calls(&text, "steliactl") {
            let Some(name) = words
                .iter()
                .find(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let sub = command.find_subcommand(name);
            let sub = sub.unwrap_or_else(|| panic!("{page}: steliactl has no command {name:?}: {words:?}"));
            for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let option = option.split(['=', '[', ']']).next().unwrap_or_default();
                assert!(has_option(sub, option), "{page}: steliactl {name} has no --{option}");
            }
            named.insert(name.clone());
        }
    }
    assert!(named.len() >= 8, "only {named:?} are named");
}

/// The keys of the shipped configuration, which a test of `config` holds to the settings.
fn settings() -> BTreeSet<String> {
    let text = read(&root().join("packaging/steliad.toml"));
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
    lines
        .map(|(key, _)| key.trim().to_owned())
        .filter(|key| !key.contains(' '))
        .collect()
}

#[test]
fn every_setting_that_is_named_exists_and_takes_the_value() {
    let settings = settings();
    assert!(settings.contains("float-policy"), "{settings:?}");
    for (page, text) in pages().into_iter().filter(|(page, _)| !page.ends_with("runner.md")) {
        for word in quoted(&text) {
            let Some((key, value)) = word.split_once(" = ") else {
                continue;
            };
            if !key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
                continue;
            }
            let line = if value.starts_with(['"', '[']) || value.parse::<u32>().is_ok() {
                word.clone()
            } else {
                format!("{key} = {value:?}")
            };
            let parse = |text: &str| Fragment::parse(text, Path::new(&page)).and_then(Fragment::check);
            // A key of rules is none of the settings.
            let parsed = parse(&line).or_else(|_| parse(&format!("[[adopt]]\nuse = \"qemu\"\n{line}")));
            assert!(parsed.is_ok(), "{page}: {word}: {parsed:?}");
        }
    }
}

#[test]
fn every_drop_in_that_is_shown_is_one_the_daemon_takes() {
    let mut shown = 0;
    for (page, text) in pages().into_iter().filter(|(page, _)| !page.ends_with("runner.md")) {
        for block in text.split("\n```").skip(1).step_by(2) {
            let Some(block) = block.strip_prefix("toml\n") else {
                continue;
            };
            let parsed = Fragment::parse(block, Path::new(&page)).and_then(Fragment::check);
            assert!(parsed.is_ok(), "{page}: {block}: {parsed:?}");
            shown += 1;
        }
    }
    assert!(shown > 0);
}

#[test]
fn every_error_is_explained_and_no_other() {
    let errors: BTreeSet<&str> = ErrorKind::ALL.into_iter().map(ErrorKind::name).collect();
    let page = read(&root().join("docs/troubleshooting.md"));
    let section = page
        .split("\n## ")
        .find(|part| part.starts_with("Refused registrations"));
    let rows = section
        .expect("the section")
        .lines()
        .filter(|line| line.starts_with("| "));
    let explained: BTreeSet<&str> = rows
        .filter_map(|row| row.split(['|', ' ']).find(|word| !word.is_empty()))
        .collect();
    let explained: BTreeSet<&str> = explained.into_iter().filter(|word| *word != "name").collect();
    assert_eq!(explained, errors);
    // As it would be written in prose.
    for (page, text) in pages() {
        for (at, found) in text.match_indices("Isolation1.Error.") {
            let name: String = text[at + found.len()..]
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect();
            assert!(name.is_empty() || errors.contains(name.as_str()), "{page}: {name}");
        }
    }
}

#[test]
fn every_unit_of_ours_that_is_named_exists() {
    let kinds = [".service", ".socket", ".path", ".slice", ".scope", ".timer"];
    let mut named = BTreeSet::new();
    for (page, text) in pages() {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !"-.$<>@".contains(c)) {
            let word = word.trim_end_matches('.');
            if !word.starts_with("steli") || !kinds.iter().any(|kind| word.ends_with(kind)) {
                continue;
            }
            let shipped = root().join("systemd-units").join(word).exists();
            assert!(shipped || word.starts_with("stelia-instance-"), "{page}: {word}");
            named.insert(word.to_owned());
        }
    }
    assert!(named.len() >= 5, "{named:?}");
}

#[test]
fn every_message_id_that_is_named_is_one_of_the_journals() {
    let mut named = 0;
    for (page, text) in pages() {
        let ids = text.split(|c: char| !c.is_ascii_alphanumeric());
        for id in ids.filter(|word| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            assert!(steliad::journal::ALL.contains(&id), "{page}: {id}");
            named += 1;
        }
    }
    assert!(named >= 2, "{named}");
}
