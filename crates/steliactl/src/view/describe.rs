//! `describe`: what the daemon answers, as JSON.

use serde_json::Value;

use crate::shared::daemon::{Client, Failure};
use crate::shared::output::{Form, printable};

/// # Errors
/// The daemon does not answer.
pub(crate) async fn run(client: &Client, form: Form) -> Result<String, Failure> {
    json_text(form, &client.describe_text().await?)
}

/// JSON text, reformatted; text that is not JSON is returned unchanged.
fn json_text(form: Form, text: &str) -> Result<String, Failure> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => Ok(form.write(&value)?),
        Err(_) => Ok(printable(text) + "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_json_is_printed_all_the_same() {
        let json_text = |form, text| json_text(form, text).unwrap();
        assert_eq!(json_text(Form::Text, "{\"a\":1}"), "{\n  \"a\": 1\n}\n");
        assert_eq!(json_text(Form::JsonLine, "{ \"a\": 1 }"), "{\"a\":1}\n");
        assert_eq!(json_text(Form::Json, "oops"), "oops\n");
    }
}
