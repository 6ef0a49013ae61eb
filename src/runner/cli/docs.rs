//! `docs/runner.md`: its examples work, and no option is left out of the help.

use clap::Parser;
use serde::Deserialize;

use super::Cli;
use crate::runner::helpers::{spec::parse_file, split};

const PAGE: &str = include_str!("../../../docs/runner.md");

/// The blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let mut blocks = Vec::new();
    let mut rest = PAGE;
    while let Some((_, found)) = rest.split_once("\n```") {
        let (block, after) = found.split_once("\n```\n").unwrap();
        blocks.extend(block.strip_prefix(&format!("{language}\n")));
        rest = after;
    }
    blocks
}

fn holds(words: &[String]) {
    let options = words.iter().map(String::as_str);
    Cli::try_parse_from(options).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

#[test]
fn every_command_is_one_the_runner_takes() {
    let text = blocks("sh").join("\n").replace("\\\n", "");
    let commands: Vec<_> = text.lines().filter(|line| line.starts_with("stelia-runner")).collect();
    assert!(commands.len() >= 8, "{commands:?}");
    commands.iter().for_each(|command| holds(&split(command).unwrap()));
}

#[test]
fn every_helpers_file_is_one_the_runner_takes() {
    let blocks = blocks("toml");
    assert_eq!(blocks.len(), 1);
    assert_eq!(parse_file(blocks[0]).unwrap().len(), 3);
}

/// Anything that may hold a command: a container, a probe, a hook.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Yaml {
    List(Vec<Yaml>),
    Map(std::collections::BTreeMap<String, Yaml>),
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Yaml {
    fn texts(&self) -> Vec<String> {
        match self {
            Yaml::List(list) => list.iter().flat_map(Yaml::texts).collect(),
            Yaml::Text(text) => vec![text.clone()],
            other => panic!("{other:?}"),
        }
    }

    fn commands(&self, found: &mut Vec<Vec<String>>) {
        match self {
            Yaml::List(list) => list.iter().for_each(|one| one.commands(found)),
            Yaml::Map(map) => {
                if let Some(command) = map.get("command") {
                    let args = map.get("args").map(Yaml::texts).unwrap_or_default();
                    found.push([command.texts(), args].concat());
                }
                map.values().for_each(|one| one.commands(found));
            }
            Yaml::Text(_) | Yaml::Other(_) => {}
        }
    }
}

#[test]
fn every_manifest_starts_the_runner_as_it_wants_to_be_started() {
    let mut commands = Vec::new();
    for block in blocks("yaml") {
        let yaml: Yaml = serde_saphyr::from_str(block).unwrap();
        yaml.commands(&mut commands);
    }
    assert_eq!(commands.len(), 4, "{commands:?}");
    commands.iter().for_each(|command| holds(command));
}
