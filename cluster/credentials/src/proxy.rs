//! Through which proxy a server is reached, as client-go decides it (`golang.org/x/net/http/httpproxy`): by HTTPS_PROXY or HTTP_PROXY, which
//! the server's scheme chooses, and NO_PROXY. Each also exists in small letters. ALL_PROXY is not looked at, because kubectl does not either.

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use http::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The port of a SOCKS proxy that names none.
const SOCKS_PORT: u16 = 1080;

/// A proxy.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    pub scheme: Scheme,
    /// Without user and password.
    pub uri: Uri,
    /// hyper-util's parsed form of the URL, with the user and password.
    intercept: Intercept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
    Socks5,
}

/// Why a proxy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("{0} is not a proxy URL: expected [http|https|socks5]://HOST[:PORT]")]
    Url(String),
    /// In a CGI program a client of the server sets HTTP_PROXY (CVE-2016-5385).
    #[error("HTTP_PROXY is not used where REQUEST_METHOD is set")]
    Cgi,
}

impl Proxy {
    /// `from`: where it is named. A URL without a scheme is one of http.
    pub(crate) fn parse(from: &str, url: &str) -> Result<Self, ProxyError> {
        // The text may have a password.
        let wrong = || ProxyError::Url(from.to_owned());
        let (name, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
        let name = name.to_ascii_lowercase();
        let scheme = match name.as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "socks5" | "socks5h" => Scheme::Socks5,
            _ => return Err(wrong()),
        };
        let matcher = Matcher::builder().all(format!("{name}://{rest}")).build();
        let any = Uri::from_static("https://server");
        let intercept = matcher.intercept(&any).ok_or_else(wrong)?;
        let uri = intercept.uri().clone();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let uri = match (scheme, uri.port()) {
            (Scheme::Socks5, None) => format!("socks5://{host}:{SOCKS_PORT}").parse().map_err(|_| wrong())?,
            _ => uri,
        };
        Ok(Self { scheme, uri, intercept })
    }

    /// The header with its user and password.
    pub(crate) fn basic_auth(&self) -> Option<&HeaderValue> {
        self.intercept.basic_auth()
    }

    /// The user and the password for SOCKS.
    pub(crate) fn user_and_password(&self) -> Option<(&str, &str)> {
        self.intercept.raw_auth()
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri.to_string().trim_end_matches('/'))
    }
}

/// What the environment says of proxies.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    http: String,
    https: String,
    no_proxy: String,
    is_cgi: bool,
}

impl Environment {
    /// That of this process.
    pub(crate) fn read() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let any = |name: &str| {
            let names = [name.to_owned(), name.to_ascii_lowercase()].into_iter();
            let mut values = names.filter_map(|name| variable(&name));
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        Self {
            http: any("HTTP_PROXY"),
            https: any("HTTPS_PROXY"),
            no_proxy: any("NO_PROXY"),
            is_cgi: variable("REQUEST_METHOD").is_some_and(|method| !method.is_empty()),
        }
    }

    /// The proxy for a server; `None`: it is reached directly.
    ///
    /// # Errors
    /// The proxy's URL is invalid, or HTTP_PROXY is set in a CGI program.
    pub(crate) fn proxy_for(&self, server: &Uri) -> Result<Option<Proxy>, ProxyError> {
        let (from, url, port) = match server.scheme_str() {
            Some("https") => ("HTTPS_PROXY", &self.https, 443),
            Some("http") => ("HTTP_PROXY", &self.http, 80),
            _ => return Ok(None),
        };
        let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
        if url.is_empty() || is_excepted(&self.no_proxy, host, server.port_u16().unwrap_or(port)) {
            return Ok(None);
        }
        if self.is_cgi && from == "HTTP_PROXY" {
            return Err(ProxyError::Cgi);
        }
        Proxy::parse(from, url).map(Some)
    }
}

/// Whether a server is reached without a proxy: this host always is, and what an entry of NO_PROXY names, which is `*`, an address or a network,
/// or a name, which is that of a domain too. All but a network may have a port, and `.corp` and `*.corp` do not select `corp` itself.
fn is_excepted(no_proxy: &str, host: &str, port: u16) -> bool {
    let host = canonical(host);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
        return true;
    }
    let selects = |entry: &str| {
        let (name, only) = split_port(entry);
        let below = name.trim_start_matches('*').strip_prefix('.');
        let is_itself = below.is_some_and(|domain| domain.eq_ignore_ascii_case(&host));
        let is_other_port = only.is_some_and(|only| only != port.to_string());
        (!is_itself && !is_other_port).then(|| canonical(below.unwrap_or(name)))
    };
    let names: Vec<String> = no_proxy.split(',').map(str::trim).filter_map(selects).collect();
    let authority = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.clone()
    };
    let server = format!("http://{authority}/").parse::<Uri>();
    let matcher = Matcher::builder().all("http://proxy").no(names.join(",")).build();
    // Of an address, too, which the matcher compares with no name.
    let is_end = |name: &String| !name.is_empty() && host.ends_with(&format!(".{name}"));
    names.iter().any(|name| name == "*" || is_end(name))
        || server.is_ok_and(|server| matcher.intercept(&server).is_none())
}

