//! `docs/cookbook.md`: every line is run as it stands there, and prints what the page says.

#[path = "../docs/blocks.rs"]
mod blocks;

use std::process::{Command, Stdio};

use crate::ledger::object;
use crate::support::*;
use blocks::{printed, recipes};

/// What the page's variables stand for.
struct Variables([(&'static str, String); 3]);

impl Variables {
    fn of(pod: &Pod) -> Self {
        let cpu = first_of(&pod.exclusive()).to_string();
        Self([("POD", pod.uid.clone()), ("INSTANCE", object(&pod.uid)), ("CPU", cpu)])
    }

    fn put(&self, text: &str) -> String {
        let put = |text: String, (name, value): &(&str, String)| text.replace(&format!("${name}"), value);
        self.0.iter().fold(text.to_owned(), put)
    }

    /// What the line printed, to both outputs; it must end well.
    fn shell(&self, line: &str) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-ec", line]).stdin(Stdio::null());
        shell.envs(self.0.iter().map(|(name, value)| (*name, value)));
        let out = shell.output().expect("sh");
        let said = said(&out);
        assert!(out.status.success(), "{line}: {}\n{said}", out.status);
        said
    }
}

#[test]
fn every_line_of_the_cookbook_does_what_the_page_says() {
    on_node(|| {
        let recipes = recipes(&read(beside("cookbook.md")));
        assert!(recipes.len() >= 10, "{} recipes", recipes.len());
        begin_ledger();
        let pod = Pod::vm("vm", 2);
        let variables = Variables::of(&pod);
        // The last one gives the CPUs back.
        let (last, others) = recipes.split_last().expect("recipes");
        let mut missing = Vec::new();
        for recipe in others {
            let said: String = recipe.lines.iter().map(|line| variables.shell(line)).collect();
            for parts in &recipe.prints {
                let parts: Vec<String> = parts.iter().map(|part| variables.put(part)).collect();
                if !printed(&said, &parts) {
                    missing.push(format!("{parts:?} is not in what was printed:\n{said}"));
                }
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        assert_isolated(&pod, 2);
        last.lines.iter().for_each(|line| drop(variables.shell(line)));
        assert_eq!((pod.state(), scopes().len()), (None, 0));
        assert!(output(&["pgrep", "-x", QEMU_NAME]).status.success(), "the VM runs on");
    });
}
