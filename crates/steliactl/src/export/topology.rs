//! `export topology`: the node's NodeResourceTopology object.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::Profile;

use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{self, OutputOptions};

/// The annotation with what is wrong with an object: a list of texts as JSON.
const WARNINGS: &str = "isolation.stelia.io/warnings";

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
}

/// Prints the object, and on standard error what it says is wrong with it.
///
/// # Errors
/// The daemon refuses the call.
pub(crate) async fn run(
    client: &Client,
    asked: &TopologyOptions,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let options = [
        ("profile", &asked.profile),
        ("api-version", &asked.api_version),
        ("pods-fingerprint", &asked.pods_fingerprint),
        ("node-name", &asked.node_name),
    ];
    let given = options
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let text = client.node_topology(given).await?;
    let read = serde_json::from_str(&text);
    let object = read.map_err(|cause| Failure::Other(format!("the daemon's answer is no JSON: {cause}")))?;
    warnings(&object).iter().for_each(|text| output::note(text));
    Ok(output_options.form.write(&object)?)
}

/// What the object says is wrong with it.
fn warnings(object: &Value) -> Vec<String> {
    let annotation = object["metadata"]["annotations"][WARNINGS].as_str();
    let read = annotation.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command, Export};
    use crate::shared::output::Form;

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
    fn yaml_is_the_form_without_an_option() {
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
