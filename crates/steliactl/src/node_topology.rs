//! `node-topology`: the node's NodeResourceTopology object, once or whenever it changes.

use std::io::{self, Write};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

use super::cli::{Json, Output};
use super::client::{Client, Failure};
use super::signals::{self, Received, Signals, is_read, until};
use super::view;

/// How often it is checked whether standard output still has a reader.
const LOOK: Duration = Duration::from_secs(1);
/// How often the object is requested without a signal: no signal reports huge pages and kubelet's configuration.
const AUDIT: Duration = Duration::from_secs(30);
/// One change causes several signals.
const SETTLE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Yaml,
    /// JSON, pretty or short.
    Json(Json),
}

impl Form {
    pub(crate) fn of(output: Output, json: Json) -> Self {
        match (output, json) {
            (Output::Yaml, Json::Off) => Self::Yaml,
            (_, json) => Self::Json(json),
        }
    }

    fn document(self, object: &Value) -> Result<String, Failure> {
        match self {
            Self::Json(json) => Ok(view::to_json(json, object)),
            Self::Yaml => yaml(object),
        }
    }

    fn next_document(self, object: &Value) -> Result<String, Failure> {
        match self {
            Self::Json(_) => Ok(view::to_json(Json::Short, object)),
            Self::Yaml => Ok(format!("---\n{}", yaml(object)?)),
        }
    }
}

/// Annotations are JSON in a string: each stays on one line, whatever its length. Strings that YAML 1.1 would read as
/// numbers or booleans are quoted, because Kubernetes reads YAML 1.1.
fn yaml(object: &Value) -> Result<String, Failure> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(object, options)
        .map_err(|cause| Failure::Other(format!("write the object as YAML: {cause}")))
}

pub(crate) struct TopologyOptions<'a> {
    pub form: Form,
    pub api_version: &'a str,
    /// The Node's name, where it differs from the host's.
    pub node_name: Option<&'a str>,
}

impl TopologyOptions<'_> {
    async fn object(&self, client: &Client, start: bool) -> Result<Value, Failure> {
        let text = client.node_topology(self.api_version, self.node_name, start).await?;
        serde_json::from_str(&text).map_err(|cause| Failure::Other(format!("the daemon's answer is no JSON: {cause}")))
    }
}

/// Prints the object once.
///
/// # Errors
/// The daemon refuses the call.
pub(crate) async fn print(client: &Client, asked: &TopologyOptions<'_>) -> Result<String, Failure> {
    asked.form.document(&asked.object(client, true).await?)
}

/// The object without the amounts of free memory, which change all the time.
fn lasting(mut object: Value) -> Value {
    let zones = object.get_mut("zones").and_then(Value::as_array_mut);
    let resources = zones
        .into_iter()
        .flatten()
        .filter_map(|zone| zone.get_mut("resources")?.as_array_mut());
    for resource in resources.flatten() {
        if resource["name"] == "memory"
            && let Some(fields) = resource.as_object_mut()
        {
            fields.remove("available");
        }
    }
    object
}

