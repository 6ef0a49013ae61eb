//! `steliactl`: see what steliad holds on this node, and tell it what to do. Everything is in [`steliad::ctl`].

fn main() -> std::process::ExitCode {
    steliad::ctl::main()
}
