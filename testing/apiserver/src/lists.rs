//! Lists, whole or in pages.

use hyper::body::Bytes;
use serde_json::json;

use crate::failure::Failure;
use crate::query::Query;
use crate::requests::Served;
use crate::resources::Target;
use crate::server::State;

/// Pages are of the state at each request, not at the first: nothing asked here depends on that.
pub(crate) fn list(state: &State, served: &Served, target: &Target, query: &Query) -> Result<Bytes, Failure> {
    let revision = state.store.revision;
    let asked = query.number("resourceVersion")?;
    if asked > revision {
        let message = format!("Timeout: Too large resource version: {asked}, current: {revision}");
        return Err(Failure::new(504, message));
    }
    let selector = query.selector()?;
    let limit = match query.number("limit")? {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let namespace = (!target.namespace.is_empty()).then_some(target.namespace.as_str());
    let (after, at) = match query.get("continue") {
        "" => (None, revision),
        token => {
            let parts: Vec<&str> = token.splitn(3, '/').collect();
            let [at, namespace, name] = parts.as_slice() else {
                return Err(Failure::new(400, "continue key is not valid"));
            };
            let at: u64 = at.parse().map_err(|_| Failure::new(400, "continue key is not valid"))?;
            if at < state.store.forgotten {
                let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.";
                return Err(Failure::new(410, message));
            }
            (Some((*namespace, *name)), at)
        }
    };
    let found = state.store.list(&served.resource.id, namespace);
    let mut found = found
        .filter(|(key, _)| after.is_none_or(|after| (key.namespace.as_str(), key.name.as_str()) > after))
        .filter(|(_, stored)| selector.takes_all() || selector.takes(&served.object(stored)))
        .peekable();
    let mut items = String::new();
    let mut last = None;
    for (key, stored) in found.by_ref().take(limit) {
        if !items.is_empty() {
            items.push(',');
        }
        items.push_str(&String::from_utf8_lossy(&served.text(stored)));
        last = Some(key);
    }
    let mut metadata = json!({"resourceVersion": at.to_string()});
    if let (Some(_), Some(last)) = (found.peek(), last) {
        metadata["continue"] = format!("{at}/{}/{}", last.namespace, last.name).into();
    }
    let kind = &served.resource.kind;
    let version = served.api_version();
    Ok(Bytes::from(format!(
        "{{\"apiVersion\":\"{version}\",\"items\":[{items}],\"kind\":\"{kind}List\",\"metadata\":{metadata}}}"
    )))
}