/// Prints the object, and again whenever it changed, until interrupted or until standard output has no reader. While
/// the daemon does not answer, only the reason is printed, on standard error; the daemon is not started again.
///
/// # Errors
/// The first call is refused, the connection ended, or standard output cannot be written.
pub(crate) async fn watch(client: &Client, asked: &TopologyOptions<'_>) -> Result<String, Failure> {
    let mut interrupt = until(SignalKind::interrupt())?;
    let mut terminate = until(SignalKind::terminate())?;
    // Before the first call, so that no change in between is missed.
    let mut signals = Signals::subscribe(client.connection()).await?;
    let mut answer = asked.object(client, true).await.map(Some)?;
    let mut printed = None;
    let mut complaint = None;
    let mut look = tokio::time::interval(LOOK);
    loop {
        if let Some(object) = answer.take() {
            complaint = None;
            let new = Some(lasting(object.clone()));
            if new != printed {
                if !signals::print(&asked.form.next_document(&object)?)? {
                    return Ok(String::new());
                }
                printed = new;
            }
        }
        let audit = tokio::time::sleep_until(Instant::now() + AUDIT);
        tokio::pin!(audit);
        let runs = loop {
            tokio::select! {
                _ = interrupt.recv() => return Ok(String::new()),
                _ = terminate.recv() => return Ok(String::new()),
                _ = look.tick() => if !is_read() { return Ok(String::new()) },
                () = &mut audit => break signals.runs(),
                event = signals.next() => {
                    let Some(event) = event else { return Err(Failure::Other("the connection ended".to_owned())) };
                    tokio::time::sleep(SETTLE).await;
                    // One call answers all the signals that have come meanwhile.
                    let others = std::iter::from_fn(|| signals.next().now_or_never().flatten());
                    let ends = |event: Received| matches!(event, Received::Daemon { runs: false });
                    if std::iter::once(event).chain(others).any(ends) {
                        complain(&mut complaint, "steliad does not run any more: waiting for it");
                    }
                    break signals.runs();
                }
            }
        };
        if runs {
            answer = match asked.object(client, false).await {
                Ok(object) => Some(object),
                Err(failure) => {
                    complain(&mut complaint, &failure.to_string());
                    None
                }
            };
        }
    }
}

/// Prints on standard error why there is no object now, once per reason.
fn complain(last: &mut Option<String>, reason: &str) {
    if last.as_deref() != Some(reason) {
        // Standard error may be closed too.
        let _ = writeln!(io::stderr(), "steliactl: {}", view::printable(reason));
        *last = Some(reason.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        let annotation = json!(vec![json!({"uid": "3ceda12c", "cpuset": "2-3,5"}); 40]).to_string();
        let resource = |name: &str, available: &str| json!({"name": name, "capacity": "16Gi", "available": available});
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "metadata": {"name": "1e3", "annotations": {"a/b": annotation, "c": "on", "d": "2001-01-01", "e": "12:30:45", "f": "- x: y # z\n\u{7f}\u{85}"}},
            "topologyPolicies": [],
            "zones": [{"name": "node-0", "costs": [{"name": "node-0", "value": 10}], "resources": [resource("cpu", "4"), resource("memory", "1Gi")]}],
        })
    }

    #[test]
    fn yaml_says_what_json_says() {
        let text = Form::Yaml.document(&object()).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), object(), "{text}");
        // Without quotes YAML 1.1, which Kubernetes reads, takes these for something other than strings.
        for quoted in ["1e3", "on", "2001-01-01", "12:30:45", "4"] {
            let plain = |line: &str| line.trim_end().ends_with(&format!(" {quoted}"));
            assert!(!text.lines().any(plain), "{quoted}: {text}");
        }
        assert!(
            text.lines().all(|line| !line.contains(|c: char| c.is_control())),
            "{text:?}"
        );
    }

    #[test]
    fn documents_are_told_apart() {
        let yaml = Form::Yaml.next_document(&object()).unwrap().repeat(2);
        assert_eq!(yaml.lines().filter(|line| *line == "---").count(), 2);
        let short = Form::of(Output::Json, Json::Off).next_document(&object()).unwrap();
        assert_eq!(short.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&short).unwrap(), object());
        assert_eq!(Form::of(Output::Yaml, Json::Short), Form::Json(Json::Short));
        let pretty = Form::of(Output::Json, Json::Off).document(&object()).unwrap();
        assert!(pretty.lines().count() > 20, "{pretty}");
    }

    #[test]
    fn free_memory_alone_is_no_change() {
        let with = |pointer: &str| {
            let mut object = object();
            *object.pointer_mut(pointer).unwrap() = "2".into();
            lasting(object)
        };
        assert_eq!(with("/zones/0/resources/1/available"), lasting(object()));
        assert_ne!(with("/zones/0/resources/0/available"), lasting(object()));
        assert_ne!(with("/zones/0/resources/1/capacity"), lasting(object()));
    }
}
