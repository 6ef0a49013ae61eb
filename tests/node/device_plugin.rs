//! The device plugin: a pod asks for `stelia.io/vm` and has what its VM needs of the node; kubelet and the daemon come and go; clients that are not kubelet.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::first_vm;
use crate::support::device_plugin::{
    FOLDER, ONE, PATH_UNIT, RESOURCE, Resource, UNIT, assert_mounted, given, show, socket, wait_healthy,
};
use crate::support::*;

/// What clients on the plugin's socket may make its memory grow by.
const GROWTH_KIB: u64 = 16 << 10;
const DEVICES: &str = "/job/kubelet-devices";
const KVM: &str = "/dev/kvm";

/// A pod with a VM, and nothing of the node's but what the plugin gives it.
fn start_vm(name: &str) -> Pod {
    let runner = words("/usr/bin/stelia-runner run --qmp /run/qmp --");
    let command = [&runner[..], &Accel::Kvm.qemu(), &["-smp", "2"]].concat();
    Pod::start(name, &[&["--cpus", "2", "--no-socket"], &ONE[..]].concat(), &command).running()
}

/// How long it takes is printed. The bound of 5 s is a relation between constants of the plugin, which a slow node does not change.
fn wait_unhealthy(what: &str) -> Resource {
    wait_until_or(what, device_plugin::journal, || {
        let vms = show().vms();
        (vms.healthy.is_empty() && !vms.unhealthy.is_empty()).then_some(vms)
    })
}

fn undo() {
    start_all();
    device_plugin::stop();
    let _ = fs::set_permissions(KVM, fs::Permissions::from_mode(0o666));
}

#[test]
fn a_pod_that_asks_for_the_resource_has_what_its_vm_needs_and_nothing_else_of_the_node() {
    needs_kvm();
    on_node_undoing(undo, || {
        // Where kubelet has no folder for plugins the unit is off, and it starts with that folder.
        device_plugin::stop();
        assert_eq!([PATH_UNIT, UNIT].map(activity), ["active", "inactive"]);
        let offered = device_plugin::start();
        assert_eq!(activity(UNIT), "active");
        // At a boot the plugin is started first, and registers as soon as kubelet listens.
        let order = property("Before", UNIT);
        for kubelet in ["kubelet.service", "k3s.service", "rke2-agent.service"] {
            assert!(order.split_whitespace().any(|unit| unit == kubelet), "{order}");
        }
        let count = offered.healthy.len();
        let named: Vec<String> = (0..count).map(|number| format!("vm-{number}")).collect();
        assert!(named.iter().all(|id| offered.healthy.contains(id)), "{offered:?}");
        let socket = fs::symlink_metadata(socket()).expect("the plugin's socket");
        assert!(socket.file_type().is_socket());
        assert_eq!((socket.permissions().mode() & 0o777, socket.uid()), (0o600, 0));

        // The device is root's. The stand-in gives the container's user one of its own, as runtimes do with device_ownership_from_security_context.
        fs::set_permissions(KVM, fs::Permissions::from_mode(0o660)).expect(KVM);
        let pod = first_vm::start("vm").running();
        assert_isolated(&pod, 2);
        let allocated = given(&pod.uid);
        assert!(allocated.len() == 1 && named.contains(&allocated[0]), "{allocated:?}");

        let uids = "Uid:\t107\t107\t107\t107";
        assert_says(
            &status(pod.pid),
            &[uids, "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"],
        );
        assert_mounted(&pod);
        let environment = read(format!("/proc/{}/environ", pod.pid));
        let mut variables = environment.split('\0');
        let is_told = variables.any(|one| one == "STELIA_RUNNER=/usr/bin/stelia-runner");
        assert!(is_told, "{environment:?}");
        let kvm = fs::metadata(pod.inside(KVM)).expect(KVM);
        assert_eq!((kvm.uid(), kvm.gid(), kvm.mode() & 0o777), (107, 107, 0o660));
        for device in ["/dev/vhost-net", "/dev/vhost-vsock", "/dev/net/tun"] {
            let is_there = fs::metadata(device).is_ok();
            assert_eq!(fs::metadata(pod.inside(device)).is_ok(), is_there, "{device}");
        }
        // kubelet's own file, which steliactl reads.
        let checkpoint = read(format!("{FOLDER}/kubelet_internal_checkpoint"));
        assert_says(&checkpoint, &[&pod.uid, RESOURCE]);
        run("steliactl verify --now");
        // It asks systemd within a time, which a slow machine may miss once.
        let registered = format!("registered; {count} device");
        wait_until("doctor sees it", || {
            utf8(&output("steliactl doctor -v").stdout).contains(&registered)
        });

        // A container that starts once more keeps its device.
        let again = pod.restart().running();
        assert_isolated(&again, 2);
        assert_eq!(given(&pod.uid), allocated);
    });
}

