//! Where the record of an instance is: the cgroup with its attributes, and what their names begin with.
//!
//! The record of an instance in a scope is on the scope. That of an instance in place is on the pod's cgroup, one level above the
//! container's: a container may own its cgroup and set attributes on it, and it does not see its pod's.

use std::collections::{BTreeMap, BTreeSet};

use stelia_kernel::cgroup::CgroupPath;
use stelia_kubelet::ContainerCgroup;

use crate::record::{Record, RecordError, SCHEMA_ATTRIBUTE, Tree};

/// Separates the name of a container's cgroup from an attribute's, which has no dot.
const SEPARATOR: char = '.';

/// How many `user.` attributes the kernel keeps on a cgroup (`KERNFS_MAX_USER_XATTRS`).
const MAX_ATTRIBUTES: usize = 128;
/// Attributes that are left to other programs: systemd has some of its own.
const ATTRIBUTES_OF_OTHERS: usize = 16;

/// Where a record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPlace {
    cgroup: CgroupPath,
    prefix: String,
}

impl RecordPlace {
    /// On a scope of steliad's.
    pub fn on_scope(scope: CgroupPath) -> Self {
        Self {
            cgroup: scope,
            prefix: String::new(),
        }
    }

    /// On the cgroup of the pod of this container, whose whole cgroup is given.
    pub fn on_pod(container: &CgroupPath) -> Self {
        Self {
            // Every container's cgroup is below its pod's.
            cgroup: container.parent().unwrap_or_else(CgroupPath::root),
            prefix: format!("{}{SEPARATOR}", container.name()),
        }
    }

    /// The cgroup with the attributes.
    pub fn cgroup(&self) -> &CgroupPath {
        &self.cgroup
    }

    /// What an attribute of the record is called there.
    pub fn name(&self, attribute: &str) -> String {
        format!("{}{attribute}", self.prefix)
    }

    /// The record's attributes among all those of the cgroup, without what their names begin with.
    pub fn own(&self, all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let own = all
            .iter()
            .filter_map(|(name, value)| Some((self.bare(name)?.to_owned(), value.clone())));
        own.collect()
    }

    /// The name of an attribute of the record, without what it begins with here; `None` for all others.
    fn bare<'a>(&self, name: &'a str) -> Option<&'a str> {
        let name = name.strip_prefix(&self.prefix)?;
        (self.prefix.is_empty() || !name.contains(SEPARATOR)).then_some(name)
    }

    /// Why the kernel would not take this record beside all that is on the cgroup; `None` where it would.
    pub fn lacks_room(&self, record: &Record, all: &BTreeMap<String, String>) -> Option<String> {
        let others = || all.iter().filter(|(name, _)| self.bare(name).is_none());
        let bytes = others().map(|(_, value)| value.len()).sum();
        let (count, has) = (record.attributes().len(), others().count());
        if has + count > MAX_ATTRIBUTES - ATTRIBUTES_OF_OTHERS {
            return Some(format!(
                "{} has {has} attributes already and no room for the {count} of the record: the kernel keeps {MAX_ATTRIBUTES}",
                self.cgroup
            ));
        }
        record.too_large_beside(bytes)
    }

    /// The containers that have attributes on their pod's cgroup, by the whole container's cgroup. Some may be gone.
    pub fn containers(pod: &CgroupPath, all: &BTreeMap<String, String>) -> BTreeSet<CgroupPath> {
        let names = all.keys().filter_map(|name| name.rsplit_once(SEPARATOR));
        let containers = names.map(|(container, _)| pod.child(container));
        let is_one = |path: &CgroupPath| ContainerCgroup::parse(path.as_str()).is_some();
        containers.filter(is_one).collect()
    }
}

