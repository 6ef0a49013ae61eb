//! What `-h`, `--help` and steliactl(1) say besides the options: the commands by groups, and examples of each.

use std::fmt::Write as _;
use std::process;

use clap::builder::{StyledStr, Styles};
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, Command, Subcommand};
use stelia_table::with_examples;

use crate::shared::output;

/// The commands by groups. Every command is in exactly one.
pub const GROUPS: [(&str, &[&str]); 5] = [
    ("View", &["list", "status", "show", "top", "map", "monitor"]),
    ("Check", &["why", "verify", "noise", "ledger", "doctor", "report"]),
    ("Plan", &["plan"]),
    ("Change", &["reconcile", "rebalance", "resize", "release"]),
    ("Export", &["export"]),
];

/// Prints clap's answer and ends the program: help, or as every other failure what is wrong with the command line.
pub(crate) fn end(error: clap::Error) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    let text = with_tip(error).render().to_string();
    let text = text.replace("invalid digit found in string", "expected a whole number");
    output::tell(&text.replacen("error:", "steliactl:", 1));
    process::exit(2)
}

/// The error with the command that is meant. A command that changes something is never guessed.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let word = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    let vm = word.filter(|word| word.contains('/'));
    let tip = vm.map(|vm| format!("use 'steliactl show {vm}'"));
    // "to pass '-A' as a value, use '-- -A'": no name begins with a dash.
    let is_value = |tip: &StyledStr| tip.to_string().contains("as a value");
    if matches!(error.get(ContextKind::Suggested), Some(ContextValue::StyledStrs(tips)) if tips.iter().all(is_value)) {
        error.remove(ContextKind::Suggested);
    }
    let changes = |name: &String| matches!(GROUPS, [.., ("Change", names), _] if names.contains(&name.as_str()));
    let guessed = error.remove(ContextKind::SuggestedSubcommand);
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    } else if let Some(ContextValue::Strings(mut names)) = guessed {
        names.retain(|name| !changes(name));
        if !names.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
        }
    }
    error
}

/// The examples of each command.
const EXAMPLES: &str = include_str!("examples.txt");

const OPTION_NAMES: &str = "\
-o table|wide|json  --json  -l, --full  --no-legend  -V, --version";

/// Below the options of a command.
const SEE_COMMON_OPTIONS: &str = "Options of every command, such as -o json: steliactl --help";

const AFTER_OPTIONS: &str = "\
VM is the namespace/name of the VM's pod as `list` prints it, the pod's name,
the name of a KubeVirt VM, or the pod's UID, and must be unambiguous. PATTERN
is any of these, or a pattern with *, ? or [a-z], which selects every VM that
fits. The beginning of a name is not a name.

Exit codes:
  0    success; also when a signal or the end of the reader ends monitor or top
  1    the daemon refuses, fails or does not answer; doctor, verify or ledger
       verify finds something wrong or cannot find out; noise finds a VM
       disturbed or cannot count; reconcile leaves something wrong; resize
       changed nothing; a pod of plan does not fit, or this is unknown
  2    wrong usage, or VM matches several VMs
  3    no such VM or namespace, or a PATTERN matches none, and nothing was
       done for the others; steliad is not running

Standard output has data only; messages go to standard error. SYSTEMD_COLORS,
NO_COLOR and TERM=dumb decide on colours as in systemd(1).

`steliactl COMMAND --help` shows the options and examples of a command.
steliactl-fields(5) explains every column and event.";

/// What `-h` prints: all that fits on a terminal of 24 lines.
pub(super) fn short() -> String {
    format!(
        "Usage: steliactl [OPTIONS] [COMMAND]        (without COMMAND: list)\n{}\n\
         Options  {OPTION_NAMES}\n\
         steliactl COMMAND --help has a command's options and examples, --help the rest.",
        commands(),
    )
}

/// What `--help` prints.
pub(super) fn long() -> String {
    format!(
        "See the VMs with exclusive CPUs on this node, and control steliad.\n\n\
         Usage: steliactl [OPTIONS] [COMMAND]\n\n{}\n\
         Options of every command:\n{}\n  -V, --version\n\n{AFTER_OPTIONS}",
        commands(),
        common_options().trim_end()
    )
}

/// The commands by groups, each with its first sentence.
fn commands() -> String {
    let all = super::Command::augment_subcommands(Command::new("steliactl"));
    let style = Styles::styled();
    let literal = style.get_literal();
    let mut text = String::new();
    for (mut title, names) in GROUPS {
        for command in names.iter().filter_map(|name| all.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let name = command.get_name();
            // clap wraps lines wrongly that begin with a style.
            let _ = writeln!(text, "{title:<9}{literal}{name:<11}{literal:#}{about}");
            title = "";
        }
    }
    text
}

/// The options that every command takes, as help.
fn common_options() -> String {
    let mut command = super::CommonOptions::augment_args(Command::new("steliactl"))
        .disable_help_flag(true)
        .term_width(output::width().clamp(40, 100))
        .help_template("{options}");
    command.render_help().ansi().to_string()
}