#[test]
fn kubelet_the_daemon_and_the_plugin_come_and_go_and_a_running_vm_stays_as_it_is() {
    needs_kvm();
    on_node_undoing(undo, || {
        let offered = device_plugin::start();
        let pod = start_vm("steady");
        let before = assert_isolated(&pod, 2);
        let own = given(&pod.uid);
        let untouched = |when: &str| assert_eq!(pod.threads(), before, "{when}");
        let plugin = main_pid(UNIT);

        // kubelet starts anew and wipes its folder.
        run("kubelet-standin devices restart");
        let again = wait_healthy("it registers with the new kubelet");
        assert_eq!(again.healthy, offered.healthy);
        let now = show();
        assert_eq!(given(&pod.uid), own);
        // A wipe and a new socket are several events, but the plugin does not register for each.
        assert!((1..=3).contains(&now.registrations), "{now:?}");
        // kubelet is gone for a while.
        run("kubelet-standin devices stop");
        sleep(Duration::from_secs(2));
        assert_eq!(activity(UNIT), "active");
        assert_eq!(main_pid(UNIT), plugin, "the plugin was started again");
        // Its folder goes too, as on a node that is set up anew.
        fs::remove_dir_all(FOLDER).expect(FOLDER);
        sleep(Duration::from_secs(1));
        run("kubelet-standin devices start");
        wait_healthy("it registers in the new folder");
        untouched("after kubelet's restarts");

        // No daemon: no device, and no pod. The plugin does not start the daemon either.
        stopped_but_for(None);
        let gone = wait_unhealthy("no device is healthy without the daemon");
        assert_eq!(gone.unhealthy, offered.healthy);
        let start = words("kubelet-standin pod start unlucky --cpus 2");
        let rejected = output(&[&start[..], &ONE].concat());
        for part in ["UnexpectedAdmissionError", RESOURCE] {
            assert_fails(&rejected, part);
        }
        assert_eq!(activity("steliad.service"), "inactive");
        untouched("without the daemon");
        start_all();
        wait_healthy("the daemon is back");
        assert_eq!(assert_isolated(&pod, 2), before);

        // A daemon that admits nobody.
        let good = fs::read(STATE).expect(STATE);
        put(STATE, "{\"policyName\":\"stat");
        wait_unhealthy("no device is healthy while kubelet's file is corrupt");
        put(STATE, good);
        wait_healthy("kubelet's file is good again");

        // The plugin's unit ends: no socket is left, and kubelet has no device to give.
        let path = socket();
        run(&["systemctl", "stop", PATH_UNIT, UNIT]);
        assert!(!path.exists(), "{} is left", path.display());
        let left = wait_unhealthy("kubelet sees that the plugin is gone");
        assert!(!left.connected);
        untouched("without the plugin");
        run(&["systemctl", "start", PATH_UNIT]);
        wait_healthy("it is back");
        let other = start_vm("other");
        assert_isolated(&other, 2);
        assert_ne!(given(&other.uid), own);
    });
}

/// 20 connections of 40 streams that nobody reads, for as long as this is held.
fn unread() -> Killed {
    let mut command = Command::new(DEVICES);
    command.arg("call").arg(socket()).args(["streams", "20", "40"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Killed(command.spawn().expect(DEVICES))
}

#[test]
fn clients_that_are_not_kubelet_neither_grow_the_plugin_nor_keep_kubelet_from_it() {
    needs_kvm();
    on_node_undoing(undo, || {
        let offered = device_plugin::start();
        let (pid, before) = (main_pid(UNIT), kib(main_pid(UNIT), "VmRSS"));
        let path = socket();
        let text = path.to_str().expect("a path");
        let call = |words: &[&str]| output(&[&[DEVICES, "call", text], words].concat());

        // The folder and the socket are root's.
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let to = format!("UNIX-CONNECT:{text}");
        let connected = output(&[&nobody[..], &["socat", "-u", "OPEN:/dev/null", &to]].concat());
        assert!(!connected.status.success());

        // Requests that kubelet does not make.
        let device = offered.healthy.first().expect("a device");
        let two = offered.healthy.iter().take(2).cloned().collect::<Vec<_>>().join(",");
        let long = (8 << 20).to_string();
        let ids = ["vm-99999", two.as_str(), "", "../../etc/passwd"].map(|id| ("allocate", id));
        for (request, of) in ids.into_iter().chain([("long-id", long.as_str())]) {
            let out = call(&[request, of]);
            let said = utf8(&out.stderr);
            assert!(!out.status.success(), "{request} {of:?}: {out:?}");
            assert!(said.len() < 1000, "{request} {of:?}: {} bytes", said.len());
        }
        assert!(call(&["allocate", device]).status.success());

        // No HTTP/2, half of it, nothing at all, and streams that nobody reads: as many as there is room for.
        let connect = || UnixStream::connect(&path);
        let mut open: Vec<UnixStream> = (0..200).filter_map(|_| connect().ok()).collect();
        for (number, stream) in open.iter_mut().enumerate() {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
            let _ = match number % 4 {
                0 => stream.write_all(&[0xff; 1 << 16]),
                1 => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04"),
                2 => stream.write_all(b"GET / HTTP/1.1\r\nHost: kubelet\r\n\r\n"),
                _ => Ok(()),
            };
        }
        let held = [unread(), unread()];
        sleep(Duration::from_secs(3));

        // kubelet's own stream lives, it gets devices, and it hears of the daemon.
        assert!(show().vms().connected);
        let pod = start_vm("beside");
        assert_isolated(&pod, 2);
        stopped_but_for(None);
        wait_unhealthy("kubelet hears that the daemon is gone");
        start_all();
        wait_healthy("and that it is back");
        // So does a new kubelet.
        run("kubelet-standin devices restart");
        wait_healthy("a new kubelet gets through");

        let after = kib(main_pid(UNIT), "VmRSS");
        assert!(after < before + GROWTH_KIB, "from {before} to {after} KiB");
        assert_eq!(main_pid(UNIT), pid, "the plugin was started again");
        drop(open);
        drop(held);
        wait_until_or("its descriptors are closed", device_plugin::journal, || {
            descriptors(&pid) < 40
        });
        assert!(!journal(&["-u", UNIT]).contains("panicked"));
    });
}
