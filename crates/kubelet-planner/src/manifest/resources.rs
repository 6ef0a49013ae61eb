//! Requests and limits, and the API server's rules about them.

use std::collections::BTreeMap;

use stelia_cpus::quantity::Quantity;
use stelia_cpus::text::excerpt;
use stelia_cpus::text::excerpt::excerpt;

use super::error::ManifestError;
use super::fields::Field;
use crate::pod::{Amounts, Resources};

/// Quantities by resource name.
pub(super) type ResourceList = BTreeMap<String, Quantity>;

/// `resources` of a container or of a pod, as written in the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RawResources {
    pub(super) requests: ResourceList,
    pub(super) limits: ResourceList,
}

pub(super) const CPU: &str = "cpu";
pub(super) const MEMORY: &str = "memory";
const HUGE_PAGES: &str = "hugepages-";

/// Whether a container or a pod as a whole has the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Container,
    Pod,
}

impl RawResources {
    /// Missing requests become the limits, as the API server does.
    pub(super) fn default_requests(&mut self) {
        for (name, limit) in &self.limits {
            self.requests.entry(name.clone()).or_insert(*limit);
        }
    }

    /// Reads `resources` of a manifest.
    pub(super) fn read(field: &Field<'_>) -> Result<Self, ManifestError> {
        let mut resources = Self::default();
        for (key, value) in field.entries()? {
            match key {
                "requests" | "limits" if value.is_null() => {}
                "requests" => resources.requests = list(&value)?,
                "limits" => resources.limits = list(&value)?,
                // Dynamic resource allocation does not make hints.
                "claims" => {}
                _ => return Err(value.wrong("resources has no such field")),
            }
        }
        Ok(resources)
    }

    /// The part that kubelet's managers look at.
    pub(super) fn resources(&self) -> Resources {
        Resources {
            requests: amounts(&self.requests),
            limits: amounts(&self.limits),
        }
    }

    /// Refuses what the API server refuses, after its defaults; `path` is that of `resources`.
    pub(super) fn check(&self, path: &str, owner: Owner) -> Result<(), ManifestError> {
        let lists = [("limits", &self.limits), ("requests", &self.requests)];
        for (kind, list) in lists {
            for (name, amount) in list {
                let wrong = |what: String| wrong(path, kind, name, what);
                check_name(name, owner).map_err(wrong)?;
                if is_device(name) && !amount.is_whole() {
                    return Err(wrong("devices are whole".to_owned()));
                }
                if let Some(size) = huge_page_size(name)
                    && !(amount.is_whole() && amount.value().is_multiple_of(size))
                {
                    return Err(wrong(format!("it is not a multiple of the page size, {size} bytes")));
                }
            }
        }
        for (name, request) in &self.requests {
            let limit = self.limits.get(name);
            let equal = is_device(name) || huge_page_size(name).is_some();
            let what = match limit {
                None if equal => "it needs a limit of the same amount".to_owned(),
                Some(limit) if equal && request != limit => {
                    format!("{request} is requested and the limit is {limit}: they must be equal")
                }
                Some(limit) if request > limit => format!("{request} is more than the limit, {limit}"),
                _ => continue,
            };
            return Err(wrong(path, "requests", name, what));
        }
        let pages = self.limits.iter().find(|(name, _)| huge_page_size(name).is_some());
        let plain = [CPU, MEMORY].iter().any(|name| self.requests.contains_key(*name));
        match pages {
            Some((name, _)) if !plain && owner == Owner::Container => {
                let what = "huge pages need a request of cpu or memory beside them".to_owned();
                Err(wrong(path, "limits", name, what))
            }
            _ => Ok(()),
        }
    }
}

/// The size of a huge page, in bytes, that a resource is named after.
fn huge_page_size(name: &str) -> Option<u64> {
    let size: Quantity = name.strip_prefix(HUGE_PAGES)?.parse().ok()?;
    (size.is_whole() && !size.is_zero()).then(|| size.value())
}

/// Whether a resource is an extended one, as devices are.
pub(super) fn is_device(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else {
        return false;
    };
    let native = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    let label = |text: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        text.len() <= 63
            && text.bytes().all(inner)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    !native && !name.starts_with("requests.") && label(rest) && domain.split('.').all(label)
}

/// Whether a pod may have this resource as a whole.
pub(super) fn of_pods(name: &str) -> bool {
    [CPU, MEMORY].contains(&name) || huge_page_size(name).is_some()
}

pub(super) fn wrong(path: &str, kind: &str, name: &str, what: String) -> ManifestError {
    ManifestError::Wrong {
        path: format!("{path}.{kind}.{}", excerpt::name(name)),
        what,
    }
}

fn check_name(name: &str, owner: Owner) -> Result<(), String> {
    let container = name == "ephemeral-storage" || is_device(name);
    if of_pods(name) || owner == Owner::Container && container {
        Ok(())
    } else if owner == Owner::Pod {
        Err(format!("a pod as a whole has no resource {:?}", excerpt(name)))
    } else {
        Err(format!("there is no resource {:?}", excerpt(name)))
    }
}

fn amounts(list: &ResourceList) -> Amounts {
    let mut amounts = Amounts::default();
    for (name, amount) in list {
        match (name.as_str(), huge_page_size(name)) {
            (CPU, _) => amounts.milli_cpus = Some(amount.milli()),
            (MEMORY, _) => amounts.memory = Some(amount.value()),
            (_, Some(size)) => {
                amounts.huge_pages.insert(size, amount.value());
            }
            (device, None) if is_device(device) => {
                amounts.devices.insert(name.clone(), amount.value());
            }
            _ => {}
        }
    }
    amounts
}

fn list(field: &Field<'_>) -> Result<ResourceList, ManifestError> {
    let mut list = ResourceList::new();
    for (name, amount) in field.entries()? {
        let quantity = if amount.is_null() {
            Quantity::default()
        } else {
            amount.number_or_text()?.parse().map_err(|cause| amount.wrong(cause))?
        };
        list.insert(name.to_owned(), quantity);
    }
    Ok(list)
}
