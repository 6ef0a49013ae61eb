//! `export topology`: the node's NodeResourceTopology object, once or whenever it changes.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use futures_util::FutureExt;
use serde_json::Value;
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::Profile;

use crate::shared::daemon::signals::{self, End, Received, Signals};
use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{self, Form, OutputOptions};

/// How often the object is requested without a signal: no signal reports huge pages and kubelet's configuration.
const REQUEST_INTERVAL: Duration = Duration::from_secs(30);
/// The annotation with what is wrong with an object: a list of texts as JSON.
const WARNINGS: &str = "isolation.stelia.io/warnings";
/// One change causes several signals.
const SETTLE_TIME: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Args)]
pub(crate) struct TopologyOptions {
    /// The consumer of the object: koordinator, also read by plan; nrt, for kube-scheduler's NodeResourceTopologyMatch;
    /// stelia, which is nrt with one more attribute. Default: koordinator
    #[arg(long, value_name = "PROFILE", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(Profile::ALL.map(Profile::name)))]
    profile: Option<String>,
    /// The version of topology.node.k8s.io. Default: v1alpha1 for the profile koordinator, v1alpha2 for the others
    #[arg(long, value_name = "VERSION",
          value_parser = PossibleValuesParser::new(ApiVersion::ALL.map(ApiVersion::name)))]
    api_version: Option<String>,
    /// The pods that the fingerprint in the profiles nrt and stelia covers. Default: with-exclusive-resources
    #[arg(long, value_name = "METHOD",
          value_parser = PossibleValuesParser::new(Method::ALL.map(Method::name)))]
    pods_fingerprint: Option<String>,
    /// The name of the Node. Default: the name that kubelet uses, from its --hostname-override or the host name
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Print the object again whenever it changes, until interrupted, as YAML documents or as one JSON object per line
    #[arg(short, long)]
    watch: bool,
}

impl TopologyOptions {
    async fn object(&self, client: &Client, start: bool) -> Result<Value, Failure> {
        let options = [
            ("profile", &self.profile),
            ("api-version", &self.api_version),
            ("pods-fingerprint", &self.pods_fingerprint),
            ("node-name", &self.node_name),
        ];
        let given = options
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let text = client.node_topology(given, start).await?;
        serde_json::from_str(&text).map_err(|cause| Failure::Other(format!("the daemon's answer is no JSON: {cause}")))
    }
}

/// One of many documents.
fn document(form: Form, object: &Value) -> Result<String, Failure> {
    let form = if form == Form::Yaml { form } else { Form::JsonLine };
    Ok(form.divider().to_owned() + &form.write(object)?)
}

/// Prints the object once, or whenever it changed.
///
/// # Errors
/// The daemon refuses the call; see [`watch`].
pub(crate) async fn run(
    client: &Client,
    asked: &TopologyOptions,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let form = output_options.form;
    if asked.watch {
        watch(client, asked, form).await
    } else {
        let object = asked.object(client, true).await?;
        say(&mut Vec::new(), warnings(&object));
        Ok(form.write(&object)?)
    }
}

