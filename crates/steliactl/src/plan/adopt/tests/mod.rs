mod places;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use stelia_kernel::oci::{Identity, Manager, RuntimeVerdict};
use stelia_kubelet::PodUid;
use stelia_testnode::kubelet::Checkpoint;
use tempfile::TempDir;

use super::*;
use crate::cli::Cli;
use crate::shared::kernel::Roots;

/// A node in a folder: kubelet's file, cgroups, processes, and what containerd wrote.
struct Node {
    root: TempDir,
    kubelet: Checkpoint,
    /// containerd's state.
    state: &'static str,
}

/// A container's process, or one of its threads: (process, thread, name, command line, CPUs).
type Task<'a> = (i32, i32, &'a str, &'a str, &'a str);

const WEB: &str = "11111111-1111-4111-8111-111111111111";
const DB: &str = "22222222-2222-4222-8222-222222222222";
const LOGS: &str = "33333333-3333-4333-8333-333333333333";
const RUNNER: &str = "44444444-4444-4444-8444-444444444444";
const MICRO: &str = "55555555-5555-4555-8555-555555555555";

const QEMU: &str =
    "/usr/libexec/qemu-kvm\0-name\0guest=a_web,debug-threads=on\0-smp\x002,sockets=2,cores=1,threads=1\0";

fn scope(uid: &str) -> String {
    let unit = uid.replace('-', "_");
    let id = &uid[..8];
    format!("kubepods.slice/kubepods-pod{unit}.slice/cri-containerd-{id}.scope")
}

