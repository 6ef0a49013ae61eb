//! A node's claim object: the custom resource NodeClaim, of the node's name.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stelia_koordinator::report::meta::ObjectMeta;
use stelia_kubelet::Uid;

use super::{Api, JSON, ServerFailure, escape};
use crate::reservations::{Claim, NodeName, Rewrite, Version};

pub(super) const PATH: &str = "/apis/stelia.io/v1alpha1/nodeclaims";

/// The Node, so that its claim object is deleted with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A claim as it is stored in the object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredClaim {
    uid: String,
    /// `namespace/name`.
    pod: String,
    /// 32 hexadecimal digits.
    attempt: String,
    pod_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<String>,
}

#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    claims: Vec<StoredClaim>,
}

/// The content of a claim object.
#[derive(Debug)]
pub struct Claims {
    pub node: NodeName,
    pub version: Version,
    pub claims: Vec<Claim>,
}

/// Parses a claim object.
///
/// # Errors
/// It is not one. Only this program has the right to write claim objects, so unknown content is not skipped.
pub fn read(text: &str) -> Result<Claims, String> {
    claims_of(serde_json::from_str(text).map_err(|cause| cause.to_string())?)
}

fn claims_of(object: Object) -> Result<Claims, String> {
    let claims = object.spec.claims.iter().map(|claim| {
        let wrong = |what: &str| format!("the claim of {}: {what}", claim.pod);
        Ok(Claim {
            pod: Uid::parse(&claim.uid).ok_or_else(|| wrong("its UID"))?,
            name: claim.pod.as_str().into(),
            attempt: u128::from_str_radix(&claim.attempt, 16).map_err(|_| wrong("its attempt"))?,
            version: claim.pod_version.parse().map_err(|_| wrong("its pod's version"))?,
            cpus: claim
                .cpus
                .as_ref()
                .map(|cpus| cpus.parse())
                .transpose()
                .map_err(|_| wrong("its CPUs"))?,
        })
    });
    Ok(Claims {
        node: object.metadata.name.as_str().into(),
        version: object
            .metadata
            .resource_version
            .parse()
            .map_err(|_| "its resourceVersion".to_owned())?,
        claims: claims.collect::<Result<_, String>>()?,
    })
}

fn claim(claim: &Claim) -> StoredClaim {
    StoredClaim {
        uid: claim.pod.to_string(),
        pod: claim.name.to_string(),
        attempt: format!("{:032x}", claim.attempt),
        pod_version: claim.version.to_string(),
        cpus: claim.cpus.as_ref().map(ToString::to_string),
    }
}

impl Api {
    /// Writes a node's claims; the answer is the object's new version.
    ///
    /// # Errors
    /// [`ServerFailure::Conflict`] or [`ServerFailure::Missing`]: it is not as it was read.
    pub async fn write_claims(
        &self,
        node: &str,
        rewrite: &Rewrite,
        owner: Option<&Owner>,
        writer: &str,
    ) -> Result<Version, ServerFailure> {
        let claims: Vec<StoredClaim> = rewrite.claims.iter().map(claim).collect();
        let mut body = json!({
            "apiVersion": "stelia.io/v1alpha1",
            "kind": "NodeClaim",
            "metadata": {"name": node, "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
            "spec": {"writer": writer, "claims": claims},
        });
        let written = match rewrite.base {
            None => self.call(Method::POST, PATH, Some((JSON, &body))).await?,
            Some(version) => {
                body["metadata"]["resourceVersion"] = version.to_string().into();
                let path = format!("{PATH}/{}", escape(node));
                self.call(Method::PUT, &path, Some((JSON, &body))).await?
            }
        };
        version_of(&written)
    }

    /// Reads a node's claims; `None` where there is no object.
    ///
    /// # Errors
    /// It could not be read.
    pub async fn read_claims(&self, node: &str) -> Result<Option<Claims>, ServerFailure> {
        match self.call(Method::GET, &format!("{PATH}/{}", escape(node)), None).await {
            Ok(object) => {
                let object = serde_json::from_value(object).map_err(ServerFailure::unanswered)?;
                claims_of(object).map(Some).map_err(ServerFailure::unanswered)
            }
            Err(ServerFailure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

fn version_of(object: &Value) -> Result<Version, ServerFailure> {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse()
        .map_err(|_| ServerFailure::unanswered(format!("resourceVersion {text:?}")))
}
