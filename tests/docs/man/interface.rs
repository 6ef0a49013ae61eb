//! Parts of the D-Bus interface's page, from the XML that is the contract and its comments, and the errors' own descriptions.

use std::fmt::Write;

use stelia_api::ErrorKind;

use super::roff::{escaped, paragraphs};

const FILES: [&str; 3] = [
    include_str!("../../../dbus-interfaces/io.stelia.Isolation1.Manager.xml"),
    include_str!("../../../dbus-interfaces/io.stelia.Isolation1.Instance.xml"),
    include_str!("../../../dbus-interfaces/io.stelia.Isolation1.Job.xml"),
];

/// An interface or a member of one.
#[derive(Debug, Default)]
struct Member {
    kind: String,
    name: String,
    /// A property's.
    signature: String,
    constant: bool,
    text: String,
    /// Direction, type, name.
    args: Vec<(String, String, String)>,
}

fn attribute(tag: &str, name: &str) -> String {
    let found = tag
        .split_once(&format!(" {name}=\""))
        .and_then(|(_, rest)| rest.split_once('"'));
    found.map(|(value, _)| value.to_owned()).unwrap_or_default()
}

/// What the file declares, each with the comment above it.
fn members(xml: &str) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    let mut comment = String::new();
    let mut rest = xml;
    while let Some((_, found)) = rest.split_once('<') {
        if let Some(found) = found.strip_prefix("!--") {
            let (text, after) = found.split_once("-->").unwrap();
            (comment, rest) = (text.to_owned(), after);
            continue;
        }
        let (tag, after) = found.split_once('>').unwrap();
        rest = after;
        let kind = tag.split([' ', '/']).next().unwrap().to_owned();
        match kind.as_str() {
            "interface" | "method" | "signal" | "property" => members.push(Member {
                name: attribute(tag, "name"),
                signature: attribute(tag, "type"),
                text: std::mem::take(&mut comment),
                kind,
                ..Member::default()
            }),
            "arg" => {
                let arg = ["direction", "type", "name"].map(|name| attribute(tag, name));
                members.last_mut().unwrap().args.push(arg.into());
            }
            "annotation" => {
                let constant =
                    attribute(tag, "name").ends_with("EmitsChangedSignal") && attribute(tag, "value") == "const";
                members.last_mut().unwrap().constant |= constant;
            }
            _ => {}
        }
    }
    members
}

/// The comment without the name it begins with and without its indentation: the text, and what it says of each argument.
fn described(member: &Member) -> (String, Vec<(String, String)>) {
    let lines: Vec<&str> = member.text.trim().lines().map(str::trim).collect();
    let text = lines.join("\n");
    let text = text
        .strip_prefix(&format!("{}: ", member.name))
        .unwrap_or(&text)
        .to_owned();
    let mut parts = text.split("\n@");
    let before = parts.next().unwrap_or_default().replace(" @", " ");
    let args = parts.map(|part| {
        part.split_once(": ")
            .unwrap_or_else(|| panic!("{}: @{part}", member.name))
    });
    (
        before,
        args.map(|(name, text)| (name.to_owned(), text.to_owned())).collect(),
    )
}

fn argument_list(member: &Member, direction: &str) -> String {
    let of = member.args.iter().filter(|(of, ..)| of == direction);
    let shown: Vec<String> = of.map(|(_, signature, name)| format!("{signature} {name}")).collect();
    escaped(&shown.join(", "))
}

fn flowing(text: &str) -> String {
    let mut text = text.to_owned();
    if !text.is_empty() {
        let first = text.remove(0);
        text.insert_str(0, &first.to_uppercase().to_string());
    }
    if !text.ends_with('.') {
        text.push('.');
    }
    paragraphs(&text)
}

fn member(member: &Member) -> String {
    let (text, args) = described(member);
    let mut page = match member.kind.as_str() {
        "method" => {
            let out = argument_list(member, "out");
            let out = if out.is_empty() { out } else { format!(" \\(-> ({out})") };
            format!(".SS {}({}){out}\n", member.name, argument_list(member, "in"))
        }
        "signal" => format!(".SS {}({})\n", member.name, argument_list(member, "")),
        _ => {
            let constant = if member.constant { ", constant" } else { "" };
            let head = format!(".TP\n\\fB{}\\fR ({}{constant})\n", member.name, member.signature);
            return head + &flowing(&text);
        }
    };
    page.push_str(&flowing(&text));
    for (name, text) in args {
        write!(page, ".TP\n\\fI{}\\fR\n{}", escaped(&name), paragraphs(&text)).unwrap();
    }
    page
}

/// One interface: the first of these members, and what belongs to it.
fn section(members: &[Member]) -> String {
    let of = |kind: &'static str| members.iter().filter(move |member| member.kind == kind);
    let interface = of("interface").next().unwrap();
    let name = interface.name.rsplit('.').next().unwrap().to_uppercase();
    let (text, _) = described(interface);
    let mut page = String::new();
    write!(page, ".SH THE {name} INTERFACE\n\\fB{}\\fR.\n", interface.name).unwrap();
    page.push_str(&flowing(&text));
    of("method").for_each(|method| page.push_str(&member(method)));
    if of("property").next().is_some() {
        page.push_str(".SS Properties\nAll properties are read\\-only. PropertiesChanged is sent for every change of a property that is not constant.\n");
    }
    of("property").for_each(|property| page.push_str(&member(property)));
    of("signal").for_each(|signal| page.push_str(&member(signal)));
    page
}

/// The interfaces.
pub fn interfaces() -> String {
    let files = FILES.map(members);
    let interfaces = files
        .iter()
        .flat_map(|members| members.chunk_by(|_, next| next.kind != "interface"));
    interfaces.map(section).collect()
}

/// The errors, with what the code says of each.
pub fn errors() -> String {
    let error = |kind: ErrorKind| format!(".TP\n\\fB{}\\fR\n{}", kind.name(), flowing(kind.says()));
    ErrorKind::ALL.map(error).concat()
}
