//! One list of requests, and what two real servers answered to them: kube-apiserver, and its part for custom resources of Debian's packages, which are older.
//! The server in memory must answer as kube-apiserver did (`memory.rs`), and so must each real server of today as its record has it (`real.rs`).

use std::collections::BTreeMap;

use http::Request;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

mod steps;

pub use steps::steps;

/// The answers of kube-apiserver.
pub const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/answers/kube-apiserver-1.36.3.json");
pub const SAMPLES: &str = include_str!("samples.json");

pub struct Step {
    /// What it shows; its name in the record.
    pub shows: &'static str,
    pub method: &'static str,
    pub path: String,
    pub kind: &'static str,
    pub body: Value,
}

/// An answer without what differs between any two servers.
pub async fn answers(client: &Client) -> BTreeMap<String, Value> {
    let mut seen = Seen::default();
    let mut found = BTreeMap::new();
    for (at, step) in steps().into_iter().enumerate() {
        let (code, body) = send(client, step.method, &step.path, step.kind, &step.body).await;
        let answer = json!({"code": code, "body": seen.plain(body)});
        found.insert(format!("{at:03} {}", step.shows), answer);
    }
    found
}

/// A request as it is; the answer's text as a value, or as a text where it is none.
pub async fn send(client: &Client, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
    let text = match body {
        Value::Null => Vec::new(),
        body => body.to_string().into_bytes(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .header("user-agent", "expecting/1");
    let response = client.send(request.body(Body::from(text)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let text = response.into_body().collect_bytes().await.unwrap();
    let value = serde_json::from_slice(&text);
    (
        code,
        value.unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&text).trim().to_owned())),
    )
}

/// UIDs and versions in the order in which they were seen: equal ones stay equal.
#[derive(Default)]
struct Seen {
    uids: Vec<String>,
    versions: Vec<String>,
}

impl Seen {
    fn plain(&mut self, mut value: Value) -> Value {
        if value.get("items").is_some_and(Value::is_array) {
            // The list's version rises with whatever is written.
            value["metadata"]
                .as_object_mut()
                .unwrap()
                .retain(|name, _| name == "none");
        }
        if let Some(Value::String(message)) = value.get_mut("message") {
            for uid in &self.uids {
                *message = message.replace(uid, "UID");
            }
        }
        self.walk(&mut value, "");
        value
    }

    fn walk(&mut self, value: &mut Value, name: &str) {
        match value {
            Value::String(text) => match name {
                "uid" if text.len() == 36 => *text = format!("uid {}", numbered(&mut self.uids, text)),
                "resourceVersion" => *text = format!("version {}", numbered(&mut self.versions, text)),
                "creationTimestamp" => *text = "a time".into(),
                "message" => *text = cut(text),
                _ => {}
            },
            Value::Array(list) => {
                list.iter_mut().for_each(|item| self.walk(item, ""));
                if name == "managedFields" {
                    list.sort_by_key(|entry| {
                        format!("{} {} {}", entry["manager"], entry["operation"], entry["subresource"])
                    });
                }
                if name == "causes" {
                    list.dedup();
                }
            }
            Value::Object(map) => {
                // Missing where an apply changed nothing of the object.
                map.remove("time");
                for (name, value) in map.iter_mut() {
                    self.walk(value, name);
                }
            }
            _ => {}
        }
    }
}

fn numbered(list: &mut Vec<String>, text: &str) -> usize {
    let at = list.iter().position(|known| known == text);
    at.unwrap_or_else(|| {
        list.push(text.to_owned());
        list.len() - 1
    })
}

/// Without what tells the server's own types, its regular expressions, or how it quotes the request.
fn cut(text: &str) -> String {
    let ends = [", got ", " is missing", ", and must start", " for key ", " [name="];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].to_owned()
}