impl Node {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let kubelet = Checkpoint::create(&root.path().join("var/lib/kubelet"), &"0-15".parse().unwrap()).unwrap();
        let node = Self {
            root,
            kubelet,
            state: "run/containerd",
        };
        // The kernel has partitions.
        node.write("sys/fs/cgroup/kubepods.slice/cpuset.cpus.exclusive", "\n");
        node.write("sys/devices/system/cpu/online", "0-15\n");
        for cpu in 0..16 {
            for (file, number) in [("physical_package_id", 0), ("core_id", cpu)] {
                let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/{file}");
                node.write(&path, &format!("{number}\n"));
            }
        }
        node.write("usr/sbin/runc", "");
        let runc = node.root.path().join("usr/sbin/runc");
        fs::set_permissions(runc, fs::Permissions::from_mode(0o755)).unwrap();
        node.tried(Some(true));
        node
    }

    /// runc was tried, and copes or not; `None`: it was not.
    fn tried(&self, copes: Option<bool>) {
        let verdict = RuntimeVerdict {
            manager: Manager::Containerd,
            binary: "/usr/sbin/runc".into(),
            identity: Identity::of(&self.root.path().join("usr/sbin/runc")).unwrap(),
            copes: copes.unwrap_or_default(),
            words: "Operation not supported".into(),
            tried_us: 1,
        };
        let file = self
            .root
            .path()
            .join("run/stelia/runtimes/containerd:usr:sbin:runc.json");
        verdict.write(&file).unwrap();
        if copes.is_none() {
            fs::remove_file(file).unwrap();
        }
    }

    /// The container's cgroup is elsewhere.
    fn moved(&self, uid: &str, to: &str) {
        let cgroups = self.root.path().join("sys/fs/cgroup");
        let from = scope(uid);
        fs::create_dir_all(cgroups.join(to).parent().unwrap()).unwrap();
        fs::rename(cgroups.join(&from), cgroups.join(to)).unwrap();
        let mut folders = vec![self.root.path().join("proc")];
        while let Some(folder) = folders.pop() {
            let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            folders.extend(entries.filter(|path| path.is_dir()));
            let file = folder.join("cgroup");
            if fs::read_to_string(&file).is_ok_and(|text| text == format!("0::/{from}\n")) {
                fs::write(file, format!("0::/{to}\n")).unwrap();
            }
        }
    }

    /// A process that is in no container.
    fn process(&self, pid: i32, name: &str, cgroup: &str, file: &str) {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let proc = |file: &str| format!("proc/{pid}/{file}");
        self.write(&proc("comm"), &format!("{name}\n"));
        self.write(
            &proc("status"),
            &format!("Tgid:\t{pid}\nNSpid:\t{pid}\nCpus_allowed_list:\t0-15\n"),
        );
        self.write(&proc("stat"), &format!("{pid} ({name}) S {}", fields.join(" ")));
        self.write(&proc(&format!("task/{pid}/cgroup")), &format!("0::{cgroup}\n"));
        self.write(&proc("cmdline"), &format!("{name}\0"));
        self.write(&proc(&format!("task/{pid}/comm")), &format!("{name}\n"));
        self.write(&proc("fd/0"), "");
        std::os::unix::fs::symlink(file, self.root.path().join(proc("fd/11"))).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn rules(&self, text: &str) {
        self.write("etc/stelia/steliad.toml.d/60-adopt.toml", text);
    }

    /// The container of a pod, which kubelet gave these CPUs.
    fn container(&mut self, uid: &str, (pod, name): (&str, &str), cpus: &str, env: &str, tasks: &[Task<'_>]) {
        let (namespace, pod) = pod.split_once('/').unwrap();
        if !cpus.is_empty() {
            let uid = PodUid::parse(uid).unwrap();
            self.kubelet.admit(&uid, name, &cpus.parse().unwrap()).unwrap();
        }
        let scope = scope(uid);
        let at = |file: &str| format!("sys/fs/cgroup/{scope}/{file}");
        let pids: Vec<String> = tasks
            .iter()
            .filter(|task| task.0 == task.1)
            .map(|task| format!("{}\n", task.0))
            .collect();
        self.write(&at("cgroup.procs"), &pids.concat());
        self.write(&at("cgroup.events"), "populated 1\nfrozen 0\n");
        self.write(&at("cpuset.cpus"), &format!("{cpus}\n"));
        self.write(&at("cpu.weight"), "79\n");
        let config = format!(
            r#"{{"process":{{"env":["PATH=/bin"{env}]}},"annotations":{{"io.kubernetes.cri.container-name":"{name}",
            "io.kubernetes.cri.sandbox-namespace":"{namespace}","io.kubernetes.cri.sandbox-name":"{pod}",
            "io.kubernetes.cri.sandbox-uid":"{uid}"}},"linux":{{"resources":{{"cpu":{{"shares":2048}}}}}}}}"#
        );
        let id = &uid[..8];
        let bundle = format!("{}/io.containerd.runtime.v2.task/k8s.io/{id}", self.state);
        self.write(&format!("{bundle}/config.json"), &config);
        self.write(&format!("{bundle}/options.json"), r#"{"binary_name":"/usr/sbin/runc"}"#);
        self.write(&format!("run/containerd/runc/k8s.io/{id}/state.json"), "{}");
        for (place, (pid, tid, name, command, cpus)) in tasks.iter().enumerate() {
            let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
            for folder in [
                format!("proc/{tid}"),
                format!("proc/{tid}/task/{tid}"),
                format!("proc/{pid}/task/{tid}"),
            ] {
                self.write(&format!("{folder}/comm"), &format!("{name}\n"));
                let status = format!(
                    "Tgid:\t{pid}\nNSpid:\t{tid}\t{}\nCpus_allowed_list:\t{cpus}\n",
                    place + 1
                );
                self.write(&format!("{folder}/status"), &status);
                self.write(
                    &format!("{folder}/stat"),
                    &format!("{tid} ({name}) S {}", fields.join(" ")),
                );
                self.write(&format!("{folder}/cgroup"), &format!("0::/{scope}\n"));
                self.write(&format!("{folder}/cmdline"), command);
            }
        }
    }

    fn launcher(&mut self, uid: &str, pod: &str, first: i32, cpus: &str, pins: [&str; 2], env: &str) {
        let tasks = [
            (
                first,
                first,
                "virt-launcher-m",
                "/usr/bin/virt-launcher-monitor\0",
                "0-15",
            ),
            (first + 1, first + 1, "qemu-kvm", QEMU, "0-15"),
            (first + 1, first + 2, "CPU 0/KVM", QEMU, pins[0]),
            (first + 1, first + 3, "CPU 1/KVM", QEMU, pins[1]),
            (first + 1, first + 4, "IO iothread0", QEMU, "0-15"),
        ];
        self.container(uid, (pod, "compute"), cpus, env, &tasks);
    }

    /// One at a time: the folders of `runtime-state` are the whole process's.
    fn preview(&self) -> Preview {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        gather(self.root.path(), &Roots::below(self.root.path())).unwrap()
    }
}

