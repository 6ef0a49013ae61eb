//! A caller that asks for wrong things on the runner socket, as a process in a pod.

use std::process::Command;

use stelia_api::client::Dict;

use crate::support::*;

/// Runs in a pod: asks for the thing named by STELIA_CASE and prints the refusal.
#[test]
#[ignore = "the other tests start it as a process"]
fn process() {
    let Ok(case) = std::env::var("STELIA_CASE") else { return };
    let (name, text) = block_on(async {
        let connection = runner_socket().await;
        let manager = manager(&connection).await;
        // A process that could be an anchor.
        let sleeper = Killed(Command::new("sleep").arg("1000").spawn().expect("sleep"));
        let anchor = pidfd(sleeper.0.id());
        match case.split_once('|').unwrap_or((&case, "")) {
            ("foreign-thread", _) => {
                let path = manager.get_instance("").await.expect("own instance");
                // QEMU is the pod's own, the thread is not QEMU's.
                let qemu = run(&["pgrep", "-o", "-x", QEMU_NAME]).parse().expect("qemu");
                refusal(attach(&connection, &path, qemu, &[sleeper.0.id().cast_signed()]).await)
            }
            ("foreign-process", _) => {
                let path = manager.get_instance("").await.expect("own instance");
                refusal(attach(&connection, &path, sleeper.0.id(), &[1]).await)
            }
            ("show", uid) => refusal(manager.get_instance(uid).await),
            ("deregister", uid) => refusal(manager.deregister(uid, Dict::new()).await),
            ("register", uid) => refusal(register(&connection, uid, "", options(Some(&anchor), "")).await),
            (uid, cpuset) => refusal(register(&connection, uid, cpuset, options(Some(&anchor), "")).await),
        }
    });
    println!("REFUSED {name} {text}");
}
