//! The command line of `steliactl`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

const AFTER_HELP: &str = "\
UID is a pod's UID as `list` prints it, or as many of its first characters as no other instance has.

Exit codes:
  0  done
  1  the daemon refused or failed, or could not be reached; a file of kubelet's is refused;
     doctor: a check failed; verify: a promise does not hold
  2  wrong usage, or a UID that more than one instance fits
  3  no such instance";

/// The virtual machines with exclusive CPUs on this node: see them, and tell steliad what to do.
#[derive(Debug, Parser)]
#[command(name = "steliactl", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print no header lines
    #[arg(long, global = true)]
    pub no_legend: bool,
    /// Talk to a peer-to-peer D-Bus address instead of the system bus, e.g. unix:path=/run/stelia/runner/socket
    #[arg(long, global = true, value_name = "ADDR")]
    pub address: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `steliactl` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the instances
    List,
    /// Show one instance: its properties, and every thread of it with the CPUs it may run on
    Show {
        /// The pod's UID, or the beginning of it
        uid: String,
    },
    /// Print the daemon's whole view as JSON
    Describe,
    /// Compare every promise with the kernel now, repair what differs, and report
    Reconcile {
        /// Only print the steps that it would begin with
        #[arg(long)]
        dry_run: bool,
    },
    /// Hold every promise against the kernel now and print what does not hold, with its cure; changes nothing
    Verify {
        /// Only of this pod: its UID, or the beginning of it
        uid: Option<String>,
    },
    /// Give an instance's CPUs back; its VM runs on without isolation
    Deregister {
        /// The pod's UID, or the beginning of it
        uid: String,
    },
    /// Print what is understood of kubelet's checkpoint files, or why one is refused; needs no daemon
    KubeletState {
        /// cpu_manager_state, memory_manager_state, or a folder with both [default: /var/lib/kubelet]
        path: Option<PathBuf>,
    },
    /// Draw the node: sockets, NUMA nodes, cores and their CPUs, each marked by whose it is
    Map {
        /// Write a picture to this file instead
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Tell why a CPU belongs to whom, with the source of each fact
    Explain {
        /// The CPU's number
        cpu: u32,
    },
    /// Print metrics as OpenMetrics text; a daemon that does not run is not started by it
    Metrics {
        /// Write them to this file instead, for node-exporter's textfile collector
        #[arg(long, value_name = "PATH")]
        textfile: Option<PathBuf>,
    },
    /// Check whether this node is fit for isolated VMs, with a cure for what is not; needs no daemon
    Doctor,
    /// Make the daemon read its configuration again
    Reload,
}
