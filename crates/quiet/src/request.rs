//! The request on a connection.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::order::{Order, Target};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Request {
    Order(Order),
    /// Counts who runs on CPUs, until [`Finish`](Self::Finish). Replaces a count that was begun before.
    Begin(Target),
    /// Ends the count, and asks for its result.
    Finish {
        /// Further own threads; they are only left out if the target's threads were counted each for itself.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        own: BTreeSet<i32>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_and_the_ends_of_an_attribution_are_told_apart_by_their_names() {
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
        let finish = |own: &[i32]| Request::Finish {
            own: own.iter().copied().collect(),
        };
        let ordered = format!(r#"{{"order":{}}}"#, serde_json::to_string(&order).unwrap());
        let begun = r#"{"begin":{"cpus":"2-3","own":[7,9]}}"#;
        let by_thread = begun.replace("]}", r#"],"by-thread":true}"#);
        for (request, line) in [
            (Request::Order(order), ordered.as_str()),
            (Request::Begin(target), begun),
            (Request::Begin(of_container), &by_thread),
            (finish(&[]), r#"{"finish":{}}"#),
            (finish(&[8, 12]), r#"{"finish":{"own":[8,12]}}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        }
    }

    #[test]
    fn what_is_neither_is_named() {
        let cases = [
            (r#"{"order":{"restart":true}}"#, "unknown field `restart`"),
            (r#"{"finish":{},"begin":{}}"#, "expected value"),
            (r#"{"stop":{}}"#, "unknown variant `stop`"),
            (r#"{"begin":{"pids":[1]}}"#, "unknown field `pids`"),
            (r#"{"finish":{"at":1}}"#, "unknown field `at`"),
            (r#""begin""#, "invalid type: unit variant"),
            ("", "EOF"),
        ];
        for (line, expected) in cases {
            let error = serde_json::from_str::<Request>(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
