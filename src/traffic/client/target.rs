//! Where requests go.

use std::fmt;
use std::net::SocketAddr;

use http::{HeaderValue, Uri};

/// A base URL: `http://host:port` or `https://host:port`, with a path in front of the API's if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    is_tls: bool,
    host: String,
    port: u16,
    prefix: String,
    authority: HeaderValue,
}

/// What answers at the base URL, or behind our proxy if that stands there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum UpstreamKind {
    /// A router, or something unknown: who served a request, and when the router sent it on, stays
    /// unknown unless a proxy says so.
    #[default]
    Router,
    /// The server itself: the last send before it counts as the router's, and without a proxy the base
    /// URL names the host.
    Server,
}

impl Target {
    /// Reads a base URL.
    ///
    /// # Errors
    /// Says what is wrong with it and what would be right.
    pub fn parse(url: &str) -> Result<Target, String> {
        const RIGHT: &str = "must be like http://127.0.0.1:30000";
        let uri: Uri = url.parse().map_err(|error| format!("{error}; {RIGHT}"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other) => return Err(format!("{other} is not a scheme we speak; {RIGHT}")),
            None => return Err(format!("has no scheme; {RIGHT}")),
        };
        if uri.query().is_some() {
            return Err(format!("has a query; {RIGHT}"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let authority = uri.authority().filter(|at| !at.as_str().contains('@'));
        let (Some(host), Some(authority)) = (host, authority) else {
            return Err(format!("needs a host and no user; {RIGHT}"));
        };
        let after_host = authority.as_str().get(host.len()..).unwrap_or_default();
        let port = match after_host.strip_prefix(':') {
            None if is_tls => 443,
            None => 80,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| format!("`{port}` is not a port; {RIGHT}"))?,
        };
        let authority = HeaderValue::from_str(authority.as_str());
        Ok(Target {
            is_tls,
            // An IPv6 address stands in brackets, which are not part of it.
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: authority.map_err(|error| format!("{error}; {RIGHT}"))?,
        })
    }

    /// Whether TLS is spoken there.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The name or number of the host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The `Host` header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// `host:port`, as the `host` column names servers.
    pub fn host_and_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The request target for an API path.
    pub fn path(&self, api: &str) -> String {
        format!("{}{api}", self.prefix)
    }

    /// Looks the host's addresses up.
    ///
    /// # Errors
    /// What the resolver said.
    pub async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
        Ok(found.collect())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.host_and_port(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_host_port_and_prefix() {
        for (url, shown, path) in [
            ("http://a.b:30000", "http://a.b:30000", "/generate"),
            ("http://a.b:30000/", "http://a.b:30000", "/generate"),
            ("http://a.b/x/", "http://a.b:80/x", "/x/generate"),
            ("http://[::1]:8000", "http://[::1]:8000", "/generate"),
            ("https://a.b/x", "https://a.b:443/x", "/x/generate"),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(target.path("/generate"), path);
        }
        assert_eq!(Target::parse("http://[::1]:8000").unwrap().host, "::1");
    }

    #[test]
    fn a_wrong_url_says_what_would_be_right() {
        for (url, part) in [
            ("a:1", "must be like"),
            ("127.0.0.1:30000", "must be like http://127.0.0.1:30000"),
            ("ftp://a", "ftp is not a scheme"),
            ("http://a:0", "`0` is not a port"),
            ("http://a:99999", "must be like"),
            ("http://u@a", "no user"),
            ("http://a?x=1", "has a query"),
            ("", "must be like"),
            ("http://", "must be like"),
        ] {
            let error = Target::parse(url).unwrap_err();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
