//! Signatures by which a front distinguishes the stamps of its own hops from what others write into the same header.

use std::sync::OnceLock;

use ring::hmac;

use crate::secret::Secret;

/// Signs a hop's stamps, and verifies them at the front. A signature is valid for one request id, so that stamps cannot be
/// replayed for another request.
#[derive(Clone, Debug)]
pub struct HopKey {
    /// What it was made of, for the process that takes the listeners over.
    pub secret: Secret,
    key: hmac::Key,
}

/// Separates the stamps from their signature: HMAC-SHA256, in hex.
const SEPARATOR: &str = ";mac=";

impl HopKey {
    /// Creates the key from the secret that a front and its hops in other processes share.
    pub fn from_secret(secret: Secret) -> HopKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.bytes());
        HopKey { secret, key }
    }

    /// Returns a random key of this process, for front and hops without a configured secret.
    pub fn of_process() -> HopKey {
        static KEY: OnceLock<HopKey> = OnceLock::new();
        let key = KEY.get_or_init(|| {
            let [one, two]: [u128; 2] = rand::random();
            HopKey::from_secret(format!("{one:032x}{two:032x}").as_str().into())
        });
        key.clone()
    }

    /// Returns the header's value: the stamps and their signature.
    pub fn sign(&self, req_id: &str, stamps: &str) -> String {
        let mut signed = hmac::Context::with_key(&self.key);
        // No header has a line break.
        for part in [req_id, "\n", stamps] {
            signed.update(part.as_bytes());
        }
        let tag = signed.sign();
        let digits = tag.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut value = format!("{stamps}{SEPARATOR}");
        value.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
        value
    }

    /// Returns the stamps in a header's value, if a hop of ours signed them for this request.
    pub fn verify<'a>(&self, req_id: &str, value: &'a str) -> Option<&'a str> {
        let (stamps, _) = value.rsplit_once(SEPARATOR)?;
        let expected = Secret::from(&*self.sign(req_id, stamps));
        expected.matches(value.as_bytes()).then_some(stamps)
    }
}
