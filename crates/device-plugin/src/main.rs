//! `stelia-device-plugin`; see [`stelia_device_plugin::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    stelia_device_plugin::program::main()
}
