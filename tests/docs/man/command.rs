//! The page of a program, from clap's description of its command line.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::roff::{Header, escaped, item, paragraphs, see_also};

/// The whole page. Parts of the help's end that have a heading (`Exit codes:`) become sections, the rest is the description.
pub fn page(mut command: Command, header: &Header, also: &[&str]) -> String {
    command.build();
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (sections, description): (Vec<&str>, Vec<&str>) = after.split("\n\n").partition(|part| heading(part).is_some());
    let about = command.get_about().unwrap().to_string();
    let mut page = header.text();
    writeln!(
        page,
        ".SH NAME\n{} \\- {}",
        escaped(command.get_name()),
        escaped(&about)
    )
    .unwrap();
    write!(page, ".SH SYNOPSIS\n{}", synopsis(&command)).unwrap();
    if description.iter().any(|part| !part.is_empty()) {
        write!(page, ".SH DESCRIPTION\n{}", paragraphs(&description.join("\n\n"), true)).unwrap();
    }
    write!(page, ".SH OPTIONS\n{}", options(&command, true)).unwrap();
    page.push_str(".SH COMMANDS\n");
    for (name, sub) in leaves(&command, "") {
        let about = sub.get_long_about().or(sub.get_about()).unwrap().to_string();
        let about = if about.ends_with('.') {
            about
        } else {
            format!("{about}.")
        };
        write!(
            page,
            ".SS {}\n{}{}",
            escaped(&name),
            paragraphs(&about, true),
            options(sub, false)
        )
        .unwrap();
        if let Some(text) = after_help(sub) {
            page.push_str(&paragraphs(&text, false));
        }
    }
    for section in sections {
        let (name, text) = heading(section).unwrap();
        write!(
            page,
            ".SH {}\n{}",
            escaped(&name.to_uppercase()),
            paragraphs(text, true)
        )
        .unwrap();
    }
    page + &see_also(also)
}

/// `Exit codes:` on a line of its own, and what follows.
fn heading(part: &str) -> Option<(&str, &str)> {
    let (first, rest) = part.split_once('\n')?;
    Some((first.strip_suffix(':')?, rest))
}

/// The text below this heading of the help's end.
pub fn section(command: &Command, name: &str) -> String {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut found = after.split("\n\n").filter_map(heading);
    let (_, text) = found.find(|(found, _)| *found == name).unwrap();
    paragraphs(text, true)
}

/// The title of a group of commands, and their names.
pub type Group<'a> = (&'a str, &'a [&'a str]);

/// The commands by groups, each with its usage, its options and the end of its help.
pub fn grouped(command: &Command, groups: &[Group<'_>]) -> String {
    let mut page = String::new();
    for (title, commands) in groups {
        writeln!(page, ".SS {}", escaped(title)).unwrap();
        for (place, name) in commands.iter().enumerate() {
            let sub = command.find_subcommand(name).unwrap();
            if place > 0 {
                page.push_str(".PP\n");
            }
            let usage = sub.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ");
            let arguments = usage.strip_prefix(sub.get_bin_name().unwrap()).unwrap();
            writeln!(page, "\\fB{}\\fR{}", escaped(name), escaped(arguments)).unwrap();
            let about = sub.get_long_about().or(sub.get_about()).unwrap().to_string();
            let sentences = about
                .split("\n\n")
                .map(|part| part.trim_end_matches('.').to_owned() + ".");
            let about = sentences.collect::<Vec<_>>().join("\n\n");
            write!(page, ".RS 4\n{}{}", paragraphs(&about, true), options(sub, false)).unwrap();
            for (below, leaf) in leaves(sub, "") {
                let about = leaf.get_long_about().or(leaf.get_about()).unwrap().to_string();
                let about = about.trim_end_matches('.').to_owned() + ".";
                writeln!(page, ".PP\n\\fB{} {}\\fR", escaped(name), escaped(&below)).unwrap();
                write!(page, ".RS 4\n{}{}.RE\n", paragraphs(&about, true), options(leaf, false)).unwrap();
            }
            if let Some(text) = after_help(sub) {
                page.push_str(&paragraphs(&text, false));
            }
            page.push_str(".RE\n");
        }
    }
    page
}

/// The usage of every command, or of a program without commands.
pub fn synopsis(command: &Command) -> String {
    let mut subs: Vec<&Command> = leaves(command, "").into_iter().map(|(_, sub)| sub).collect();
    if subs.is_empty() {
        subs.push(command);
    }
    let usage = |sub: &Command| {
        let usage = sub.clone().render_usage().to_string();
        escaped(&usage.trim_start_matches("Usage: ").replace('\n', " "))
    };
    let usages: Vec<String> = subs.into_iter().map(usage).collect();
    usages.join("\n.br\n") + "\n"
}

/// Every command that does something, with its name below the program.
fn leaves<'a>(command: &'a Command, above: &str) -> Vec<(String, &'a Command)> {
    let shown = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set());
    shown
        .flat_map(|sub| {
            let name = format!("{above}{}", sub.get_name());
            match leaves(sub, &format!("{name} ")) {
                below if below.is_empty() => vec![(name, sub)],
                below => below,
            }
        })
        .collect()
}

