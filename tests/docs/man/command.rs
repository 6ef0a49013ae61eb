//! Parts of a program's page, which clap_mangen makes from clap's description of the command line.

use std::io;

use clap::{ArgAction, Command};
use clap_mangen::Man;

/// A command line as pages show it: with the usages of the help, the options that hold everywhere only once, and without `--help`.
pub fn shown(mut command: Command) -> Command {
    command.build();
    let command = command.mut_subcommands(|sub| {
        shown(sub).mut_args(|arg| {
            let hidden = arg.is_global_set() || arg.is_hide_set();
            arg.hide(hidden)
        })
    });
    let usage = command.clone().render_usage().to_string();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let help = help.split("\n\n").filter(|paragraph| !paragraph.ends_with(" --help"));
    let help = help.collect::<Vec<_>>().join("\n\n");
    let command = command.override_usage(usage.trim_start_matches("Usage: ").to_owned());
    command.after_help(help).mut_args(|arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        let hidden = arg.is_hide_set() || matches!(arg.get_action(), Help | HelpShort | HelpLong | Version);
        let arg = arg.hide_short_help(false).hide_long_help(false);
        arg.hide(hidden).help_heading(None::<&str>)
    })
}

/// The parts of the page of a program without commands.
pub fn parts(command: Command) -> [(&'static str, String); 2] {
    let command = shown(command);
    [("synopsis", synopsis(&command)), ("options", options(&command))]
}

/// The usage.
pub fn synopsis(command: &Command) -> String {
    body(command, Man::render_synopsis_section)
}

/// Options and arguments.
pub fn options(command: &Command) -> String {
    body(command, Man::render_options_section)
}

/// The table below this heading of the help's end.
pub fn section(command: &Command, name: &str) -> String {
    let help = command.get_before_long_help().or(command.get_after_help());
    let help = help.unwrap().to_string();
    let (_, text) = help.split_once(&format!("{name}:\n")).unwrap();
    let text = text.split("\n\n").next().unwrap().to_owned();
    let command = command.clone().after_help(text.clone()).after_long_help(text);
    let table = body(&command, Man::render_extra_section);
    format!(".nf\n{table}.fi\n")
}

/// All commands below this one.
pub fn commands(command: &Command) -> String {
    let shown = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
    one_below_another(command.get_subcommands().filter(shown).map(told))
}

/// A command and those below it, each with its usage, its options and the end of its help.
fn told(command: &Command) -> String {
    let about = body(command, Man::render_description_section) + &options(command);
    let parts = [about, body(command, Man::render_extra_section), commands(command)];
    format!("{}.RS 4\n{}.RE\n", synopsis(command), one_below_another(parts))
}

fn one_below_another(texts: impl IntoIterator<Item = String>) -> String {
    let texts = texts.into_iter().filter(|text| !text.is_empty());
    texts.collect::<Vec<_>>().join(".PP\n")
}

/// What clap_mangen makes of a section, without the heading. mandoc wants a request for an empty line, and no blank at the end of one.
fn body(command: &Command, render: fn(&Man, &mut dyn io::Write) -> io::Result<()>) -> String {
    let mut page = Vec::new();
    render(&Man::new(command.clone()), &mut page).unwrap();
    let mut page = String::from_utf8(page).unwrap();
    let others = [
        (" \n", "\n"),
        (".br\n\n.br\n", ".sp\n"),
        ("\n\n", "\n.sp\n"),
        ("\\*(Aq", "\\(aq"),
    ];
    for (made, wanted) in others {
        page = page.replace(made, wanted);
    }
    let section = page
        .split_once(".SH ")
        .and_then(|(_, section)| section.split_once('\n'));
    section.map_or(String::new(), |(_, body)| body.to_owned())
}