/// What the object says is wrong with it.
fn warnings(object: &Value) -> Vec<String> {
    let annotation = object["metadata"]["annotations"][WARNINGS].as_str();
    annotation
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Prints on standard error what was not said the last time.
fn say(last: &mut Vec<String>, texts: Vec<String>) {
    texts
        .iter()
        .filter(|text| !last.contains(text))
        .for_each(|text| output::note(text));
    *last = texts;
}

/// Prints the object, and again whenever it changed, until interrupted or until standard output has no reader. While
/// the daemon does not answer, only the reason is printed, on standard error; the daemon is not started again.
///
/// # Errors
/// The first call is refused, the connection ended, or standard output cannot be written.
async fn watch(client: &Client, asked: &TopologyOptions, form: Form) -> Result<String, Failure> {
    let mut end = End::new()?;
    // Before the first call, so that no change in between is missed.
    let mut signals = Signals::subscribe(client.connection()).await?;
    let mut answer = asked.object(client, true).await.map(Some)?;
    let mut printed = None;
    let (mut complaint, mut warned) = (Vec::new(), Vec::new());
    loop {
        if let Some(object) = answer.take() {
            complaint.clear();
            if printed.as_ref() != Some(&object) {
                say(&mut warned, warnings(&object));
                if !signals::print(&document(form, &object)?)? {
                    return Ok(String::new());
                }
                printed = Some(object);
            }
        }
        let runs = tokio::select! {
            () = end.reached() => return Ok(String::new()),
            () = tokio::time::sleep(REQUEST_INTERVAL) => signals.runs(),
            event = signals.next() => {
                let Some(event) = event else { return Err(Failure::Other("the connection ended".to_owned())) };
                tokio::time::sleep(SETTLE_TIME).await;
                // One call answers all the signals that have come meanwhile.
                let others = std::iter::from_fn(|| signals.next().now_or_never().flatten());
                let ends = |event: Received| matches!(event, Received::Daemon { runs: false });
                if std::iter::once(event).chain(others).any(ends) {
                    say(&mut complaint, vec!["steliad does not run any more: waiting for it".to_owned()]);
                }
                signals.runs()
            }
        };
        if runs {
            answer = match asked.object(client, false).await {
                Ok(object) => Some(object),
                Err(failure) => {
                    say(&mut complaint, vec![failure.to_string()]);
                    None
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command, Export};

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
        let text = Form::Yaml.write(&object()).unwrap();
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
        let yaml = document(Form::Yaml, &object()).unwrap().repeat(2);
        assert_eq!(yaml.lines().filter(|line| *line == "---").count(), 2);
        let short = document(Form::Json, &object()).unwrap();
        assert_eq!(short.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&short).unwrap(), object());
        let asked = |line: &[&str]| {
            let cli = Cli::try_parse_from([&["steliactl", "export", "topology"], line].concat()).unwrap();
            match cli.asked() {
                Command::Export(Export::Topology(_)) => cli.output_options().unwrap().form,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(asked(&[]), Form::Yaml);
        assert_eq!(asked(&["-o", "json"]), Form::Json);
        assert_eq!(asked(&["-o", "yaml", "--json=short"]), Form::JsonLine);
        let pretty = Form::Json.write(&object()).unwrap();
        assert!(pretty.lines().count() > 20, "{pretty}");
    }

    #[test]
    fn the_warnings_of_an_object_are_found() {
        assert!(warnings(&object()).is_empty());
        let with = |annotation: Value| {
            let mut object = object();
            object["metadata"]["annotations"][WARNINGS] = annotation;
            warnings(&object)
        };
        assert_eq!(with(r#"["a","b"]"#.into()), ["a", "b"]);
        assert!(with("no list".into()).is_empty());
        assert!(with(Value::Null).is_empty());
    }

    #[test]
    fn what_is_asked_for_is_one_of_what_there_is() {
        let asked = |line: &[&str]| {
            let cli = Cli::try_parse_from([&["steliactl", "export", "topology"], line].concat()).ok()?;
            match cli.asked() {
                Command::Export(Export::Topology(asked)) => Some(asked.clone()),
                other => panic!("{other:?}"),
            }
        };
        let plain = asked(&[]).unwrap();
        // The daemon's defaults are its own.
        assert_eq!(
            (plain.profile, plain.api_version, plain.pods_fingerprint),
            (None, None, None)
        );
        let full = asked(&["--profile", "nrt", "--pods-fingerprint", "all"]).unwrap();
        assert_eq!(full.profile.as_deref(), Some("nrt"));
        assert_eq!(full.pods_fingerprint.as_deref(), Some("all"));
        assert!(asked(&["--profile", "lean"]).is_none());
        assert!(asked(&["--pods-fingerprint", "some"]).is_none());
    }
}
