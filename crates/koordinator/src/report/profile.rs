//! The object for one reader. The API server keeps and sends an object whole to everybody, so it has what that reader
//! takes, and no more.

use stelia_cpus::text::named;

use crate::report::compact::{self, Compact};
use crate::report::fingerprint::{self, Method};
use crate::report::meta::ObjectMeta;
use crate::report::object::{self, ApiVersion, Attribute, NodeResourceTopology};
use crate::report::{Alignment, Facts, annotations, labels, report, zone};

named! {
    /// Whom the object is for.
    #[derive(Default)]
    pub enum Profile {
        /// Koordinator's scheduler, and `steliactl plan` for a node that is only described: with
        /// annotations of every CPU and every pod that has CPUs.
        #[default]
        Koordinator = "koordinator",
        /// kube-scheduler's NodeResourceTopologyMatch: zones with devices, and attributes.
        Nrt = "nrt",
        /// `Nrt`, and the attribute of our own.
        Stelia = "stelia",
    }
}

impl Profile {
    /// The versions in which the profile can be written, the one that its readers take first.
    pub fn versions(self) -> &'static [ApiVersion] {
        match self {
            Self::Koordinator => &[ApiVersion::V1Alpha1, ApiVersion::V1Alpha2],
            // v1alpha1 has no attributes.
            Self::Nrt | Self::Stelia => &[ApiVersion::V1Alpha2],
        }
    }

    /// The version to write: the one asked for, or the one that the profile's readers take. `None` where the profile does
    /// not exist in that version.
    pub fn version(self, asked: Option<ApiVersion>) -> Option<ApiVersion> {
        match asked {
            None => self.versions().first().copied(),
            Some(asked) => self.versions().contains(&asked).then_some(asked),
        }
    }
}

/// The attribute that kube-scheduler's plugin bounds its combinations of NUMA nodes by.
const MAX_NUMA_NODES: &str = "topologyManagerMaxNUMANodes";

/// The lean object: zones and attributes.
fn lean(facts: &Facts, method: Method) -> NodeResourceTopology {
    let alignment = facts.kubelet.alignment.as_ref();
    let mut attributes = alignment.map(Alignment::attributes).unwrap_or_default();
    let most = facts.kubelet.max_numa_nodes;
    attributes.extend(most.map(|most| Attribute::new(MAX_NUMA_NODES, &most.to_string())));
    let mut told = facts.clone();
    match fingerprint::of_node(facts, method) {
        Ok(value) => {
            attributes.push(Attribute::new(fingerprint::ATTRIBUTE, &value));
            attributes.push(Attribute::new(fingerprint::METHOD, method.name()));
        }
        Err(problem) => told.problems.push(problem),
    }
    let mut zones = zone::all(facts);
    zone::add_devices(facts, &mut zones);
    NodeResourceTopology {
        api_version: ApiVersion::V1Alpha2.api_version(),
        kind: object::KIND.to_owned(),
        metadata: ObjectMeta {
            name: facts.name.clone(),
            labels: labels(),
            annotations: annotations::warnings(&told),
            ..ObjectMeta::default()
        },
        topology_policies: None,
        attributes,
        zones,
    }
}

/// The lean object with the attribute of our own.
fn own(facts: &Facts, method: Method) -> NodeResourceTopology {
    let mut object = lean(facts, method);
    let value = Compact::of(facts).text();
    object.attributes.push(Attribute::new(compact::ATTRIBUTE, &value));
    object
}

/// The object of a profile; one of [`Profile::versions`], any other is taken for the first of them.
pub fn object(facts: &Facts, profile: Profile, version: ApiVersion, method: Method) -> NodeResourceTopology {
    match profile {
        Profile::Koordinator => report(facts, version),
        Profile::Nrt => lean(facts, method),
        Profile::Stelia => own(facts, method),
    }
}
