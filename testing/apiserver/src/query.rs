//! A request's query.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::failure::Failure;

#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        ["1", "true"].contains(&self.get(name))
    }

    /// 0 where there is none.
    pub(crate) fn number(&self, name: &str) -> Result<u64, Failure> {
        match self.get(name) {
            "" => Ok(0),
            text => (text.parse()).map_err(|_| Failure::new(400, format!("{name}: Invalid value: {text:?}"))),
        }
    }

    pub(crate) fn selector(&self) -> Result<Selector, Failure> {
        if !self.get("labelSelector").is_empty() {
            return Err(Failure::new(400, "labels are not selected by here"));
        }
        Selector::parse(self.get("fieldSelector"))
    }
}

/// What a list or watch asks for: fields that are, or are not, of a value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector(Vec<Term>);

#[derive(Debug, Clone)]
struct Term {
    /// The members that lead to the value, as a JSON pointer.
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    pub(crate) fn parse(fields: &str) -> Result<Self, Failure> {
        let terms = fields.split(',').filter(|term| !term.is_empty()).map(|term| {
            let parts = term.split_once("!=").or_else(|| term.split_once('='));
            let wrong = || Failure::new(400, format!("invalid selector: {fields:?}"));
            let (name, value) = parts.ok_or_else(wrong)?;
            if !["metadata.name", "spec.nodeName", "status.phase"].contains(&name) {
                return Err(Failure::new(400, format!("field label not supported: {name}")));
            }
            Ok(Term {
                path: format!("/{}", name.replace('.', "/")),
                value: value.to_owned(),
                equal: !term.contains("!="),
            })
        });
        terms.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn takes_all(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn takes(&self, object: &Value) -> bool {
        self.0.iter().all(|term| {
            let found = object.pointer(&term.path).and_then(Value::as_str).unwrap_or_default();
            (found == term.value) == term.equal
        })
    }
}
