//! Dictionaries `a{sv}` of the contract as serde structs: a field is an entry, by its name.

use std::fmt::Display;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::Value;
use zbus::Variant;

use crate::client::{Dict, OwnedDict};
use crate::{Error, ErrorKind};

/// A dictionary of these entries.
///
/// # Errors
/// `Failed`: a descriptor cannot be duplicated.
pub fn dict<const N: usize>(entries: [(&str, Variant<'static>); N]) -> Result<OwnedDict, Error> {
    let own = |(name, value): (&str, Variant<'static>)| Ok((name.to_owned(), value.try_into_owned()?));
    entries.into_iter().map(own).collect()
}

/// A struct as a dictionary: numbers are `u`, lists are of numbers (`au`), and what is `None` is left out.
///
/// # Errors
/// `Failed`: a value of another type.
pub fn to_dict(value: &impl Serialize) -> Result<OwnedDict, Error> {
    let failed = |cause: &dyn Display| ErrorKind::Failed.because(format!("write a dictionary: {cause}"));
    let Value::Object(fields) = serde_json::to_value(value).map_err(|cause| failed(&cause))? else {
        return Err(failed(&"the value is not a struct"));
    };
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    let entry = |(name, value)| {
        let value = variant(value).ok_or_else(|| failed(&format!("{name:?} is of another type")))?;
        Ok((name, value.try_into_owned()?))
    };
    given.map(entry).collect()
}

fn variant(value: Value) -> Option<Variant<'static>> {
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    Some(match value {
        Value::Bool(yes) => yes.into(),
        Value::Number(_) => number(&value)?.into(),
        Value::String(text) => text.into(),
        Value::Array(list) => list.iter().map(number).collect::<Option<Vec<u32>>>()?.into(),
        Value::Null | Value::Object(_) => return None,
    })
}

/// The same dictionary as a proxy takes it; more can be added.
pub fn borrowed(dict: &OwnedDict) -> Dict<'_> {
    dict.iter()
        .map(|(name, value)| (name.as_str(), (**value).clone()))
        .collect()
}

/// The options of a call as a struct, or as a tuple of structs that each take their own. Those named in `others` are
/// allowed and not read here.
///
/// # Errors
/// `InvalidArgument`: an option of another name, type or value.
pub fn from_dict<T: DeserializeOwned>(options: &OwnedDict, others: &[&str]) -> Result<T, Error> {
    let invalid = |text: String| ErrorKind::InvalidArgument.because(text);
    let mut reader = Reader {
        options,
        known: Vec::new(),
    };
    let read = T::deserialize(&mut reader).map_err(|error| invalid(format!("option {}", error.0)))?;
    only_known(options, |name| reader.known.contains(&name) || others.contains(&name))?;
    Ok(read)
}

/// Refuses options that a call does not have.
pub fn only_known(options: &OwnedDict, is_known: impl Fn(&str) -> bool) -> Result<(), Error> {
    match options.keys().find(|name| !is_known(name)) {
        Some(unknown) => {
            let shown: String = unknown.chars().take(64).collect();
            Err(ErrorKind::InvalidArgument.because(format!("option {shown:?} is not known")))
        }
        None => Ok(()),
    }
}

/// What is wrong with an option; [`Entries`] puts its name in front.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OptionError(String);

impl de::Error for OptionError {
    fn custom<T: Display>(cause: T) -> Self {
        Self(format!(": {cause}"))
    }

    fn unknown_variant(_: &str, allowed: &'static [&'static str]) -> Self {
        Self(format!(" must be one of {}", allowed.join(", ")))
    }
}

struct Reader<'a> {
    options: &'a OwnedDict,
    /// The names of the fields that were asked for.
    known: Vec<&'static str>,
}

impl<'a> Deserializer<'a> for &mut Reader<'a> {
    type Error = OptionError;

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, OptionError> {
        self.known.extend(fields);
        visitor.visit_map(Entries {
            options: self.options,
            fields: fields.iter(),
            current: None,
        })
    }

    fn deserialize_tuple<V: Visitor<'a>>(self, _: usize, visitor: V) -> Result<V::Value, OptionError> {
        visitor.visit_seq(self)
    }

    fn deserialize_any<V: Visitor<'a>>(self, _: V) -> Result<V::Value, OptionError> {
        Err(de::Error::custom("options are read as structs only"))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple_struct map enum identifier ignored_any
    }
}

/// A tuple: each of its structs takes its own options.
impl<'a> SeqAccess<'a> for &mut Reader<'a> {
    type Error = OptionError;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, OptionError> {
        seed.deserialize(&mut **self).map(Some)
    }
}

/// The options that are fields of a struct.
struct Entries<'a> {
    options: &'a OwnedDict,
    fields: std::slice::Iter<'static, &'static str>,
    current: Option<(&'static str, &'a Variant<'static>)>,
}

impl<'a> MapAccess<'a> for Entries<'a> {
    type Error = OptionError;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, OptionError> {
        let given = |name: &&'static str| Some((*name, &**self.options.get(*name)?));
        self.current = self.fields.find_map(given);
        let name = self.current.map(|(name, _)| BorrowedStrDeserializer::new(name));
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, OptionError> {
        let (name, value) = self
            .current
            .ok_or_else(|| de::Error::custom("a value before its name"))?;
        let named = |OptionError(cause)| OptionError(format!("{name:?}{cause}"));
        seed.deserialize(OptionValue(value)).map_err(named)
    }
}

struct OptionValue<'a>(&'a Variant<'static>);

impl OptionValue<'_> {
    fn is_not(&self, expected: &str) -> OptionError {
        OptionError(format!(" must be {expected}, not {}", self.0.value_signature()))
    }
}

impl<'a> Deserializer<'a> for OptionValue<'a> {
    type Error = OptionError;

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, OptionError> {
        visitor.visit_some(self)
    }

    fn deserialize_u32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, OptionError> {
        match self.0 {
            Variant::U32(number) => visitor.visit_u32(*number),
            _ => Err(self.is_not("a number (u)")),
        }
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, OptionError> {
        match self.0 {
            Variant::Str(text) => visitor.visit_str(text.as_str()),
            _ => Err(self.is_not("a string (s)")),
        }
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, OptionError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_any<V: Visitor<'a>>(self, _: V) -> Result<V::Value, OptionError> {
        Err(self.is_not("a number (u) or a string (s)"))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        bool i8 i16 i32 i64 u8 u16 u64 f32 f64 char bytes byte_buf unit unit_struct newtype_struct seq tuple tuple_struct map
        struct enum identifier ignored_any
    }
}
