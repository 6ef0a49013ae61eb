//! The `spec` of a Pod's document.

use std::collections::BTreeSet;

use stelia_cpus::quantity::Quantity;
use stelia_text::excerpt::excerpt;

use super::error::ManifestError;
use super::fields::Field;
use super::resources::{Owner, ResourceList, Written, of_pods, wrong};
use crate::pod::{Container, ContainerKind, Pod, together};

/// A container before it is checked.
struct Draft {
    path: String,
    name: String,
    kind: ContainerKind,
    written: Written,
}

/// The Pod of a document, as the API server would store it.
pub(super) fn pod(document: &Field<'_>) -> Result<Pod, ManifestError> {
    let metadata = document.needed("metadata")?;
    let uid = match metadata.get("uid")? {
        Some(uid) => uid.text()?.to_owned(),
        None => String::new(),
    };
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
    let own = match spec.get("resources")? {
        Some(field) => Some(Written::read(&field)?),
        None => None,
    };
    let container = |draft: &Draft| Container::new(&draft.name, draft.kind, draft.written.resources());
    let pod = Pod {
        uid,
        resources: own.as_ref().map(Written::resources),
        containers: drafts.iter().map(container).collect(),
    };
    check(drafts, own)?;
    Ok(pod.with_defaults())
}

fn containers(list: &Field<'_>, init: bool, drafts: &mut Vec<Draft>) -> Result<(), ManifestError> {
    for item in list.items()? {
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
        drafts.push(Draft {
            path: item.path().to_owned(),
            name: name.text()?.to_owned(),
            kind,
            written: match item.get("resources")? {
                Some(field) => Written::read(&field)?,
                None => Written::default(),
            },
        });
    }
    Ok(())
}

/// Refuses what the API server refuses.
fn check(mut drafts: Vec<Draft>, own: Option<Written>) -> Result<(), ManifestError> {
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
        if let Some(request) = given.get(&name)
            && together > *request
        {
            let what = format!("{request} is less than what its containers request together, {together}");
            return Err(wrong(path, "requests", &name, what));
        }
        if let Some(limit) = own.limits.get(&name)
            && together > *limit
        {
            let what = format!("{limit} is less than what its containers request together, {together}");
            return Err(wrong(path, "limits", &name, what));
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
    let requests = |draft: &Draft| {
        draft
            .written
            .requests
            .keys()
            .filter(|name| of_pods(name))
            .cloned()
            .collect::<Vec<_>>()
    };
    let names: BTreeSet<String> = drafts.iter().flat_map(requests).collect();
    let sum = |name: &String| {
        let amount = |draft: &Draft| draft.written.requests.get(name).copied().unwrap_or_default();
        together(drafts.iter().map(|draft| (draft.kind, amount(draft))), Quantity::plus)
    };
    names.into_iter().map(|name| (name.clone(), sum(&name))).collect()
}

/// Whether a text may name a container (RFC 1123).
pub(super) fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
