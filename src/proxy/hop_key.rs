//! How a front knows the stamps of its own hops from what anybody else writes into the same header: they are
//! signed with a key that only its hops have.

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
        let key = KEY.get_or_init(|| {
            let [one, two]: [u128; 2] = rand::random();
            HopKey::of(format!("{one:032x}{two:032x}").as_str().into())
        });
        key.clone()
    }

    /// The secret, for the process that takes the listeners over.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The header's value: the stamps and their signature.
    pub fn sign(&self, req_id: &str, stamps: &str) -> String {
        let mut signed = hmac::Context::with_key(&self.key);
        // No header holds a line's end.
        for part in [req_id, "\n", stamps] {
            signed.update(part.as_bytes());
        }
        let tag = signed.sign();
        let digits = tag.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut value = format!("{stamps}{MARK}");
        value.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
        value
    }

    /// The stamps of a header's value, if a hop of ours wrote it for this request.
    pub fn verified<'a>(&self, req_id: &str, value: &'a str) -> Option<&'a str> {
        let (stamps, _) = value.rsplit_once(MARK)?;
        let right = Secret::from(&*self.sign(req_id, stamps));
        right.is(value.as_bytes()).then_some(stamps)
    }
}
