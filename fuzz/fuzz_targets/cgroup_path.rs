//! Cgroup paths: which pod and container a caller is, and which cgroups the program may write to.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::{ContainerCgroup, PodUid};
use steliad_fuzz::{fits, same};

fuzz_target!(|text: &str| {
    match PodUid::parse(text) {
        Ok(uid) => {
            // What becomes part of a unit's and a file's name has no character that means anything there.
            let plain = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
            assert!(uid.as_str() == text && uid.as_str().bytes().all(plain));
            same(&PodUid::from_scope(&uid.scope()), &Some(uid), "a scope's name");
        }
        Err(error) => fits(&error),
    }
    if let Some(uid) = PodUid::from_scope(text) {
        assert_eq!(uid.scope(), text);
    }
    let path = CgroupPath::parse(text);
    if let Some(path) = &path {
        same(&CgroupPath::parse(path.as_str()).as_ref(), &Some(path), "a path");
        assert!(path.as_str().starts_with('/') && !path.as_str().contains("//"));
        assert!(path.as_str().split('/').all(|part| part != "." && part != ".."));
        assert!(path.is_within(&CgroupPath::root()) && path.is_within(path));
        let child = path.child("x");
        assert!(child.is_within(path) && !path.is_within(&child) && child.name() == "x");
        match path.parent() {
            Some(parent) => assert_eq!(&parent.child(path.name()), path),
            None => assert!(!path.as_str()[1..].contains('/')),
        }
    }
    if let Some(cgroup) = ContainerCgroup::parse(text) {
        let path = path.expect("a container's cgroup is a cgroup");
        assert_eq!(path.as_str(), text);
        // Only kubelet's own tree has containers, and a container is exactly its cgroup, or crun's one in its scope.
        assert!(
            ["/kubepods", "/kubepods.slice"]
                .iter()
                .any(|top| path.is_within(&CgroupPath::parse(top).unwrap()))
        );
        assert!(ContainerCgroup::parse(path.child("x").as_str()).is_none());
        let whole = CgroupPath::parse(ContainerCgroup::whole(text)).expect("a container's cgroup");
        if cgroup.in_subgroup {
            assert_eq!(whole.child(ContainerCgroup::SUBGROUP), path);
            let scope = ContainerCgroup::parse(whole.as_str()).expect("the scope is the container's");
            assert!(!scope.in_subgroup && scope.pod == cgroup.pod && scope.container_id == cgroup.container_id);
        } else {
            assert_eq!(whole, path);
        }
        let subgroup = ContainerCgroup::parse(path.child(ContainerCgroup::SUBGROUP).as_str());
        let has_subgroup =
            !cgroup.in_subgroup && path.name().ends_with(".scope") && text.starts_with("/kubepods.slice/");
        assert_eq!(subgroup.is_some(), has_subgroup);
        assert!(
            whole
                .parent()
                .is_some_and(|pod| ContainerCgroup::parse(pod.as_str()).is_none())
        );
        assert!(text.contains(cgroup.pod.as_str()) || text.replace('_', "-").contains(cgroup.pod.as_str()));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        assert!(cgroup.container_id.bytes().all(plain) && whole.name().contains(&cgroup.container_id));
        assert!((1..=128).contains(&cgroup.container_id.len()));
    }
});