impl Record {
    /// The record of the container with this (whole) cgroup, from all attributes of its pod's cgroup; `None` where it has none.
    ///
    /// # Errors
    /// [`RecordError`]: also where it says that it is of another pod, another container, or a scope.
    pub fn of_container(container: &CgroupPath, all: &BTreeMap<String, String>) -> Result<Option<Self>, RecordError> {
        let own = RecordPlace::on_pod(container).own(all);
        if !own.contains_key(SCHEMA_ATTRIBUTE) {
            return Ok(None);
        }
        let record = Self::parse(&own)?;
        let foreign = |what: &str| Err(RecordError::Foreign(what.to_owned(), container.to_string()));
        let Some(known) = ContainerCgroup::parse(container.as_str()) else {
            return foreign("no container");
        };
        if record.pod != known.pod {
            return foreign(&format!("pod {}", record.pod));
        }
        let of = Tree::of(&record);
        if of.place() != &RecordPlace::on_pod(container) {
            return foreign(record.origin.as_str());
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Home, testing};

    const POD: &str = "/kubepods.slice/kubepods-podb9e4f71c_64a5_4f8d_8574_41363cbaf8e5.slice";

    fn container(name: &str) -> CgroupPath {
        CgroupPath::parse(&format!("{POD}/{name}")).unwrap()
    }

    fn in_place(origin: &CgroupPath) -> Record {
        Record {
            origin: origin.clone(),
            ..testing::in_place()
        }
    }

    fn written(record: &Record) -> BTreeMap<String, String> {
        let tree = Tree::of(record);
        let attributes = record.attributes().into_iter();
        attributes
            .map(|(name, value)| (tree.place().name(name), value))
            .collect()
    }

    #[test]
    fn the_records_of_a_pods_containers_stand_side_by_side_and_each_is_found_again() {
        let names = ["cri-containerd-a1.scope", "crio-a1.scope", "cri-containerd-a1b.scope"];
        let mut all = BTreeMap::from([
            ("exclusive-cpus-added".to_owned(), "2-3".to_owned()),
            ("allowed-cpus".to_owned(), String::new()),
        ]);
        for name in names {
            all.extend(written(&in_place(&container(name))));
        }
        // With crun the processes are one level below the container's cgroup.
        let crun = in_place(&container("cri-containerd-b2.scope/container"));
        all.extend(written(&crun));
        for name in names {
            let path = container(name);
            assert_eq!(Record::of_container(&path, &all), Ok(Some(in_place(&path))));
        }
        let whole = container("cri-containerd-b2.scope");
        assert_eq!(Record::of_container(&whole, &all), Ok(Some(crun)));
        let pod = CgroupPath::parse(POD).unwrap();
        let found = RecordPlace::containers(&pod, &all);
        let expected = names.into_iter().chain(["cri-containerd-b2.scope"]).map(container);
        assert_eq!(found, expected.collect());
        assert_eq!(
            Record::of_container(&container("cri-containerd-c3.scope"), &all),
            Ok(None)
        );
    }

    #[test]
    fn a_record_that_is_not_of_the_container_that_it_is_named_after_is_not_believed() {
        let own = container("cri-containerd-a1.scope");
        let other_pod = Record {
            pod: stelia_kubelet::PodUid::parse("3ceda12c-3ee9-40fa-9f42-61428fe654a6").unwrap(),
            ..in_place(&own)
        };
        let in_a_scope = Record {
            home: Home::Scope,
            anchor: testing::record().anchor,
            ..in_place(&own)
        };
        let lies = [
            other_pod,
            in_a_scope,
            in_place(&container("cri-containerd-b2.scope")),
            in_place(&container("cri-containerd-a1.scope/below")),
            in_place(&CgroupPath::parse("/init.scope").unwrap()),
        ];
        for lie in lies {
            let attributes = lie.attributes().into_iter();
            let place = RecordPlace::on_pod(&own);
            let all = attributes.map(|(name, value)| (place.name(name), value)).collect();
            let answer = Record::of_container(&own, &all);
            assert!(matches!(answer, Err(RecordError::Foreign(..))), "{lie:?}: {answer:?}");
        }
    }

    #[test]
    fn the_longest_name_fits_the_kernels_limit() {
        // `XATTR_NAME_MAX`; a container's id has at most 128 characters.
        let longest = container(&format!("cri-containerd-{}.scope", "a".repeat(128)));
        assert!(ContainerCgroup::parse(longest.as_str()).is_some());
        for (name, _) in testing::allocated().attributes() {
            let name = format!("user.stelia.{}", RecordPlace::on_pod(&longest).name(name));
            assert!(name.len() <= 255, "{name}");
        }
    }

    #[test]
    fn a_pod_with_too_many_attributes_has_no_room_and_that_is_said() {
        let record = in_place(&container("cri-containerd-a1.scope"));
        let place = RecordPlace::on_pod(&record.origin);
        let mut all = written(&record);
        assert_eq!(place.lacks_room(&record, &all), None);
        for number in 0..5 {
            all.extend(written(&in_place(&container(&format!(
                "cri-containerd-b{number}.scope"
            )))));
        }
        assert_eq!(place.lacks_room(&record, &all), None);
        all.extend(written(&in_place(&container("cri-containerd-c.scope"))));
        all.extend(written(&in_place(&container("cri-containerd-d.scope"))));
        let text = place.lacks_room(&record, &all).unwrap();
        assert!(text.contains(POD) && text.contains("the kernel keeps 128"), "{text}");
        let large = BTreeMap::from([("x".to_owned(), "y".repeat(128 << 10))]);
        let text = place.lacks_room(&record, &large).unwrap();
        assert!(text.contains("more than the kernel keeps"), "{text}");
    }
}
