//! The schema of a resource, as a CustomResourceDefinition has it: what an object may contain, and how server-side apply merges it.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

/// A node of a schema. Where it says nothing, every value is right, objects are merged member by member and lists are replaced whole.
#[derive(Debug, Default)]
pub struct Schema {
    pub(crate) form: Form,
    pub(crate) nullable: bool,
    /// Members that the schema does not name are kept.
    pub(crate) open: bool,
    /// Server-side apply: one value, with one owner.
    pub(crate) atomic: bool,
    pattern: Option<Regex>,
    choices: Vec<Value>,
}

#[derive(Debug, Default)]
pub(crate) enum Form {
    #[default]
    Any,
    Text,
    Integer,
    Number,
    Boolean,
    IntOrText,
    Object {
        members: BTreeMap<String, Schema>,
        /// The schema of every member that is not named.
        others: Option<Box<Schema>>,
        required: Vec<String>,
    },
    List {
        items: Box<Schema>,
        merged: Merged,
    },
}

/// How a list is merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Merged {
    Whole,
    /// Its items are values, each there once.
    Set,
    /// Its items are objects that these members tell apart.
    By(Vec<String>),
}

/// The schema of anything without one.
pub(crate) static ANY: Schema = Schema {
    form: Form::Any,
    nullable: true,
    open: true,
    atomic: false,
    pattern: None,
    choices: Vec::new(),
};

impl Schema {
    /// From an `openAPIV3Schema`.
    ///
    /// # Errors
    /// A `type` that OpenAPI does not have, or a `pattern` that cannot be read.
    pub fn read(from: &Value) -> Result<Self, String> {
        let words = |name: &str| -> Vec<String> {
            let all = from[name].as_array().into_iter().flatten().filter_map(Value::as_str);
            all.map(str::to_owned).collect()
        };
        let open = from["x-kubernetes-preserve-unknown-fields"] == true;
        let form = match from["type"].as_str() {
            _ if from["x-kubernetes-int-or-string"] == true => Form::IntOrText,
            Some("string") => Form::Text,
            Some("integer") => Form::Integer,
            Some("number") => Form::Number,
            Some("boolean") => Form::Boolean,
            Some("object") => {
                let members = from["properties"].as_object().into_iter().flatten();
                Form::Object {
                    members: members
                        .map(|(name, of)| Ok((name.clone(), Self::read(of)?)))
                        .collect::<Result<_, String>>()?,
                    others: match &from["additionalProperties"] {
                        Value::Null | Value::Bool(false) => None,
                        of => Some(Box::new(Self::read(of)?)),
                    },
                    required: words("required"),
                }
            }
            Some("array") => Form::List {
                items: Box::new(Self::read(&from["items"])?),
                merged: match from["x-kubernetes-list-type"].as_str() {
                    Some("map") => Merged::By(words("x-kubernetes-list-map-keys")),
                    Some("set") => Merged::Set,
                    _ => Merged::Whole,
                },
            },
            None => Form::Any,
            Some(other) => return Err(format!("a schema of type {other}")),
        };
        Ok(Self {
            open: open || matches!(form, Form::Any),
            nullable: from["nullable"] == true,
            atomic: from["x-kubernetes-map-type"] == "atomic",
            pattern: from["pattern"]
                .as_str()
                .map(|text| Regex::new(text).map_err(|error| format!("pattern {text}: {error}")))
                .transpose()?,
            choices: from["enum"].as_array().cloned().unwrap_or_default(),
            form,
        })
    }

    /// The schema of a member, whether it is named or not.
    pub(crate) fn member(&self, name: &str) -> &Self {
        match &self.form {
            Form::Object { members, others, .. } => members.get(name).or(others.as_deref()).unwrap_or(&ANY),
            _ => &ANY,
        }
    }

    pub(crate) fn items(&self) -> &Self {
        match &self.form {
            Form::List { items, .. } => items,
            _ => &ANY,
        }
    }

    pub(crate) fn merged(&self) -> &Merged {
        match &self.form {
            Form::List { merged, .. } => merged,
            _ => &Merged::Whole,
        }
    }

    /// Where an object violates the schema, in the words of the API server's validation.
    pub fn faults(&self, object: &Value) -> Vec<String> {
        let mut found = Vec::new();
        self.check(object, "", &mut found);
        found
    }

