//! The base URL that requests are sent to.

use std::fmt;

use http::{HeaderValue, Uri};

use crate::upstream::Address;

/// A base URL: `http://host:port` or `https://host:port`, optionally with a path before that of the API.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Host, port, and whether the scheme is `https`.
    pub address: Address,
    prefix: String,
    /// The `Host` header.
    pub(super) authority: HeaderValue,
}

impl Target {
    /// Parses a base URL.
    ///
    /// # Errors
    /// Says what is expected.
    pub fn parse(url: &str) -> Result<Target, String> {
        const EXPECTED: &str =
            "must be like http://127.0.0.1:30000 or https://name, without user and query";
        let uri: Uri = url.parse().map_err(|_| EXPECTED)?;
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let is_known = ["http", "https"].contains(&scheme);
        if !is_known || uri.query().is_some() || authority.is_empty() || authority.contains('@') {
            return Err(EXPECTED.to_owned());
        }
        let has_port = !authority.ends_with(']') && authority.contains(':');
        let port = match has_port || scheme == "https" {
            true => "",
            false => ":80",
        };
        let address = Address::parse(&format!("{scheme}://{authority}{port}"))?;
        let authority = HeaderValue::from_str(authority).map_err(|_| EXPECTED)?;
        Ok(Target {
            address,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority,
        })
    }

    /// The request target for an API path.
    pub fn path(&self, api: &str) -> String {
        format!("{}{api}", self.prefix)
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

    /// Base URLs, each with the target and a request's path, or a part of the error.
    const URLS: &str = "\
http://a.b:30000 | http://a.b:30000 /generate
http://a.b:30000/ | http://a.b:30000 /generate
http://a.b/x/ | http://a.b:80/x /x/generate
http://[::1]:8000 | http://[::1]:8000 /generate
https://a.b/x | https://a.b:443/x /x/generate
a:1 | must be like
127.0.0.1:30000 | must be like http://127.0.0.1:30000
ftp://a | must be like
http://a:0 | with a port from 1 to 65535
http://a:99999 | with a port from 1 to 65535
http://u@a | without user
http://a?x=1 | without user and query
http:// | must be like
 | must be like";

    #[test]
    fn a_base_url_is_host_port_and_prefix() {
        for line in URLS.lines() {
            let (url, expected) = line.split_once(" | ").unwrap();
            let result = Target::parse(url).map_or_else(
                |error| error,
                |target| format!("{target} {}", target.path("/generate")),
            );
            assert!(result.contains(expected), "{url}: {result}");
        }
        assert_eq!(
            Target::parse("http://[::1]:8000").unwrap().address.host,
            "::1"
        );
    }
}
