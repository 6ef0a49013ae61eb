use std::os::unix::fs::PermissionsExt;

use super::*;

const ID: &str = "9c0d4a5be1f2";

/// A node's folders as the managers leave them.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn program(&self, path: &str) -> &Self {
        self.file(path, "");
        fs::set_permissions(self.0.path().join(path), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// A container of containerd with these options of its shim.
    fn task(&self, options: &str) -> &Self {
        let bundle = format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}");
        self.file(&format!("{bundle}/config.json"), "{}")
            .file(&format!("{bundle}/options.json"), options)
            .file(
                &format!("{bundle}/shim-binary-path"),
                "/usr/bin/containerd-shim-runc-v2",
            )
    }

    fn runtime(&self) -> Option<Runtime> {
        runtime_of(self.0.path(), ID)
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
    let node = Node::new();
    node.task(r#"{"systemd_cgroup":true}"#)
        .file(&format!("run/containerd/runc/k8s.io/{ID}/state.json"), "{}")
        .program("usr/sbin/runc")
        .file("usr/bin/runc", "no program");
    assert_eq!(node.runtime(), Some(runc()));
    assert_eq!(
        runc().state_file(ID),
        Path::new("/run/containerd/runc/k8s.io").join(ID).join("state.json")
    );
    // One that an administrator put before it.
    node.program("usr/local/sbin/runc");
    assert_eq!(node.runtime().unwrap().binary, Path::new("/usr/local/sbin/runc"));
}

#[test]
fn the_shims_options_name_binary_and_root() {
    let node = Node::new();
    node.task(r#"{"binary_name":"/opt/bin/crun","root":"/run/elsewhere","io_uid":7}"#)
        .file(&format!("run/elsewhere/k8s.io/{ID}/status"), "{}");
    assert_eq!(node.runtime(), None, "no such program");
    node.program("opt/bin/crun").program("usr/bin/runc");
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
    let node = Node::new();
    node.task("")
        .file(
            &format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/runtime"),
            "/usr/bin/crun",
        )
        .file(&format!("run/containerd/runc/k8s.io/{ID}/status"), "{}")
        .program("usr/bin/crun");
    let found = node.runtime().unwrap();
    assert_eq!((found.kind, found.binary), (Kind::Crun, PathBuf::from("/usr/bin/crun")));
}

#[test]
fn a_shim_of_k3s_has_its_runtime_beside_it() {
    let node = Node::new();
    let bundle = format!("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}");
    node.file(&format!("{bundle}/config.json"), "{}")
        .file(&format!("{bundle}/options.json"), r#"{"systemd_cgroup":true}"#)
        .file(
            &format!("{bundle}/shim-binary-path"),
            "/var/lib/rancher/k3s/data/1f/bin/containerd-shim-runc-v2",
        )
        .file(&format!("run/containerd/runc/k8s.io/{ID}/state.json"), "{}")
        .program("usr/bin/runc")
        .program("var/lib/rancher/k3s/data/1f/bin/runc");
    let binary = node.runtime().unwrap().binary;
    assert_eq!(binary, Path::new("/var/lib/rancher/k3s/data/1f/bin/runc"));
}

#[test]
fn a_container_of_crio_has_the_runtime_that_its_conmon_was_given() {
    let node = Node::new();
    let userdata = format!("run/containers/storage/overlay-containers/{ID}/userdata");
    let words = [
        "/usr/libexec/crio/conmon",
        "-b",
        &format!("/{userdata}"),
        "-c",
        ID,
        "-P",
        "/conmon-pidfile",
        "-r",
        "/usr/libexec/crio/crun",
        "--runtime-arg",
        "--root=/run/crun",
        "-u",
        ID,
        "-s",
        "",
    ];
    node.file(&format!("{userdata}/conmon-pidfile"), "4711")
        .file("proc/4711/cmdline", &words.join("\0"))
        .file(&format!("run/crun/{ID}/status"), "{}")
        .program("usr/libexec/crio/crun");
    let expected = Runtime {
        manager: Manager::CriO,
        kind: Kind::Crun,
        binary: "/usr/libexec/crio/crun".into(),
        root: "/run/crun".into(),
        systemd_cgroup: true,
    };
    assert_eq!(node.runtime(), Some(expected));
    // conmon ended, and its number is another process's.
    node.file("proc/4711/cmdline", &words.join("\0").replace(ID, "another"));
    assert_eq!(node.runtime(), None);
}

#[test]
fn a_container_that_is_not_there_or_no_containers_name_has_none() {
    let node = Node::new();
    assert_eq!(node.runtime(), None);
    node.task("{}").program("usr/sbin/runc");
    assert_eq!(node.runtime(), None, "a runtime that keeps its containers elsewhere");
    for id in ["", ".", "..", "../k8s.io", "a/b", "a\0"] {
        assert_eq!(runtime_of(node.0.path(), id), None, "{id:?}");
    }
}

#[test]
fn a_verdict_is_read_as_it_was_written_and_is_of_the_same_program_only() {
    let node = Node::new();
    node.program("usr/sbin/runc");
    let program = node.0.path().join("usr/sbin/runc");
    let identity = Identity::of(&program).unwrap();
    let verdict = Verdict {
        manager: Manager::Containerd,
        binary: "/usr/sbin/runc".into(),
        identity,
        copes: false,
        words: "read cgroup.procs: operation not supported".into(),
        tried_us: 1_795_000_000_000_000,
    };
    let file = verdict_file(&node.0.path().join("run"), &runc());
    assert!(
        file.ends_with("stelia/runtimes/containerd:usr:sbin:runc.json"),
        "{file:?}"
    );
    verdict.write(&file).unwrap();
    let read = Verdict::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(read, verdict);
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    assert!(read.is_of(&runc(), Identity::of(&program).unwrap()));

    // The next package's.
    let next = node.0.path().join("usr/sbin/.runc.new");
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
        assert_eq!(Verdict::parse(text), None, "{text:?}");
    }
}
