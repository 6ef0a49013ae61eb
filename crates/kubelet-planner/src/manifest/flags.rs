//! A pod in words: each container is one argument, as `steliactl plan --container` takes it.

use stelia_cpus::quantity::QuantityError;
use stelia_cpus::text::excerpt;
use stelia_cpus::text::excerpt::excerpt;

use super::error::ManifestError;
use super::resources::{Owner, RawResources, ResourceList};
use super::spec::is_label;
use crate::pod::{Container, ContainerKind, Pod};

/// A container of `key=value` pairs between commas: `name`, `kind` (`app`, `init`, `sidecar`), and resources by their names, of
/// which `cpus` means `cpu`. Requests are the limits. Without a name it is called `c` and its number.
///
/// ```
/// use kubelet_planner::manifest::container;
///
/// let vm = container("cpus=4,memory=8Gi,hugepages-2Mi=1Gi,example.com/nic=1", 0)?;
/// assert_eq!((vm.name.as_str(), vm.resources.limits.milli_cpus), ("c0", Some(4000)));
/// # Ok::<(), kubelet_planner::manifest::ManifestError>(())
/// ```
///
/// # Errors
/// What the API server would refuse, and anything that is not such a pair.
pub fn container(text: &str, number: usize) -> Result<Container, ManifestError> {
    let wrong = |key: &str, what: String| ManifestError::Wrong {
        path: excerpt::name(key),
        what,
    };
    let (mut name, mut kind, mut list) = (format!("c{number}"), ContainerKind::App, ResourceList::new());
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(wrong(pair, "it is not KEY=VALUE".to_owned()));
        };
        match key {
            "name" if is_label(value) => name = value.to_owned(),
            "name" => return Err(wrong(key, format!("{:?} is not a container name", excerpt(value)))),
            "kind" => {
                kind = match value {
                    "app" => ContainerKind::App,
                    "init" => ContainerKind::Init,
                    "sidecar" => ContainerKind::Sidecar,
                    _ => return Err(wrong(key, format!("{:?} is not app, init or sidecar", excerpt(value)))),
                }
            }
            resource => {
                let resource = if resource == "cpus" { "cpu" } else { resource };
                let amount = value
                    .parse()
                    .map_err(|cause: QuantityError| wrong(key, cause.to_string()))?;
                if list.insert(resource.to_owned(), amount).is_some() {
                    return Err(wrong(key, "it is given twice".to_owned()));
                }
            }
        }
    }
    let written = RawResources {
        requests: list.clone(),
        limits: list,
    };
    written.check(&name, Owner::Container)?;
    Ok(Container::new(&name, kind, written.resources()))
}

/// A pod of such containers, in the order in which kubelet starts them.
///
/// # Errors
/// As [`container`], and where two have the same name.
pub fn in_words(containers: &[String]) -> Result<Pod, ManifestError> {
    let numbered = containers.iter().enumerate();
    let containers: Result<Vec<Container>, _> = numbered.map(|(at, text)| container(text, at)).collect();
    let mut containers = containers?;
    containers.sort_by_key(|container| container.kind == ContainerKind::App);
    for (at, one) in containers.iter().enumerate() {
        if containers[..at].iter().any(|other| other.name == one.name) {
            return Err(ManifestError::Twice(one.name.clone()));
        }
    }
    let pod = Pod {
        containers,
        ..Pod::default()
    };
    Ok(pod.with_defaults())
}
