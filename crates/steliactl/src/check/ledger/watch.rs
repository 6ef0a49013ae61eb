//! `--watch`: traces what runs on a VM's CPUs.

use std::time::Duration;

use serde::Serialize;
use stelia_api::attribution::Attribution;
use stelia_api::client::Dict;
use zbus::Variant;

use super::{query, text, words};
use crate::shared::daemon::{Client, Failure, Pod};
use crate::shared::output::{Render, TextStyle, printable};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Watched {
    #[serde(flatten)]
    pub pod: Pod,
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// Answers when the time is over.
///
/// # Errors
/// No such instance, or the kernel's tracing cannot be used.
pub(super) async fn gather(client: &Client, vm: &str, time: Duration) -> Result<Watched, Failure> {
    let found = client.find(vm).await?;
    let object = query::instance(client, &found.path).await?;
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let options = Dict::from([("seconds", Variant::from(seconds))]);
    let text = client.answer_while_alive(object.attribute(options)).await?;
    Ok(Watched {
        pod: found.pod,
        attribution: query::understood(&text)?,
    })
}

impl Render for Watched {
    fn text(&self, style: TextStyle) -> String {
        let one = &self.attribution;
        let table = text::who(&words::who(one), &words::incomplete(one), style);
        if style.legend {
            format!(
                "{}, CPUs {}, {} UTC\n\n{table}",
                printable(&self.pod.to_string()),
                printable(&one.cpus),
                text::between(one.from_us, one.until_us)
            )
        } else {
            table
        }
    }
}
