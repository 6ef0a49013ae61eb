//! `fieldSelector` and `labelSelector`.

use serde_json::Value;

use crate::failure::Failure;

/// What a list or watch asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone)]
struct Term {
    /// The members that lead to the value.
    path: Vec<String>,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Is(String),
    IsNot(String),
    There,
    NotThere,
}

impl Selector {
    /// # Errors
    /// Fields that the API server cannot select by; sets of labels (`in`, `notin`), which this server lacks.
    pub(crate) fn parse(fields: &str, labels: &str) -> Result<Self, Failure> {
        let mut terms = Vec::new();
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let (name, test) =
                compared(term).ok_or_else(|| Failure::new(400, format!("invalid selector: {fields:?}")))?;
            if ![
                "metadata.name",
                "metadata.namespace",
                "spec.nodeName",
                "spec.schedulerName",
                "status.phase",
            ]
            .contains(&name)
            {
                return Err(Failure::new(400, format!("field label not supported: {name}")));
            }
            let path = name.split('.').map(str::to_owned).collect();
            terms.push(Term { path, test });
        }
        for term in labels.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (name, test) = match (compared(term), term.strip_prefix('!')) {
                (Some(found), _) => found,
                (None, Some(name)) => (name, Test::NotThere),
                (None, None) if term.contains(['(', ' ']) => {
                    return Err(Failure::new(
                        400,
                        format!("sets of labels are not known here: {labels:?}"),
                    ));
                }
                (None, None) => (term, Test::There),
            };
            let path = ["metadata", "labels", name].map(str::to_owned).to_vec();
            terms.push(Term { path, test });
        }
        Ok(Self { terms })
    }

    pub(crate) fn takes_all(&self) -> bool {
        self.terms.is_empty()
    }

    pub(crate) fn takes(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let found = term.path.iter().fold(object, |at, name| &at[name.as_str()]).as_str();
            match &term.test {
                Test::Is(wanted) => found.unwrap_or_default() == wanted,
                Test::IsNot(unwanted) => found.unwrap_or_default() != unwanted,
                Test::There => found.is_some(),
                Test::NotThere => found.is_none(),
            }
        })
    }
}

fn compared(term: &str) -> Option<(&str, Test)> {
    if let Some((name, value)) = term.split_once("!=") {
        return Some((name.trim(), Test::IsNot(value.trim().into())));
    }
    let (name, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((name.trim(), Test::Is(value.trim().into())))
}
