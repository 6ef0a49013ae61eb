//! The resources that the server has, and where a request points.

use std::sync::Arc;

/// A resource, in all its versions.
#[derive(Debug)]
pub(crate) struct Resource {
    /// As in keys: `group/plural`.
    pub(crate) id: Arc<str>,
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) versions: &'static [&'static str],
    /// A custom resource: its objects have a generation, and an apply replaces them.
    pub(crate) custom: bool,
}

impl Resource {
    /// As messages name it: `pods`, `leases.coordination.k8s.io`.
    pub(crate) fn shown(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    pub(crate) fn api_version(&self, version: &str) -> String {
        match self.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// Whether its status is written by a path of its own.
    pub(crate) fn has_status(&self) -> bool {
        ["nodes", "pods", "rebindresources"].contains(&self.plural.as_str())
    }
}

pub(crate) fn id(group: &str, plural: &str) -> Arc<str> {
    format!("{group}/{plural}").into()
}

/// All that this server has.
pub(crate) fn all() -> Vec<Arc<Resource>> {
    let one = |group: &str, plural: &str, kind: &str, versions: &'static [&'static str], namespaced, custom| {
        Arc::new(Resource {
            id: id(group, plural),
            group: group.into(),
            plural: plural.into(),
            kind: kind.into(),
            namespaced,
            versions,
            custom,
        })
    };
    let core = |group: &str, plural: &str, kind: &str, namespaced| one(group, plural, kind, &["v1"], namespaced, false);
    vec![
        core("", "nodes", "Node", false),
        core("", "pods", "Pod", true),
        core("events.k8s.io", "events", "Event", true),
        core("coordination.k8s.io", "leases", "Lease", true),
        core("discovery.k8s.io", "endpointslices", "EndpointSlice", true),
        one(
            "topology.node.k8s.io",
            "noderesourcetopologies",
            "NodeResourceTopology",
            &["v1alpha1", "v1alpha2"],
            false,
            true,
        ),
        one(
            "isolation.stelia.io",
            "rebindresources",
            "RebindResource",
            &["v1alpha1"],
            false,
            true,
        ),
    ]
}

/// The parts of a request's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    /// Empty: of the cluster, or of all namespaces.
    pub(crate) namespace: String,
    /// Empty: all of them.
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Target {
    /// `None`: no path of a resource.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let (group, version) = match parts.next()? {
            "api" => ("", parts.next()?),
            "apis" => (parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        Some(Self {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
            subresource: subresource.into(),
        })
    }

    /// As roles name it: `pods/status`.
    pub(crate) fn resource(&self) -> String {
        match self.subresource.as_str() {
            "" => self.plural.clone(),
            subresource => format!("{}/{subresource}", self.plural),
        }
    }
}