fn text(preview: &Preview) -> String {
    preview.text(TextStyle::from(true))
}

/// The reason of each, by the pod's name.
fn reasons(preview: &Preview) -> Vec<(&str, Option<&str>)> {
    let vms = preview.vms.iter();
    vms.map(|one| (one.pod.pod_name.as_str(), one.reason.as_deref()))
        .collect()
}

/// Two VMs of KubeVirt, a container without a VM, a registered VM, and one of another VMM.
fn node() -> Node {
    let mut node = Node::new();
    node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-4", ["2", "3"], "");
    node.launcher(
        DB,
        "b/virt-launcher-db-9qwcn",
        200,
        "5-6",
        ["5-6", "5-6"],
        r#","STELIA_ADOPT=no""#,
    );
    node.container(
        LOGS,
        ("a/logs", "logs"),
        "",
        "",
        &[(300, 300, "fluent-bit", "fluent-bit\0", "0-1")],
    );
    node.container(
        RUNNER,
        ("a/vm", "vm"),
        "7-8",
        "",
        &[(400, 400, "stelia-runner", "stelia-runner\0anchor\0", "7-8")],
    );
    node.write(
        &format!("sys/fs/cgroup/stelia.slice/stelia-instance-{RUNNER}.scope/cgroup.events"),
        "populated 1\n",
    );
    let micro = [
        (500, 500, "init", "/init\0", "9"),
        (501, 501, "firecracker", "/usr/bin/firecracker\0--api-sock\0/x\0", "9"),
        (501, 502, "fc_vcpu 0", "", "9"),
    ];
    node.container(MICRO, ("c/micro", "vmm"), "9", "", &micro);
    node
}

