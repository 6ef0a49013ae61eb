//! The node's irqbalance (Debian's, 1.9), asked by its socket as `steliad-quiet` asks it.

use std::fs;

use stelia_cpus::CpuSet;

use crate::support::*;

/// One message a connection, with the sender's credentials beside it.
const ASK: &str = r#"
import os, socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect(sys.argv[1])
s.sendmsg([b"setup"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", os.getpid(), os.getuid(), os.getgid()))])
print(s.recv(65536).decode())
"#;

/// The CPUs that it gives no interrupts, by its last scan; there is one in 10 s. `None`: it does not run, or does not answer.
pub fn banned() -> Option<CpuSet> {
    let pid = main_pid("irqbalance");
    let socket = format!("/run/irqbalance/irqbalance{pid}.sock");
    fs::metadata(&socket).ok()?;
    let answer = utf8(&output(&["python3", "-c", ASK, &socket]).stdout);
    // `SLEEP 10 BANNED 0000000c`
    CpuSet::from_mask(answer.split_once("BANNED")?.1.trim())
}

pub fn systemctl(verb: &str) {
    run(&["systemctl", verb, "irqbalance"]);
    if verb != "stop" {
        wait_until("irqbalance answers", || banned().map(drop));
    }
}