/// A name in small letters, or an address as every other spelling of it is written.
fn canonical(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().to_string(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// `name:port` and `[address]:port`, apart.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port).filter(|port| !port.is_empty())),
        // An IPv6 address.
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn used(variables: &[(&str, &str)], server: &str) -> Result<Option<String>, ProxyError> {
        let proxy = environment(variables).proxy_for(&server.parse().unwrap())?;
        Ok(proxy.map(|proxy| proxy.to_string()))
    }

    #[test]
    fn the_scheme_of_the_server_chooses_the_variable_and_capitals_come_first() {
        let (tls, plain) = (("HTTPS_PROXY", "http://s:1"), ("HTTP_PROXY", "http://p:2"));
        let both = [tls, plain, ("https_proxy", "http://small:3")];
        assert_eq!(used(&both, "https://k8s").unwrap().unwrap(), "http://s:1");
        assert_eq!(used(&both, "http://k8s").unwrap().unwrap(), "http://p:2");
        let small = [("HTTPS_PROXY", ""), ("https_proxy", "small:3")];
        assert_eq!(used(&small, "https://k8s").unwrap().unwrap(), "http://small:3");
        assert_eq!(used(&small, "http://k8s").unwrap(), None);
        assert_eq!(used(&[("ALL_PROXY", "http://a:1")], "https://k8s").unwrap(), None);
        assert_eq!(used(&[], "https://k8s").unwrap(), None);
    }

    #[test]
    fn a_client_of_a_cgi_program_chooses_no_proxy() {
        let (tls, plain) = (("HTTPS_PROXY", "http://s:1"), ("HTTP_PROXY", "http://p:2"));
        let cgi = [("REQUEST_METHOD", "GET"), plain, tls];
        assert_eq!(used(&cgi, "http://k8s"), Err(ProxyError::Cgi));
        assert!(used(&cgi, "https://k8s").unwrap().is_some());
    }

    #[test]
    fn servers_are_excepted_by_name_domain_address_network_and_port() {
        for (no_proxy, server, direct) in [
            ("", "https://k8s.corp", false),
            ("*", "https://k8s.corp", true),
            ("corp", "https://k8s.corp", true),
            (".corp", "https://k8s.corp", true),
            ("*.corp", "https://k8s.corp", true),
            (".corp", "https://corp", false),
            ("corp", "https://corp", true),
            ("orp", "https://k8s.corp", false),
            ("K8S.Corp", "https://k8s.CORP:6443", true),
            (" , other ,k8s.corp, ", "https://k8s.corp", true),
            ("k8s.corp:6443", "https://k8s.corp:6443", true),
            ("k8s.corp:6443", "https://k8s.corp", false),
            ("k8s.corp:443", "https://k8s.corp", true),
            ("k8s.corp:80", "https://k8s.corp", false),
            ("10.0.0.0/8", "https://10.3.2.1:6443", true),
            ("10.0.0.0/8", "https://11.3.2.1", false),
            ("0.0.0.0/0", "https://11.3.2.1", true),
            ("10.0.0.0/33", "https://10.0.0.0", false),
            ("10.0.0.1", "https://10.0.0.1", true),
            ("10.0.0.1:6443", "https://10.0.0.1:6443", true),
            ("10.0.0.1:6443", "https://10.0.0.1", false),
            ("10.0.0.1", "https://10.0.0.11", false),
            (".1.5", "https://10.0.1.5", true),
            ("0.1", "https://10.0.0.1", true),
            ("5", "https://10.0.1.15", false),
            (".", "https://k8s.corp", false),
            ("fd00::/8", "https://[fd12::1]:6443", true),
            ("::/0", "https://[fd12::1]", true),
            ("[fd12::1]:6443", "https://[fd12::1]:6443", true),
            ("[fd12::1]:6443", "https://[fd12::1]", false),
            ("fd12::1", "https://[fd12::1]", true),
            ("::ffff:10.0.0.1", "https://10.0.0.1", true),
            (".svc,.cluster.local", "https://kubernetes.default.svc", true),
            (":6443,[", "https://k8s.corp:6443", false),
            // This host, whatever NO_PROXY says.
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.9", true),
            ("", "https://[::1]:6443", true),
        ] {
            let variables = [("HTTPS_PROXY", "http://p:1"), ("no_proxy", no_proxy)];
            let proxy = used(&variables, server).unwrap();
            assert_eq!(proxy.is_none(), direct, "{no_proxy} {server}");
        }
    }

    #[test]
    fn a_proxy_has_a_known_scheme_and_its_password_is_never_told() {
        let parsed = |url| Proxy::parse("proxy-url", url).unwrap();
        for (url, scheme, told) in [
            ("proxy.corp:3128", Scheme::Http, "http://proxy.corp:3128"),
            ("proxy:3128/", Scheme::Http, "http://proxy:3128"),
            ("HTTPS://proxy.corp", Scheme::Https, "https://proxy.corp"),
            ("socks5://proxy", Scheme::Socks5, "socks5://proxy:1080"),
        ] {
            assert_eq!((parsed(url).scheme, &*parsed(url).to_string()), (scheme, told));
        }
        assert_eq!(parsed("socks5h://proxy:9").scheme, Scheme::Socks5);
        let with_user = parsed("http://me:pa%40ss@proxy:3128");
        assert_eq!(with_user.to_string(), "http://proxy:3128");
        assert_eq!(with_user.basic_auth().unwrap(), "Basic bWU6cGFAc3M=");
        let with_user = parsed("socks5://me:pa%40ss@proxy");
        assert_eq!(with_user.user_and_password(), Some(("me", "pa@ss")));
        for wrong in "ftp://me:secret@proxy,http://,://x,socks4://proxy,http://a b".split(',') {
            let cause = Proxy::parse("HTTPS_PROXY", wrong).unwrap_err().to_string();
            assert!(cause.starts_with("HTTPS_PROXY is not") && !cause.contains("secret"));
        }
        assert!(used(&[("HTTPS_PROXY", "ftp://p")], "https://k8s").is_err());
        let excepted = [("HTTPS_PROXY", "ftp://p"), ("NO_PROXY", "k8s")];
        assert_eq!(used(&excepted, "https://k8s").unwrap(), None);
    }
}