    fn check(&self, value: &Value, place: &str, found: &mut Vec<String>) {
        if value.is_null() && (self.nullable || matches!(self.form, Form::Any)) {
            return;
        }
        let expected = match (&self.form, value) {
            (Form::Text, Value::String(_)) | (Form::Boolean, Value::Bool(_)) | (Form::Number, Value::Number(_)) => None,
            (Form::IntOrText, Value::String(_)) | (Form::Any, _) => None,
            (Form::Integer | Form::IntOrText, Value::Number(number)) if number.is_i64() || number.is_u64() => None,
            (Form::Object { .. }, Value::Object(_)) | (Form::List { .. }, Value::Array(_)) => None,
            (Form::Text, _) => Some("string"),
            (Form::Boolean, _) => Some("boolean"),
            (Form::Number, _) => Some("number"),
            (Form::Integer, _) => Some("integer"),
            (Form::IntOrText, _) => Some("integer,string"),
            (Form::Object { .. }, _) => Some("object"),
            (Form::List { .. }, _) => Some("array"),
        };
        if let Some(expected) = expected {
            let is = kind(value);
            found.push(format!(
                "{}: Invalid value: \"{is}\": {} in body must be of type {expected}: \"{is}\"",
                shown(place),
                shown(place)
            ));
            if expected == "integer" && is == "number" {
                let place = shown(place);
                found.push(format!(
                    "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in {place}"
                ));
            }
            return;
        }
        if let (Some(pattern), Value::String(text)) = (&self.pattern, value)
            && !pattern.is_match(text)
        {
            found.push(format!(
                "{0}: Invalid value: {value}: {0} in body should match '{pattern}'",
                shown(place)
            ));
        }
        if !self.choices.is_empty() && !self.choices.contains(value) {
            let choices: Vec<String> = self.choices.iter().map(Value::to_string).collect();
            let place = shown(place);
            let choices = choices.join(", ");
            found.push(format!(
                "{place}: Unsupported value: {value}: supported values: {choices}"
            ));
        }
        match (&self.form, value) {
            (Form::Object { required, .. }, Value::Object(map)) => {
                for name in required.iter().filter(|name| !map.contains_key(*name)) {
                    found.push(format!("{}: Required value", joined(place, name)));
                }
                for (name, value) in map {
                    self.member(name).check(value, &joined(place, name), found);
                }
            }
            (Form::List { items, merged }, Value::Array(list)) => {
                for (at, item) in list.iter().enumerate() {
                    items.check(item, &format!("{place}[{at}]"), found);
                }
                if *merged != Merged::Whole {
                    let keys: Vec<String> = list.iter().map(|item| key_of(merged, item)).collect();
                    for (at, key) in keys.iter().enumerate().filter(|(at, key)| keys[..*at].contains(key)) {
                        found.push(format!("{place}[{at}]: Duplicate value: {}", &key[2..]));
                    }
                }
            }
            _ => {}
        }
    }

    /// Drops the members that the schema does not have, and null where it may not be, as the API server does of every custom resource.
    /// What was dropped as unknown is returned, by place.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.cut(object, "", &mut unknown);
        unknown
    }

    fn cut(&self, value: &mut Value, place: &str, unknown: &mut Vec<String>) {
        match (&self.form, value) {
            (Form::Object { members, others, .. }, Value::Object(map)) => {
                map.retain(|name, value| {
                    let Some(schema) = members.get(name).or(others.as_deref()) else {
                        if !self.open {
                            unknown.push(joined(place, name));
                        }
                        return self.open;
                    };
                    if value.is_null() && !schema.nullable && !matches!(schema.form, Form::Any) {
                        return false;
                    }
                    schema.cut(value, &joined(place, name), unknown);
                    true
                });
            }
            (Form::List { items, .. }, Value::Array(list)) => {
                for (at, item) in list.iter_mut().enumerate() {
                    items.cut(item, &format!("{place}[{at}]"), unknown);
                }
            }
            _ => {}
        }
    }
}

/// How an item of a merged list is told from the others, as `fieldsV1` writes it.
pub(crate) fn key_of(merged: &Merged, item: &Value) -> String {
    match merged {
        Merged::By(names) => {
            let members = names
                .iter()
                .filter_map(|name| Some((name.clone(), item.get(name)?.clone())));
            format!("k:{}", Value::Object(members.collect::<Map<_, _>>()))
        }
        Merged::Set | Merged::Whole => format!("v:{item}"),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn joined(place: &str, name: &str) -> String {
    match place {
        "" => name.to_owned(),
        place => format!("{place}.{name}"),
    }
}

fn shown(place: &str) -> &str {
    match place {
        "" => "<nil>",
        place => place,
    }
}
