//! Fields whose JSON is other members than their own.

/// An optional text; empty where there is none.
pub(crate) mod or_empty {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text.as_deref().unwrap_or_default())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        String::deserialize(deserializer).map(|text| Some(text).filter(|text| !text.is_empty()))
    }
}

/// The members `pod_namespace` and `pod_name`, empty where they are not known.
pub(crate) mod pod_name {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use stelia_kubelet::PodName;

    #[derive(Default, Serialize, Deserialize)]
    struct Members<'a> {
        pod_namespace: Cow<'a, str>,
        pod_name: Cow<'a, str>,
    }

    pub(crate) fn serialize<S: Serializer>(name: &Option<PodName>, serializer: S) -> Result<S::Ok, S::Error> {
        let members = name.as_ref().map(|name| Members {
            pod_namespace: name.namespace().into(),
            pod_name: name.name().into(),
        });
        members.unwrap_or_default().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PodName>, D::Error> {
        let members = Members::deserialize(deserializer)?;
        Ok(PodName::new(&members.pod_namespace, &members.pod_name))
    }
}
