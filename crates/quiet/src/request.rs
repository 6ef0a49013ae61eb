//! The request on a connection: an order, or the beginning or end of an attribution.
//!
//! An order has no envelope; the field `attribute` tells an attribution.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::order::{Order, Target};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Request {
    Order(Order),
    Attribute { attribute: Attribute },
}

/// Counts who runs on CPUs, from [`Begin`](Self::Begin) to [`Finish`](Self::Finish).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Attribute {
    /// Replaces a count that was begun before.
    Begin(Target),
    /// Ends the count, and asks for its result.
    Finish {
        /// Further own threads; they are only left out if the target's threads were counted each for itself.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        own: BTreeSet<i32>,
    },
}

/// Tells an order from a request for an attribution.
#[derive(Deserialize)]
struct RequestKind {
    attribute: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attributing {
    attribute: Attribute,
}

impl Request {
    /// # Errors
    /// It is not JSON that is understood.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        match serde_json::from_str(text) {
            Ok(RequestKind { attribute: Some(_) }) => {
                let Attributing { attribute } = serde_json::from_str(text)?;
                Ok(Self::Attribute { attribute })
            }
            _ => serde_json::from_str(text).map(Self::Order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_ever_and_an_attribution_by_its_field() {
        let order = Order {
            steer: true,
            ..Order::default()
        };
        let target = Target {
            cpus: "2-3".parse().unwrap(),
            own: [7, 9].into(),
            by_thread: false,
        };
        let of_container = Target {
            by_thread: true,
            ..target.clone()
        };
        let begin = |target| Request::Attribute {
            attribute: Attribute::Begin(target),
        };
        let finish = |own: &[i32]| Request::Attribute {
            attribute: Attribute::Finish {
                own: own.iter().copied().collect(),
            },
        };
        let lines = [
            (Request::Order(order.clone()), serde_json::to_string(&order).unwrap()),
            (
                begin(target),
                r#"{"attribute":{"begin":{"cpus":"2-3","own":[7,9]}}}"#.to_owned(),
            ),
            (
                begin(of_container),
                r#"{"attribute":{"begin":{"cpus":"2-3","own":[7,9],"by-thread":true}}}"#.to_owned(),
            ),
            (finish(&[]), r#"{"attribute":{"finish":{}}}"#.to_owned()),
            (
                finish(&[8, 12]),
                r#"{"attribute":{"finish":{"own":[8,12]}}}"#.to_owned(),
            ),
        ];
        for (request, line) in lines {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(Request::parse(&line).unwrap(), request);
        }
    }

    #[test]
    fn what_is_neither_is_named() {
        let cases = [
            (r#"{"steer":true,"restart":true}"#, "unknown field `restart`"),
            (r#"{"attribute":{"finish":{}},"steer":true}"#, "unknown field `steer`"),
            (r#"{"attribute":{"stop":{}}}"#, "unknown variant `stop`"),
            (r#"{"attribute":{"begin":{"pids":[1]}}}"#, "unknown field `pids`"),
            (r#"{"attribute":{"finish":{"at":1}}}"#, "unknown field `at`"),
            (r#"{"attribute":"begin"}"#, "invalid type: unit variant"),
            ("", "EOF"),
        ];
        for (line, expected) in cases {
            let error = Request::parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
