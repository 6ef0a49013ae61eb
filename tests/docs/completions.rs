//! The completions of stelia-runner, which are files: the program itself is small and cannot print them.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::aot::generate;

use crate::{hold, root};

#[test]
fn the_packaged_completions_of_the_runner_have_its_options() {
    for (shell, file) in [
        (Shell::Bash, "stelia-runner.bash"),
        (Shell::Zsh, "_stelia-runner"),
        (Shell::Fish, "stelia-runner.fish"),
    ] {
        let mut script = Vec::new();
        generate(shell, &mut stelia_runner::Cli::command(), "stelia-runner", &mut script);
        let script = String::from_utf8(script).expect("text");
        let path = root().join("packaging/completions").join(file);
        hold(&path, &script);
        assert!(script.contains("require-isolation"), "{shell}");
    }
}
