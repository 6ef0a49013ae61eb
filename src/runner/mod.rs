//! `stelia-runner`: PID 1 of the VM's container.