/// The end of a command's help without the reference to the program's own, which is another section of the page.
fn after_help(command: &Command) -> Option<String> {
    let text = command.get_after_help()?.to_string();
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.ends_with(" --help"));
    Some(paragraphs.collect::<Vec<_>>().join("\n\n"))
}

/// Options and arguments; those that hold everywhere only where `global`.
pub fn options(command: &Command, global: bool) -> String {
    let shown = |arg: &&Arg| {
        let automatic = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !automatic && !arg.is_hide_set() && (global || !arg.is_global_set())
    };
    command.get_arguments().filter(shown).map(option).collect()
}

fn option(arg: &Arg) -> String {
    let takes = arg.get_num_args().is_none_or(|range| range.takes_values());
    let value = match arg.get_value_names() {
        Some(names) if takes => names.join(" "),
        _ => String::new(),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = [short, long].into_iter().flatten().collect();
    let head = match (names.is_empty(), takes_none_too(arg)) {
        (true, _) => value,
        (false, true) if !value.is_empty() => format!("{}[={value}]", names.join(", ")),
        (false, _) => format!("{} {value}", names.join(", ")),
    };
    let help = arg.get_long_help().or(arg.get_help());
    let mut help = help.map(ToString::to_string).unwrap_or_default();
    let values = if takes && !arg.is_hide_possible_values_set() {
        arg.get_possible_values()
    } else {
        Vec::new()
    };
    for value in values.iter().filter(|value| !value.is_hide_set()) {
        match value.get_help() {
            Some(text) => write!(help, "\n{}: {text}", value.get_name()).unwrap(),
            None => write!(help, "\n{}", value.get_name()).unwrap(),
        }
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if takes && !arg.is_hide_default_value_set() && !defaults.concat().is_empty() {
        write!(help, "\nDefault: {}", defaults.join(" ")).unwrap();
    }
    if let Some(variable) = arg.get_env() {
        write!(help, "\nEnvironment: {}", variable.to_string_lossy()).unwrap();
    }
    item(&head, &help)
}

/// Whether the option may stand without its value (`--json[=pretty]`).
fn takes_none_too(arg: &Arg) -> bool {
    arg.get_num_args()
        .is_some_and(|range| range.takes_values() && range.min_values() == 0)
}

#[test]
fn commands_below_commands_and_values_that_may_be_left_out_are_shown() {
    let json = Arg::new("json")
        .long("json")
        .short('j')
        .num_args(0..=1)
        .value_name("HOW")
        .default_value("never shown")
        .hide_default_value(true)
        .help("As JSON");
    let below = Command::new("b")
        .about("Does b")
        .arg(Arg::new("what").value_name("WHAT"));
    let mut command = Command::new("x")
        .about("X")
        .after_help("Of x.\n\nExit codes:\n  0  good")
        .arg(json)
        .subcommand(Command::new("a").about("A").subcommand(below));
    command.build();
    let header = Header {
        title: "X",
        section: 1,
        volume: "V",
        source: "here",
    };
    let page = page(command, &header, &["y(1)"]);
    for part in [
        ".SH DESCRIPTION\nOf x.\n",
        "\\fB\\-j, \\-\\-json[=HOW]\\fR\nAs JSON\n",
        ".SS a b\nDoes b.\n.TP\n\\fBWHAT\\fR\n",
        ".SH EXIT CODES\n.nf\n  0  good\n.fi\n.SH SEE ALSO\ny(1)\n",
    ] {
        assert!(page.contains(part), "{part}\nis not in\n{page}");
    }
    assert!(!page.contains("never shown"), "{page}");
}

#[test]
fn commands_by_groups_have_their_examples_and_exit_codes_are_a_section() {
    let a = Command::new("a")
        .about("Does a")
        .long_about("Does a\n\nAnd more")
        .after_help("Examples:\n  # so\n  x a");
    let mut command = Command::new("x")
        .after_help("Of x.\n\nExit codes:\n  0  good")
        .subcommand(a);
    command.build();
    assert_eq!(
        grouped(&command, &[("Do", &["a"])]),
        ".SS Do\n\\fBa\\fR\n.RS 4\nDoes a.\n.PP\nAnd more.\n.PP\nExamples:\n.nf\n  # so\n  x a\n.fi\n.RE\n"
    );
    assert_eq!(section(&command, "Exit codes"), ".nf\n  0  good\n.fi\n");
}
