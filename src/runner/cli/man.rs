//! The man page, made from the command line's own description. `STELIA_WRITE_DOCS=1 cargo test man_page` writes it.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Cli;

const PAGE: &str = "docs/man/stelia-runner.1";

#[test]
fn the_man_page_says_what_help_says() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = page();
    if std::env::var_os("STELIA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == page,
        "{PAGE} is not what it should be: STELIA_WRITE_DOCS=1 cargo test man_page"
    );
}

fn page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut page = ".\\\" Made from src/runner/cli: see src/runner/cli/man.rs\n".to_owned();
    page.push_str(".TH STELIA\\-RUNNER 1 \"\" \"steliad\" \"User Commands\"\n.SH NAME\nstelia\\-runner \\- ");
    page.push_str(&escaped(&command.get_about().unwrap().to_string()));
    page.push_str("\n.SH SYNOPSIS\n");
    for sub in subcommands(&command) {
        let usage = sub.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").replace('\n', " ");
        writeln!(page, "{}\n.br", escaped(&usage)).unwrap();
    }
    page.push_str(".SH OPTIONS\n");
    options(&mut page, &command, true);
    page.push_str(".SH COMMANDS\n");
    for sub in subcommands(&command) {
        writeln!(page, ".SS {}", escaped(sub.get_name())).unwrap();
        writeln!(page, "{}.", escaped(&sub.get_about().unwrap().to_string())).unwrap();
        options(&mut page, sub, false);
        if let Some(text) = sub.get_after_help() {
            paragraphs(&mut page, &text.to_string());
        }
    }
    page.push_str(".SH ENVIRONMENT\n");
    let environment = command.get_after_help().unwrap().to_string();
    paragraphs(&mut page, environment.trim_start_matches("Environment:\n"));
    page.push_str(".SH SEE ALSO\n/usr/share/doc/steliad/runner.md\n");
    page
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| sub.get_name() != "help")
}

fn options(page: &mut String, command: &Command, global: bool) {
    let shown = |arg: &&Arg| {
        let automatic = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong
        );
        !automatic
            && !matches!(arg.get_action(), ArgAction::Version)
            && !arg.is_hide_set()
            && (global || !arg.is_global_set())
    };
    for arg in command.get_arguments().filter(shown) {
        let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
        let name = match arg.get_long() {
            Some(long) => format!("--{long} {value}"),
            None => value,
        };
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values = arg.get_possible_values();
        for value in values.iter().filter(|value| !value.is_hide_set()) {
            let text = value.get_help().map(ToString::to_string).unwrap_or_default();
            write!(help, "\n{}: {text}", value.get_name()).unwrap();
        }
        let defaults: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        if !defaults.is_empty() && !defaults.concat().is_empty() {
            write!(help, "\nDefault: {}", defaults.join(" ")).unwrap();
        }
        if let Some(variable) = arg.get_env() {
            write!(help, "\nEnvironment: {}", variable.to_string_lossy()).unwrap();
        }
        let help: Vec<String> = help.lines().map(escaped).collect();
        writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(&name), help.join("\n.br\n")).unwrap();
    }
}

/// Text as in the terminal: indented lines are kept as they are, others flow.
fn paragraphs(page: &mut String, text: &str) {
    page.push_str(".PP\n");
    let mut kept = false;
    for line in text.lines() {
        let table = line.starts_with("  ");
        if table != kept && !line.is_empty() {
            page.push_str(if table { ".nf\n" } else { ".fi\n" });
            kept = table;
        }
        match line {
            "" => page.push_str(".PP\n"),
            line => writeln!(page, "{}", escaped(line)).unwrap(),
        }
    }
    if kept {
        page.push_str(".fi\n");
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}
