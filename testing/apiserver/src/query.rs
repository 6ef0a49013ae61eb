//! A request's query.

use std::collections::BTreeMap;

use crate::failure::Failure;
use crate::select::Selector;

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
            text => text
                .parse()
                .map_err(|_| Failure::new(400, format!("{name}: Invalid value: {text:?}"))),
        }
    }

    pub(crate) fn selector(&self) -> Result<Selector, Failure> {
        Selector::parse(self.get("fieldSelector"), self.get("labelSelector"))
    }
}