#[test]
fn without_a_rule_the_vms_are_shown_and_the_rules_that_would_find_them() {
    let shown = text(&node().preview());
    insta::assert_snapshot!(shown, @r#"
    POD                        CONTAINER  VMM          VCPUS  CPUS  WOULD BE ADOPTED  WHY
    a/virt-launcher-web-x7k2p  compute    qemu-kvm         2  2-4   no                no rule is of this container
    b/virt-launcher-db-9qwcn   compute    qemu-kvm         2  5-6   no                no rule is of this container
    c/micro                    vmm        firecracker      1  9     no                no rule is of this container

    No rule is set: nothing is adopted (/usr/share/doc/steliad/adopt.md).

    Ready-made rules would find VMs that have none: use = "firecracker", use = "kubevirt".
    "#);
}

#[test]
fn by_rules_a_vm_is_adopted_or_the_reason_is_said() {
    let node = node();
    node.rules("[[adopt]]\nuse = \"kubevirt\"\n[[adopt]]\nuse = \"firecracker\"\nplacement = \"linear\"\n");
    let preview = node.preview();
    insta::assert_snapshot!(text(&preview), @r"
    POD                        CONTAINER  VMM          VCPUS  CPUS  WOULD BE ADOPTED  WHY
    a/virt-launcher-web-x7k2p  compute    qemu-kvm         2  2-4   yes               all tasks of the container share its CPUs; its vCPUs keep the CPUs that they are pinned to
    c/micro                    vmm        firecracker      1  9     yes               placed by linear
    a/vm                       vm         -                -  7-8   no                it is an instance already
    b/virt-launcher-db-9qwcn   compute    qemu-kvm         2  5-6   no                the container has STELIA_ADOPT=no in its environment, which rule kubevirt heeds
    ");
    let names = preview.names();
    assert_eq!(names, ["a/virt-launcher-web-x7k2p", "c/micro"]);
    let web = &preview.vms[0];
    assert_eq!(
        (web.kept_cpus.as_slice(), web.spare_cpus, web.vmm_pid),
        ([2, 3].as_slice(), 0, Some(101))
    );
    assert_eq!(
        (web.placement.as_str(), web.tree.as_str(), web.rule.as_str()),
        ("keep", "auto", "kubevirt")
    );
    assert_eq!(web.isolation, "container");
    assert_eq!((preview.vms[1].placement.as_str(), preview.spare_cpus), ("linear", 0));
    // The container may not refuse where the rule says so; that its vCPUs are not pinned is no reason against it.
    node.rules("[[adopt]]\nuse = \"kubevirt\"\ncontainer-may-refuse = false\nnamespaces = [\"b\"]\n");
    let preview = node.preview();
    let db = &preview.vms[0];
    assert!(db.would_be_adopted && db.kept_cpus.is_empty(), "{db:?}");
    assert_eq!(db.why, "all tasks of the container share its CPUs");
}

#[test]
fn what_registration_would_refuse_is_not_adopted() {
    let mut node = node();
    node.rules("[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\npartition = \"member\"\n");
    // KubeVirt's own cgroup in the container's.
    let housekeeping = format!("sys/fs/cgroup/{}/housekeeping/cgroup.events", scope(WEB));
    node.write(&housekeeping, "populated 1\n");
    let preview = node.preview();
    assert_eq!(reasons(&preview)[0], ("virt-launcher-web-x7k2p", None));
    assert!(preview.vms[0].housekeeping && preview.spare_cpus == 1, "{preview:?}");
    node.rules("[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\npartition = \"member\"\ntree = \"slice\"\n");
    assert_eq!(reasons(&node.preview())[0], ("virt-launcher-web-x7k2p", Some("Failed")));
    node.rules("[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\npartition = \"member\"\n");
    let housekeeping = node.root.path().join(&housekeeping);
    fs::remove_dir_all(housekeeping.parent().unwrap()).unwrap();
    // Its cpuset is not what kubelet's file says.
    node.write(&format!("sys/fs/cgroup/{}/cpuset.cpus", scope(WEB)), "2-5\n");
    assert_eq!(reasons(&node.preview())[0].1, Some("CpusetMismatch"));
    node.write(&format!("sys/fs/cgroup/{}/cpuset.cpus", scope(WEB)), "2-4\n");
    assert_eq!(reasons(&node.preview())[0].1, None);
    // It shares its processes with the pod's other containers.
    node.write("proc/100/status", "Tgid:\t100\nNSpid:\t100\t7\nCpus_allowed_list:\t0\n");
    assert_eq!(reasons(&node.preview())[0].1, Some("SharedPidNamespace"));
    node.write("proc/100/status", "Tgid:\t100\nNSpid:\t100\t1\nCpus_allowed_list:\t0\n");
    node.kubelet.release(&PodUid::parse(WEB).unwrap()).unwrap();
    assert_eq!(reasons(&node.preview())[0].1, Some("NotGuaranteed"));
    node.kubelet.write_bytes(b"{}").unwrap();
    assert_eq!(reasons(&node.preview())[0].1, Some("KubeletStateUnusable"));
}

#[test]
fn a_container_that_another_program_made_a_partition_is_not_adopted() {
    for rules in [
        "[[adopt]]\nuse = \"kubevirt\"\n",
        "[[adopt]]\nuse = \"kubevirt\"\nisolation = \"vcpus\"\n",
        "[[adopt]]\nname = \"all\"\nkind = \"container\"\n",
    ] {
        for (kind, is_adopted) in [
            ("member", true),
            ("isolated", false),
            ("isolated invalid (Cpu list empty)", false),
        ] {
            let mut node = Node::new();
            node.rules(rules);
            node.launcher(WEB, "a/virt-launcher-web-x7k2p", 100, "2-3", ["2", "3"], "");
            node.write(
                &format!("sys/fs/cgroup/{}/cpuset.cpus.partition", scope(WEB)),
                &format!("{kind}\n"),
            );
            let preview = node.preview();
            let [one] = preview.vms.as_slice() else {
                panic!("{rules}")
            };
            assert_eq!(one.would_be_adopted, is_adopted, "{rules} {kind}: {}", one.why);
            let says = one.why.contains(&format!("cpuset.cpus.partition is {kind})"))
                && one.why.contains("cpu-load-balancing.crio.io");
            assert_eq!(says, !is_adopted, "{rules} {kind}: {}", one.why);
        }
    }
}

#[test]
fn where_steliad_chooses_the_cpus_vms_are_adopted_as_long_as_there_are_enough() {
    let mut node = node();
    for uid in [WEB, DB] {
        node.kubelet.release(&PodUid::parse(uid).unwrap()).unwrap();
        let at = |file: &str| format!("sys/fs/cgroup/{}/{file}", scope(uid));
        node.write(&at("cpuset.cpus"), "\n");
        // Nine CPUs each, of the node's 16.
        node.write(&at("cpu.max"), "900000 100000\n");
    }
    let rule = "[[adopt]]\nuse = \"libvirt\"\npods = [\"virt-launcher-*\"]\ncontainer-may-refuse = false\n";
    node.rules(rule);
    let refused = Some("NotGuaranteed");
    let [web, db, micro] = ["virt-launcher-web-x7k2p", "virt-launcher-db-9qwcn", "micro"];
    assert_eq!(
        reasons(&node.preview()),
        [(web, refused), (db, refused), (micro, Some("NoRule"))]
    );
    node.rules(&format!("cpu-source = \"steliad\"\n{rule}"));
    let preview = node.preview();
    assert_eq!(
        reasons(&preview),
        [(web, None), (db, Some("NotAllocated")), (micro, Some("NoRule"))],
        "{}",
        text(&preview)
    );
    let web = &preview.vms[0];
    assert!(
        web.why.ends_with("; steliad chooses its CPUs when it is adopted"),
        "{}",
        web.why
    );
    assert_eq!((web.exclusive_cpus.as_str(), web.spare_cpus), ("", 0));
}

#[test]
fn a_rule_of_everything_tells_of_registered_vms_and_not_of_containers_without_a_vmm() {
    let node = node();
    node.rules("[[adopt]]\nuse = \"qemu\"\n");
    let preview = node.preview();
    assert_eq!(
        reasons(&preview),
        [
            ("virt-launcher-web-x7k2p", None),
            ("vm", Some("InstanceExists")),
            ("virt-launcher-db-9qwcn", Some("ContainerRefuses")),
            ("micro", Some("NoVmm")),
        ]
    );
    assert_eq!(preview.missing_rules(), ["firecracker"]);
}

#[test]
fn a_node_without_vms_says_so_and_a_wrong_rule_is_an_error() {
    let node = Node::new();
    assert_eq!(
        text(&node.preview()),
        "No VMs to adopt.\n\nNo rule is set: nothing is adopted (/usr/share/doc/steliad/adopt.md).\n"
    );
    node.rules("[[adopt]]\nuse = \"kvm\"\n");
    let refused = gather(node.root.path(), &Roots::below(node.root.path())).unwrap_err();
    assert!(refused.to_string().contains("60-adopt.toml: line 2: use"), "{refused}");
    assert_eq!(refused.exit_code(), 1);
}

#[test]
fn it_only_tells_and_the_command_line_says_that() {
    assert!(Cli::try_parse_from(["steliactl", "adopt"]).is_err());
    let cli = Cli::try_parse_from(["steliactl", "adopt", "--dry-run", "-o", "name"]).unwrap();
    assert!(cli.output_options().is_ok());
}
