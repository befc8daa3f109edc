//! Where requests go.

use std::fmt;
use std::net::SocketAddr;

use http::{HeaderValue, Uri};

use crate::upstream::Address;

/// A base URL: `http://host:port` or `https://host:port`, with a path in front of the API's if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    address: Address,
    prefix: String,
    authority: HeaderValue,
}

impl Target {
    /// Reads a base URL.
    ///
    /// # Errors
    /// Says what is wrong with it and what would be right.
    pub fn parse(url: &str) -> Result<Target, String> {
        const RIGHT: &str = "must be like http://127.0.0.1:30000";
        let uri: Uri = url.parse().map_err(|error| format!("{error}; {RIGHT}"))?;
        let scheme = match uri.scheme_str() {
            Some(known @ ("http" | "https")) => known,
            Some(other) => return Err(format!("{other} is not a scheme we speak; {RIGHT}")),
            None => return Err(format!("has no scheme; {RIGHT}")),
        };
        if uri.query().is_some() {
            return Err(format!("has a query; {RIGHT}"));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.is_empty() || authority.contains('@') {
            return Err(format!("needs a host and no user; {RIGHT}"));
        }
        let has_port = !authority.ends_with(']') && authority.contains(':');
        let usual = if has_port || scheme == "https" {
            ""
        } else {
            ":80"
        };
        let address = Address::parse(&format!("{scheme}://{authority}{usual}"))?;
        let authority = HeaderValue::from_str(authority);
        Ok(Target {
            address,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: authority.map_err(|error| format!("{error}; {RIGHT}"))?,
        })
    }

    /// Whether TLS is spoken there.
    pub fn is_tls(&self) -> bool {
        self.address.is_tls()
    }

    /// The name or number of the host, without brackets.
    pub fn host(&self) -> &str {
        self.address.host()
    }

    /// The `Host` header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// `host:port`, as the `host` column names servers.
    pub fn host_and_port(&self) -> String {
        self.address.name()
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
        let found = tokio::net::lookup_host((self.host(), self.address.port())).await?;
        Ok(found.collect())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base URLs, and the target with its path of an API; or what is wrong.
    const URLS: &str = "\
http://a.b:30000 | http://a.b:30000 /generate
http://a.b:30000/ | http://a.b:30000 /generate
http://a.b/x/ | http://a.b:80/x /x/generate
http://[::1]:8000 | http://[::1]:8000 /generate
https://a.b/x | https://a.b:443/x /x/generate
a:1 | must be like
127.0.0.1:30000 | must be like http://127.0.0.1:30000
ftp://a | ftp is not a scheme
http://a:0 | the port must be a number from 1 to 65535
http://a:99999 | the port must be a number from 1 to 65535
http://u@a | no user
http://a?x=1 | has a query
http:// | must be like
 | must be like";

    #[test]
    fn a_base_url_is_host_port_and_prefix() {
        for line in URLS.lines() {
            let (url, said) = line.split_once(" | ").unwrap();
            let told = Target::parse(url).map_or_else(
                |wrong| wrong,
                |target| format!("{target} {}", target.path("/generate")),
            );
            assert!(told.contains(said), "{url}: {told}");
        }
        assert_eq!(Target::parse("http://[::1]:8000").unwrap().host(), "::1");
    }
}
