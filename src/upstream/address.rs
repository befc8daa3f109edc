//! The address of an upstream: host, port, and whether it speaks TLS.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Host and port of an upstream, and whether it speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// The name or IP address, which its certificate must be for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether it speaks TLS.
    pub is_tls: bool,
}

impl Address {
    /// Parses `host:port`, `http://host:port` or `https://host[:port]`; a `/` may follow.
    ///
    /// # Errors
    /// What would be right, with an example.
    pub fn parse(text: &str) -> Result<Address, String> {
        Address::read(text).ok_or_else(|| {
            let several = text.contains(',');
            let several = several.then_some(" (a flag has one, and is repeated)");
            "must be HOST:PORT, http://HOST:PORT or https://HOST[:PORT] with a port from 1 to 65535, as in http://127.0.0.1:30000"
                .to_owned()
                + several.unwrap_or_default()
        })
    }

    fn read(text: &str) -> Option<Address> {
        let after = |scheme: &str| {
            let (found, rest) = text.split_at_checked(scheme.len())?;
            found.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (is_tls, rest) = match after("https://") {
            Some(rest) => (true, rest),
            None => (false, after("http://").unwrap_or(text)),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = !rest.ends_with(']') && rest.contains(':');
        let (host, port) = match rest.rsplit_once(':').filter(|_| has_port) {
            Some(parts) => parts,
            None => (rest, is_tls.then_some("443")?),
        };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let ipv6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if host.is_empty()
            || host.contains(['/', '@', '?', '#', ' '])
            || (ipv6.is_none() && host.contains(':'))
        {
            return None;
        }
        Some(Address {
            host: ipv6.unwrap_or(host).into(),
            port,
            is_tls,
        })
    }

    /// `host:port`.
    pub fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether this is the address of `listener`, as far as is known without looking a name up.
    pub fn is_at(&self, listener: SocketAddr) -> bool {
        let host = match self.host.as_str() {
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            host => host.parse::<IpAddr>().ok(),
        };
        // An unspecified address listens on this machine's other addresses too, but only the system knows those.
        let is_host = host.is_some_and(|host| {
            let is_local = host.is_loopback() || host.is_unspecified();
            host == listener.ip() || (listener.ip().is_unspecified() && is_local)
        });
        is_host && self.port == listener.port()
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        Address::parse(&text)
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.name())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address {
            host: address.ip().to_string(),
            port: address.port(),
            is_tls: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port() {
        for (text, name, is_tls) in [
            ("127.0.0.1:30000", "127.0.0.1:30000", false),
            ("http://router:80/", "router:80", false),
            ("HTTP://router:80", "router:80", false),
            ("http://[::1]:80", "[::1]:80", false),
            ("https://router", "router:443", true),
            ("https://router:8443/", "router:8443", true),
            ("https://[::1]", "[::1]:443", true),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((&*address.name(), address.is_tls), (name, is_tls));
        }
        let wrong = "router http://router router: https:// https://router: https://::1 :80 \
                     router:0 router:70000 http://a:1/v1 ::1:80 ftp://a:1";
        for wrong in wrong.split(' ').chain([""]) {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
