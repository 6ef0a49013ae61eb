//! `export topology`: the node's NodeResourceTopology object.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use serde_json::Value;
use stelia_api::dict::{borrowed, to_dict};
use stelia_koordinator::report::ApiVersion;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::Profile;

use crate::shared::daemon::{Client, Failure, parse, remedy_of_file};
use crate::shared::output::{self, OutputOptions};

/// The annotation with what is wrong with an object: a list of texts as JSON.
const WARNINGS: &str = "isolation.stelia.io/warnings";

#[derive(Debug, Clone, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
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
pub(crate) async fn run(
    client: &Client,
    asked: &TopologyOptions,
    output_options: OutputOptions,
) -> Result<String, Failure> {
    let options = to_dict(asked).map_err(|cause| Failure::Other(cause.to_string()))?;
    let call = client.manager().node_topology(borrowed(&options));
    let text = client.answer_in_time(call).await.map_err(|failure| {
        let fix = remedy_of_file(&failure.to_string());
        fix.map_or(failure.clone(), |fix| Failure::WithFix(failure.to_string(), fix))
    })?;
    let object = parse("NodeTopology", &text)?;
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
    use serde_json::json;

    use super::*;
    use crate::tests::fixtures::is_refused;

    #[test]
    fn the_warnings_of_an_object_are_found() {
        let with = |annotation: Value| warnings(&json!({"metadata": {"annotations": {WARNINGS: annotation}}}));
        assert_eq!(with(r#"["a","b"]"#.into()), ["a", "b"]);
        assert!(with("no list".into()).is_empty() && warnings(&json!({})).is_empty());
    }

    #[test]
    fn what_is_asked_for_is_one_of_what_there_is() {
        let refused = |line: &[&str]| is_refused(&[&["export", "topology"], line].concat());
        assert!(!refused(&["--profile", "nrt", "--pods-fingerprint", "all"]));
        assert!(refused(&["--profile", "lean"]) && refused(&["--pods-fingerprint", "some"]));
    }
}
