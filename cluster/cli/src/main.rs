//! `stelia-cluster`: a cluster's nodes and what their CPUs have room for. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    stelia_cluster::main()
}
