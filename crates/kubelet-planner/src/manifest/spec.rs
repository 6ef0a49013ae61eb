//! The `spec` of a Pod's document.

use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt::excerpt;

use super::error::ManifestError;
use super::fields::Field;
use super::resources::{Owner, RawResources, ResourceList, of_pods, wrong};
use crate::pod::{Container, ContainerKind, Pod, together};

/// Limit of a pod's containers: kubelet's managers look at each beside all others.
const MAX_CONTAINERS: usize = 64;
/// Limit of the names of all resources of a pod, in bytes.
const MAX_RESOURCE_NAMES: usize = 16 << 10;

/// A container before it is checked.
struct Draft {
    path: String,
    name: String,
    kind: ContainerKind,
    written: RawResources,
}

/// The Pod of a document, as the API server would store it.
pub(super) fn pod(document: &Field<'_>) -> Result<Pod, ManifestError> {
    let metadata = document.needed("metadata")?;
    let uid = metadata.get("uid")?.map(|uid| uid.text()).transpose()?;
    let spec = document.needed("spec")?;
    let mut drafts = Vec::new();
    if let Some(list) = spec.get("initContainers")? {
        containers(&list, true, &mut drafts)?;
    }
    let list = spec.needed("containers")?;
    let before = drafts.len();
    containers(&list, false, &mut drafts)?;
    if drafts.len() == before {
        return Err(list.wrong("a pod has at least one container"));
    }
    for (at, draft) in drafts.iter().enumerate() {
        if drafts[..at].iter().any(|other| other.name == draft.name) {
            return Err(ManifestError::Wrong {
                path: format!("{}.name", draft.path),
                what: format!("there are two containers {:?}", excerpt(&draft.name)),
            });
        }
    }
    let own = spec
        .get("resources")?
        .map(|field| RawResources::read(&field))
        .transpose()?;
    let lists = drafts
        .iter()
        .flat_map(|draft| [&draft.written.limits, &draft.written.requests]);
    if lists.flat_map(ResourceList::keys).map(String::len).sum::<usize>() > MAX_RESOURCE_NAMES {
        return Err(spec.wrong(format!(
            "the names of its resources have more than {MAX_RESOURCE_NAMES} bytes"
        )));
    }
    let container = |draft: &Draft| Container::new(&draft.name, draft.kind, draft.written.resources());
    let pod = Pod {
        uid: uid.unwrap_or_default().to_owned(),
        resources: own.as_ref().map(RawResources::resources),
        containers: drafts.iter().map(container).collect(),
    };
    check(drafts, own)?;
    Ok(pod.with_defaults())
}

fn containers(list: &Field<'_>, init: bool, drafts: &mut Vec<Draft>) -> Result<(), ManifestError> {
    for item in list.items()? {
        if drafts.len() == MAX_CONTAINERS {
            return Err(list.wrong(format!(
                "a pod of more than {MAX_CONTAINERS} containers is not planned for"
            )));
        }
        let name = item.needed("name")?;
        if !is_label(name.text()?) {
            return Err(name.wrong(format!("{:?} is not a container name", excerpt(name.text()?))));
        }
        let kind = match item.get("restartPolicy")? {
            _ if !init => ContainerKind::App,
            None => ContainerKind::Init,
            Some(policy) => match policy.text()? {
                "Always" => ContainerKind::Sidecar,
                "OnFailure" | "Never" => ContainerKind::Init,
                other => return Err(policy.wrong(format!("{:?} is not a restart policy", excerpt(other)))),
            },
        };
        let written = item
            .get("resources")?
            .map(|field| RawResources::read(&field))
            .transpose()?;
        drafts.push(Draft {
            path: item.path().to_owned(),
            name: name.text()?.to_owned(),
            kind,
            written: written.unwrap_or_default(),
        });
    }
    Ok(())
}

/// Refuses what the API server refuses.
fn check(mut drafts: Vec<Draft>, own: Option<RawResources>) -> Result<(), ManifestError> {
    for draft in &mut drafts {
        draft.written.default_requests();
        draft
            .written
            .check(&format!("{}.resources", draft.path), Owner::Container)?;
    }
    let Some(mut own) = own else {
        return Ok(());
    };
    let path = "spec.resources";
    let given = own.requests.clone();
    own.default_requests();
    own.check(path, Owner::Pod)?;
    for (name, together) in requested_together(&drafts) {
        // A missing request is made of these very requests.
        for (kind, list) in [("requests", &given), ("limits", &own.limits)] {
            if let Some(amount) = list.get(&name)
                && together > *amount
            {
                let what = format!("{amount} is less than what its containers request together, {together}");
                return Err(wrong(path, kind, &name, what));
            }
        }
    }
    for draft in &drafts {
        for (name, limit) in &draft.written.limits {
            if let Some(own) = own.limits.get(name)
                && limit > own
            {
                let what = format!("{limit} is more than the pod's limit, {own}");
                return Err(wrong(&format!("{}.resources", draft.path), "limits", name, what));
            }
        }
    }
    Ok(())
}

/// What the containers request at the same time, of the resources that a pod as a whole may have.
fn requested_together(drafts: &[Draft]) -> ResourceList {
    let names = drafts.iter().flat_map(|draft| draft.written.requests.keys());
    let sum = |name: &String| {
        let amount = |draft: &Draft| draft.written.requests.get(name).copied().unwrap_or_default();
        together(drafts.iter().map(|draft| (draft.kind, amount(draft))), Quantity::plus)
    };
    let of_pods = names.filter(|name| of_pods(name));
    of_pods.map(|name| (name.clone(), sum(name))).collect()
}

/// Whether a text may name a container (RFC 1123).
pub(super) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
