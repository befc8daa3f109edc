//! How a front knows the stamps of its own hops from what anybody else writes into the same header: they are
//! signed with a key that only its hops have.

use std::fmt::Write as _;
use std::sync::OnceLock;

use ring::hmac;

use crate::secret::Secret;

/// Signs what a hop stamped of a request, and verifies it at the front. The signature holds for one request id, so
/// that stamps of one request cannot be replayed for another.
#[derive(Clone, Debug)]
pub struct HopKey {
    secret: Secret,
    key: hmac::Key,
}

/// Between the stamps and their signature: HMAC-SHA256, in hex.
const MARK: &str = ";mac=";

impl HopKey {
    /// The key that the config gives to a front and to its hops in other processes.
    pub fn of(secret: Secret) -> HopKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.bytes());
        HopKey { secret, key }
    }

    /// The key of this process, whose front and hops need no config to know each other.
    pub fn of_process() -> HopKey {
        static KEY: OnceLock<HopKey> = OnceLock::new();
        let random = || format!("{:032x}{:032x}", random(), random());
        let key = KEY.get_or_init(|| HopKey::of(random().as_str().into()));
        key.clone()
    }

    /// The secret, for the process that takes the listeners over.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The header's value: the stamps and their signature.
    pub fn sign(&self, req_id: &str, stamps: &str) -> String {
        let tag = hmac::sign(&self.key, signed(req_id, stamps).as_bytes());
        let mut value = String::with_capacity(stamps.len() + MARK.len() + 2 * tag.as_ref().len());
        value.push_str(stamps);
        value.push_str(MARK);
        for byte in tag.as_ref() {
            // Writing to a String cannot fail.
            let _ = write!(value, "{byte:02x}");
        }
        value
    }

    /// The stamps of a header's value, if a hop of ours wrote it for this request.
    pub fn verified<'a>(&self, req_id: &str, value: &'a str) -> Option<&'a str> {
        let (stamps, tag) = value.rsplit_once(MARK)?;
        let tag = bytes(tag)?;
        let verified = hmac::verify(&self.key, signed(req_id, stamps).as_bytes(), &tag);
        verified.is_ok().then_some(stamps)
    }
}

fn random() -> u128 {
    rand::random()
}

/// What is signed; no header holds a line's end.
fn signed(req_id: &str, stamps: &str) -> String {
    format!("{req_id}\n{stamps}")
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_signed_for_this_request_is_believed() {
        let key = HopKey::of("a long secret".into());
        let value = key.sign("mine", "clock=a;now=1");
        assert_eq!(key.verified("mine", &value), Some("clock=a;now=1"));
        assert_eq!(
            HopKey::of("a long secret".into()).sign("mine", "clock=a;now=1"),
            value
        );
        let other = HopKey::of("another secret".into());
        assert_eq!(other.verified("mine", &value), None);
        assert_eq!(HopKey::of_process().verified("mine", &value), None);
        assert_eq!(
            key.verified("another", &value),
            None,
            "signed for another request"
        );
        let tag = value.rsplit_once('=').unwrap().1;
        for forged in [
            "clock=a;now=1".to_owned(),
            "clock=a;now=1;mac=".to_owned(),
            format!("clock=a;now=2;mac={tag}"),
            format!("clock=a;now=1;mac={}", &tag[2..]),
            format!("clock=a;now=1;mac={tag}00"),
            format!("clock=a;now=1;mac=é{tag}"),
            format!("{value};mac={tag}"),
            String::new(),
        ] {
            assert_eq!(key.verified("mine", &forged), None, "{forged}");
        }
        assert!(!format!("{key:?}").contains("long"));
    }

    #[test]
    fn the_hops_of_a_process_have_its_key() {
        let value = HopKey::of_process().sign("", "clock=a");
        assert_eq!(HopKey::of_process().verified("", &value), Some("clock=a"));
    }
}
