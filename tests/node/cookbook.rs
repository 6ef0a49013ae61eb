//! `docs/cookbook.md`: every line is run as it stands there, and prints what the page says.

#[path = "../docs/blocks.rs"]
mod blocks;

use std::process::{Command, Stdio};

use crate::support::guest::QEMU_NAME;
use crate::support::host::{output, read, run, scopes};
use crate::support::pods::{Pod, on_node};
use crate::support::promise::{assert_isolated, state};
use blocks::{printed, recipes};

/// What the page's variables stand for.
struct Variables([(&'static str, String); 3]);

impl Variables {
    fn of(pod: &Pod) -> Self {
        let manager = [
            "io.stelia.Isolation1",
            "/io/stelia/Isolation1",
            "io.stelia.Isolation1.Manager",
        ];
        let answer = run(&[&["busctl", "call"], &manager[..], &["GetInstance", "s", &pod.uid]].concat());
        let path = answer.split('"').nth(1).expect("an object path").to_owned();
        let cpu = pod.exclusive().iter().next().expect("a CPU").to_string();
        Self([("POD", pod.uid.clone()), ("INSTANCE", path), ("CPU", cpu)])
    }

    fn put(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.0 {
            text = text.replace(&format!("${name}"), value);
        }
        text
    }

    /// What the line printed, to both outputs; it must end well.
    fn shell(&self, line: &str) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-ec", line]).stdin(Stdio::null());
        shell.envs(self.0.iter().map(|(name, value)| (*name, value)));
        let out = shell.output().expect("sh");
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        assert!(out.status.success(), "{line}: {}\n{said}", out.status);
        println!("  {line}");
        said
    }
}

#[test]
fn every_line_of_the_cookbook_does_what_the_page_says() {
    on_node(|| {
        let me = std::env::current_exe().expect("own path");
        let recipes = recipes(&read(me.with_file_name("cookbook.md")));
        assert!(recipes.len() >= 10, "{} recipes", recipes.len());
        let pod = Pod::vm("vm", 2);
        let variables = Variables::of(&pod);
        // The last one gives the CPUs back.
        let (last, others) = recipes.split_last().expect("recipes");
        for recipe in others {
            let said: String = recipe.lines.iter().map(|line| variables.shell(line)).collect();
            for parts in &recipe.prints {
                let parts: Vec<String> = parts.iter().map(|part| variables.put(part)).collect();
                assert!(printed(&said, &parts), "{parts:?} is not in what was printed:\n{said}");
            }
        }
        assert_isolated(&pod, 2);
        last.lines.iter().for_each(|line| drop(variables.shell(line)));
        assert_eq!((state(&pod), scopes().len()), (None, 0));
        assert!(output(&["pgrep", "-x", QEMU_NAME]).status.success(), "the VM runs on");
    });
}