/// An option of every command, which is in the help of the program alone.
pub(super) fn hidden(option: Arg) -> Arg {
    option.hide_short_help(true).hide_long_help(true)
}

/// The command with the end of its help: where the common options are, and examples.
pub(super) fn of_command(command: Command) -> Command {
    let command = with_examples(command, EXAMPLES);
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(format!("{SEE_COMMON_OPTIONS}\n\n{examples}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, FromArgMatches};
    use stelia_table::examples_of;

    use super::super::Cli;
    use super::*;
    use crate::tests::fixtures::says;

    fn names() -> Vec<String> {
        let command = Cli::command();
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
    }

    #[test]
    fn a_name_in_the_place_of_a_command_gets_a_tip_and_no_change_is_guessed() {
        let tip =
            |word: &str| with_tip(Cli::command().try_get_matches_from(["steliactl", word]).unwrap_err()).to_string();
        says(&tip("verfy"), &["'verify'"]);
        says(&tip("shop/web-1"), &["tip: use 'steliactl show shop/web-1'"]);
        let number = |line: &[&str]| Cli::command().try_get_matches_from(line).unwrap_err().to_string();
        says(
            &number(&["steliactl", "top", "--count", "x"]),
            &["'x'", "--count", "expected a whole number, 1 to 1000000"],
        );
        for word in ["releas", "resume", "reconcil", "-A", "--all-namespaces"] {
            assert!(!tip(word).contains("tip:"), "{}", tip(word));
        }
    }

    #[test]
    fn every_command_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let once: BTreeSet<&str> = grouped.iter().copied().collect();
        let all = names();
        let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(grouped.len(), once.len(), "twice: {grouped:?}");
        assert_eq!(once, all);
    }

    /// The words of an example, without what is the shell's.
    fn words(line: &str) -> Vec<&str> {
        let (_, call) = line.split_once("steliactl ").unwrap();
        let call = call.split([')', '|', '>']).next().unwrap();
        std::iter::once("steliactl").chain(call.split_whitespace()).collect()
    }

    #[test]
    fn every_command_has_up_to_three_examples_and_each_is_understood() {
        for name in names() {
            let examples = examples_of(EXAMPLES, &name);
            assert!((1..=3).contains(&examples.len()), "{name}: {} examples", examples.len());
            for (_, line) in examples {
                let matches = Cli::command().try_get_matches_from(words(line));
                let matches = matches.unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(matches.subcommand_name(), Some(name.as_str()), "{line}");
                let cli = Cli::from_arg_matches(&matches).unwrap();
                assert!(cli.output_options().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn the_short_help_fits_a_terminal_and_the_long_one_has_every_option_and_exit_code() {
        let short = Cli::command().render_help().to_string();
        assert!(short.lines().count() < 24 && short.starts_with("Usage"), "{short}");
        let long = Cli::command().render_long_help().to_string();
        for (title, names) in GROUPS {
            let first = format!("\n{title:<9}{} ", names[0]);
            says(&short, &[&first]);
            says(&long, &[&first]);
        }
        says(&long, &["Options of every command:\n", "  3    no such VM"]);
        let mut command = Cli::command();
        command.build();
        for name in names() {
            let help = command
                .find_subcommand_mut(&name)
                .unwrap()
                .render_long_help()
                .to_string();
            let (_, last) = examples_of(EXAMPLES, &name).pop().unwrap();
            assert!(help.trim_end().ends_with(last), "{help}");
        }
    }

    /// clap wraps at the terminal's width, here 80; texts that are written line by line have to fit by themselves.
    #[test]
    fn no_line_of_any_help_is_wider_than_80_columns() {
        fn check(command: &mut Command) {
            let name = command.get_name().to_owned();
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{name}: {line}");
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command().term_width(80);
        command.build();
        check(&mut command);
    }

    #[test]
    fn options_of_every_command_are_in_the_help_of_the_program_alone() {
        let mut command = Cli::command();
        command.build();
        let help = command.render_long_help().to_string();
        let common = super::super::CommonOptions::augment_args(Command::new("steliactl"));
        let common: Vec<String> = common
            .get_arguments()
            .filter(|option| !option.is_hide_set())
            .filter_map(|option| option.get_long().map(|long| format!("--{long}")))
            .collect();
        assert!(common.len() > 3, "{common:?}");
        for option in &common {
            assert!(help.contains(option), "{option} is not in\n{help}");
        }
        for name in names() {
            let mut command = command.find_subcommand_mut(&name).unwrap().clone().after_help("");
            let help = command.render_long_help().to_string();
            let options: Vec<&str> = help
                .lines()
                .map(str::trim_start)
                .filter(|line| line.starts_with('-'))
                .collect();
            for option in &common {
                let has = |line: &&&str| line.split([' ', '=', '[']).any(|word| word == option);
                assert_eq!(options.iter().find(has), None, "{name} has {option}");
            }
        }
    }
}
