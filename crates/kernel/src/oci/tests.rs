use super::*;
use crate::test_root::Root;

const ID: &str = "9c0d4a5be1f2";
const BUNDLE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/9c0d4a5be1f2";

/// A node's folders as the managers leave them.
impl Root {
    /// A container of containerd with these options of its shim.
    fn task(&self, options: &str) -> &Self {
        self.file(&format!("{BUNDLE}/config.json"), "{}")
            .file(&format!("{BUNDLE}/options.json"), options)
            .file(
                &format!("{BUNDLE}/shim-binary-path"),
                "/usr/bin/containerd-shim-runc-v2",
            )
    }

    fn runtime(&self) -> Option<Runtime> {
        open_runtime(self, ID).ok().map(|(runtime, _)| runtime)
    }
}

fn runc() -> Runtime {
    Runtime {
        manager: Manager::Containerd,
        kind: Kind::Runc,
        binary: "/usr/sbin/runc".into(),
        root: "/run/containerd/runc/k8s.io".into(),
        systemd_cgroup: true,
    }
}

#[test]
fn a_container_of_containerd_has_the_runc_that_its_shim_finds() {
    let node = Root::new();
    node.task(r#"{"systemd_cgroup":true}"#)
        .file(&format!("run/containerd/runc/k8s.io/{ID}/state.json"), "{}")
        .program("usr/sbin/runc", "")
        .file("usr/bin/runc", "no program");
    assert_eq!(node.runtime(), Some(runc()));
    assert_eq!(
        runc().state_file(ID),
        Path::new("/run/containerd/runc/k8s.io").join(ID).join("state.json")
    );
    // One that an administrator put before it.
    node.program("usr/local/sbin/runc", "");
    assert_eq!(node.runtime().unwrap().binary, Path::new("/usr/local/sbin/runc"));
}

#[test]
fn the_shims_options_name_binary_and_root() {
    let node = Root::new();
    node.task(r#"{"binary_name":"/opt/bin/crun","root":"/run/elsewhere","io_uid":7}"#)
        .file(&format!("run/elsewhere/k8s.io/{ID}/status"), "{}");
    assert_eq!(node.runtime(), None, "no such program");
    node.program("opt/bin/crun", "").program("usr/bin/runc", "");
    let expected = Runtime {
        kind: Kind::Crun,
        binary: "/opt/bin/crun".into(),
        root: "/run/elsewhere/k8s.io".into(),
        systemd_cgroup: false,
        ..runc()
    };
    assert_eq!(node.runtime(), Some(expected));
}

#[test]
fn a_containerd_before_the_options_file_wrote_the_runtimes_name_alone() {
    let node = Root::new();
    node.task("")
        .file(&format!("{BUNDLE}/runtime"), "/usr/bin/crun")
        .file(&format!("run/containerd/runc/k8s.io/{ID}/status"), "{}")
        .program("usr/bin/crun", "");
    let found = node.runtime().unwrap();
    assert_eq!((found.kind, found.binary), (Kind::Crun, PathBuf::from("/usr/bin/crun")));
}

#[test]
fn a_shim_of_k3s_has_its_runtime_beside_it() {
    let node = Root::new();
    let bundle = format!("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}");
    node.file(&format!("{bundle}/config.json"), "{}")
        .file(&format!("{bundle}/options.json"), r#"{"systemd_cgroup":true}"#)
        .file(
            &format!("{bundle}/shim-binary-path"),
            "/var/lib/rancher/k3s/data/1f/bin/containerd-shim-runc-v2",
        )
        .file(&format!("run/containerd/runc/k8s.io/{ID}/state.json"), "{}")
        .program("usr/bin/runc", "")
        .program("var/lib/rancher/k3s/data/1f/bin/runc", "");
    let binary = node.runtime().unwrap().binary;
    assert_eq!(binary, Path::new("/var/lib/rancher/k3s/data/1f/bin/runc"));
}

/// A process of the node that monitors a container of CRI-O, whose runtime is crun.
struct Monitor<'a> {
    words: Vec<String>,
    exe: Option<&'a str>,
    name: &'a str,
    uid: u32,
    cgroup: &'a str,
}

const CRUN: &str = "/usr/libexec/crio/crun";
const PODS: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";

impl<'a> Monitor<'a> {
    fn of(runtime: &str) -> Self {
        let userdata = format!("/run/containers/storage/overlay-containers/{ID}/userdata");
        let words = format!(
            "/usr/libexec/crio/conmon -b {userdata} -c {ID} -P /conmon-pidfile -r {runtime} --runtime-arg --root=/run/crun -u {ID} -s "
        );
        Self {
            words: words.split(' ').map(str::to_owned).collect(),
            exe: Some("/usr/libexec/crio/conmon"),
            name: "conmon",
            uid: 0,
            cgroup: "/system.slice/crio-conmon-9c0d4a5be1f2.scope",
        }
    }

    /// The runtime that a node with this process has.
    fn runtime(&self) -> Option<Runtime> {
        let node = Root::new();
        node.program("usr/libexec/crio/crun", "");
        self.runtime_on(&node)
    }

    fn runtime_on(&self, node: &Root) -> Option<Runtime> {
        let userdata = format!("run/containers/storage/overlay-containers/{ID}/userdata");
        let (name, uid, cgroup) = (self.name, self.uid, self.cgroup);
        node.file(&format!("{userdata}/conmon-pidfile"), "4711")
            .file(&format!("run/crun/{ID}/status"), "{}")
            .file("proc/4711/cmdline", self.words.join("\0"))
            .file("proc/4711/cgroup", format!("0::{cgroup}\n"))
            .file(
                "proc/4711/status",
                format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"),
            );
        if let Some(exe) = self.exe {
            node.link(exe, "proc/4711/exe");
        }
        node.runtime()
    }
}

#[test]
fn a_container_of_crio_has_the_runtime_that_its_conmon_was_given() {
    let expected = Runtime {
        manager: Manager::CriO,
        kind: Kind::Crun,
        binary: CRUN.into(),
        root: "/run/crun".into(),
        systemd_cgroup: true,
    };
    let monitor = Monitor::of(CRUN);
    assert_eq!(monitor.runtime(), Some(expected.clone()));
    // Its package was replaced; the executable is not to be seen; it is in the pod's cgroup.
    let pods = format!("{PODS}/crio-conmon-{ID}.scope");
    for (exe, cgroup) in [
        (Some("/usr/libexec/crio/conmon (deleted)"), monitor.cgroup),
        (None, monitor.cgroup),
        (monitor.exe, &pods),
    ] {
        let other = Monitor {
            exe,
            cgroup,
            ..Monitor::of(CRUN)
        };
        assert_eq!(other.runtime(), Some(expected.clone()), "{exe:?} {cgroup}");
    }
}

#[test]
fn a_process_with_the_number_of_a_conmon_that_ended_names_no_program() {
    let mut another = Monitor::of(CRUN);
    another.words[4] = "another".to_owned();
    assert_eq!(another.runtime(), None, "a conmon of another container");
    let conmon = another.exe;
    for (exe, name, uid, cgroup) in [
        (conmon, "conmon", 1000, "/system.slice/x.service"),
        (Some("/usr/bin/sleep"), "conmon", 0, "/system.slice/x.service"),
        (None, "sleep", 0, "/system.slice/x.service"),
        (conmon, "conmon", 0, &format!("{PODS}/crio-50ab.scope")),
        (
            conmon,
            "conmon",
            0,
            &format!("{PODS}/crio-50ab.scope/crio-conmon-{ID}.scope"),
        ),
        (conmon, "conmon", 0, "/stelia.slice/stelia-instance-a.scope/float"),
    ] {
        let forged = Monitor {
            exe,
            name,
            uid,
            cgroup,
            ..Monitor::of(CRUN)
        };
        assert_eq!(forged.runtime(), None, "{exe:?} {name} {uid} {cgroup}");
    }
}

#[test]
fn a_program_that_is_not_the_nodes_is_no_runtime_whoever_names_it() {
    let pod = "/var/lib/kubelet/pods/b9e4f71c-64a5-4f8d-8574-41363cbaf8e5/volumes/kubernetes.io~empty-dir/x/evil";
    for evil in [pod, "/proc/4711/root/evil"] {
        let node = Root::new();
        node.program(evil, "");
        assert_eq!(Monitor::of(evil).runtime_on(&node), None, "{evil}");
    }

    let node = Root::new();
    node.task(r#"{"binary_name":"/opt/bin/crun"}"#)
        .file(&format!("run/containerd/runc/k8s.io/{ID}/status"), "{}")
        .program("opt/bin/crun", "");
    assert!(node.runtime().is_some());
    node.mode("opt/bin", 0o777);
    assert_eq!(node.runtime(), None);
    let coping = coping(&node, &node.join("run"), ID);
    let why = "/opt/bin/crun is not trusted to run as root: /opt/bin is writable by its group or by others";
    assert_eq!(coping, Coping::No(why.to_owned()));
    node.mode("opt/bin", 0o755);

    // The first of a name is the one that the manager calls: no other stands in for it.
    node.task(r#"{"binary_name":"crun"}"#)
        .program("usr/local/sbin/crun", "")
        .program("usr/bin/crun", "");
    assert!(
        node.runtime()
            .is_some_and(|runtime| runtime.binary.starts_with("/usr/local/sbin"))
    );
    node.mode("usr/local/sbin", 0o775);
    assert_eq!(node.runtime(), None);
}

#[test]
fn a_container_that_is_not_there_or_no_containers_name_has_none() {
    let node = Root::new();
    assert_eq!(node.runtime(), None);
    node.task("{}").program("usr/sbin/runc", "");
    assert_eq!(node.runtime(), None, "a runtime that keeps its containers elsewhere");
    for id in ["", ".", "..", "../k8s.io", "a/b", "a\0"] {
        assert!(open_runtime(&node, id).is_err(), "{id:?}");
    }
}

#[test]
fn a_verdict_is_read_as_it_was_written_and_is_of_the_same_program_only() {
    let node = Root::new();
    node.program("usr/sbin/runc", "");
    let program = node.join("usr/sbin/runc");
    let identity = Identity::of(&program).unwrap();
    let verdict = RuntimeVerdict {
        manager: Manager::Containerd,
        binary: "/usr/sbin/runc".into(),
        identity,
        copes: false,
        words: "read cgroup.procs: operation not supported".into(),
        tried_us: 1_795_000_000_000_000,
    };
    let file = verdict_file(&node.join("run"), &runc());
    assert!(
        file.ends_with("stelia/runtimes/containerd:usr:sbin:runc.json"),
        "{file:?}"
    );
    verdict.write(&file).unwrap();
    let read = RuntimeVerdict::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(read, verdict);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    assert!(read.is_of(&runc(), Identity::of(&program).unwrap()));

    let changes: [fn(&mut Identity); 4] = [
        |one| one.dev += 1,
        |one| one.inode += 1,
        |one| one.size += 1,
        |one| one.mtime_ns += 1,
    ];
    for change in changes {
        let mut other = identity;
        change(&mut other);
        assert!(!read.is_of(&runc(), other), "{other:?}");
    }
    // The next package's.
    let next = node.join("usr/sbin/.runc.new");
    fs::write(&next, "another").unwrap();
    fs::rename(&next, &program).unwrap();
    assert!(!read.is_of(&runc(), Identity::of(&program).unwrap()));
    let others = [
        Runtime {
            manager: Manager::CriO,
            ..runc()
        },
        Runtime {
            binary: "/usr/bin/runc".into(),
            ..runc()
        },
    ];
    assert!(others.iter().all(|other| !read.is_of(other, identity)));
    for text in ["", "{}", "null", r#"{"copes":true}"#] {
        assert_eq!(RuntimeVerdict::parse(text), None, "{text:?}");
    }
}
