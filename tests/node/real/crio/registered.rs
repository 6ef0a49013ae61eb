//! VMs whose runner registers them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::json;

use super::pods::{Manifest, delete, exec, qemu};
use super::{on_crio, restart_programs, until_ready};
use crate::real::kubelet::manifest::running_again;
use crate::support::*;

const KVM: &str = "/dev/kvm";

#[test]
fn a_vm_that_registers_is_isolated_through_restarts_and_killed_and_given_back() {
    on_crio(|| {
        // CRI-O gives the container's user a device of its own.
        fs::set_permissions(KVM, fs::Permissions::from_mode(0o600)).expect(KVM);
        // Ready is a guest on CPUs of its own, as `vm.yaml` has it.
        let probe = words("/usr/bin/stelia-runner probe readiness --qmp /vm/qmp");
        let manifest = Manifest::of_runner("vm").restricted();
        let pod = manifest.with_startup_probe(&probe).apply();
        fs::set_permissions(KVM, fs::Permissions::from_mode(0o666)).expect(KVM);
        let inside = fs::metadata(pod.inside(KVM)).expect(KVM);
        assert_eq!(inside.uid(), 107);
        pod.wait_running();
        // The probe runs in the container: no more of it is there afterwards.
        until_ready(&pod);
        assert_isolated(&pod, 2);

        restart_programs(&pod, || is_isolated(&pod, 2));
        run("systemctl daemon-reload");
        run(&["steliactl", "verify", &pod.uid]);

        // kubelet has CRI-O make a container anew, which is an instance anew.
        kill("-KILL", pod.pid);
        let again = running_again("vm", 1);
        assert_ne!(again.cgroup, pod.cgroup);
        assert_eq!(again.uid, pod.uid);
        again.wait_running();
        until_ready(&again);
        let before = assert_isolated(&again, 2);
        wait_until("nothing of the first one is left", || !own(&pod).exists());
        again.assert_alone();

        again.deregister();
        assert_given_back(&again, before);
        delete(&again);
    });
}

/// The VM's runner beside a shell, which is moved to float with it and runs the scripts that come into its volume.
fn with_shell(name: &str) -> Manifest {
    let script = format!(
        "trap exit TERM
         stelia-runner run --qmp /vm/qmp -- {} &
         while :; do
           [ -e /vm/y.sh ] && mv /vm/y.sh /vm/now && {{ sh /vm/now > /vm/out 2>&1; mv /vm/out /vm/done; }}
           sleep 0.2
         done",
        qemu().join(" ")
    );
    let mut manifest = Manifest::new(name, &["sh", "-c", &script]).with_device();
    manifest.container()["securityContext"] = json!({"capabilities": {"add": ["MKNOD"]}});
    manifest
}

fn in_float(pod: &Pod, script: &str) -> String {
    let volume = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir/vm", pod.uid);
    let volume = PathBuf::from(volume);
    let (draft, done) = (volume.join("y"), volume.join("done"));
    put(&draft, script);
    fs::rename(&draft, volume.join("y.sh")).expect("a script");
    let text = wait_until("the script's end", || fs::read_to_string(&done).ok());
    fs::remove_file(&done).expect("its output");
    text
}

/// Opens each of these devices, for reading and for writing, and says which may not be opened.
const OPEN: &str = r#"
for device in "c 1 1" "c 1 2" "c 1 3" "c 1 4" "c 1 5" "c 1 7" "c 1 8" "c 1 9" "c 1 11" "c 4 0" "c 5 0" "c 5 1" "c 5 2" \
  "c 10 200" "c 10 229" "c 10 232" "c 10 237" "c 10 238" "c 10 241" "b 254 0" "b 259 0" "b 7 0"; do
  rm -f /dev/tried; mknod /dev/tried $device || exit 1
  for how in "<" ">>"; do
    case $(sh -c "exec 3$how/dev/tried" 2>&1) in
      *"not permitted"*) echo "$device $how no" ;;
      *) echo "$device $how yes" ;;
    esac
  done
done
rm -f /dev/tried
"#;

#[test]
fn devices_and_limits_that_cruns_container_has_are_those_of_its_instance() {
    on_crio(|| {
        let pod = with_shell("bound").apply().running();
        assert_isolated(&pod, 2);

        assert_eq!(property("DevicePolicy", &pod.unit()), "strict");
        let (of_crun, of_instance) = (exec(&pod, OPEN), in_float(&pod, OPEN));
        // crun permits every container the console of the node, which no container needs.
        let without_console = |opened: &str| -> Vec<String> {
            let lines = opened.lines().filter(|line| !line.starts_with("c 5 1 "));
            lines.map(str::to_owned).collect()
        };
        let [of_both, by_systemd] = [&of_crun, &of_instance].map(|opened| without_console(opened));
        assert_eq!(of_both, by_systemd, "crun's program and systemd's");
        assert!(of_instance.contains("c 5 1 < no"), "{of_instance}");
        for line in ["c 1 3 >> yes", "c 10 232 < yes", "c 1 1 < no", "b 254 0 < no"] {
            assert!(of_instance.lines().any(|one| one == line), "{line}: {of_instance}");
        }

        let scope = own(&pod);
        let of_crun = |file: &str| read(scope.join(file));
        assert_eq!(pod.scope_file("memory.max"), (400u64 << 20).to_string());
        // CRI-O's scope has no limit of its own: kubelet limits all pods together.
        let above = scope.ancestors().map(|cgroup| cgroup.join("pids.max"));
        let limits = above.filter(|file| file.exists()).map(read);
        let limits = limits.filter_map(|limit| limit.parse::<u64>().ok());
        let least = limits.min().expect("a limit above the container");
        assert_eq!(of_crun("pids.max"), "max");
        assert_eq!(pod.scope_file("pids.max"), least.to_string());
        assert_eq!(pod.scope_file("cpu.weight"), of_crun("cpu.weight"));

        // A program that CRI-O runs in the container comes to where crun puts it, and runs on shared CPUs.
        exec(&pod, "sleep 1000 > /dev/null 2>&1 & echo started");
        let procs = pod.file("cgroup.procs");
        assert_eq!(procs.lines().count(), 2, "the anchor and the exec'd process");
        reconcile();
        for pid in procs.lines() {
            let allowed = allowed(pid);
            assert!(allowed.is_disjoint(&pod.exclusive()), "{pid}: {allowed}");
        }
        delete(&pod);
        assert_eq!(pod.state(), None);
    });
}
