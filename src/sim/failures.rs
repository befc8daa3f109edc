//! Requests that go wrong on purpose: which ones, and how. By share and seed, so that the same requests in the
//! same order go wrong the same way.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Error;
use super::flags;
use crate::units::{between, whole_ms};

/// Shares of the requests that go wrong.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "What goes wrong")]
pub struct Failures {
    /// Share of requests whose connection ends in the answer
    ///
    /// Somewhere in it, as when the server is killed.
    #[arg(long = "fail-die", value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    pub die: f64,
    /// Share of requests whose answer stops and never goes on
    #[arg(long = "fail-hang", value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    pub hang: f64,
    /// Share of requests that are answered 503 at once
    #[arg(long = "fail-503", value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    pub unavailable: f64,
    /// Share of requests that reach the queue late
    ///
    /// By --fail-slow-ms.
    #[arg(long = "fail-slow", value_name = "SHARE", default_value_t = 0.0, value_parser = between(0.0, 1.0))]
    pub slow: f64,
    /// How late, milliseconds
    #[arg(long = "fail-slow-ms", value_name = "MS", default_value_t = 1_000, value_parser = whole_ms)]
    pub slow_ms: u32,
    /// Other requests go wrong with another seed
    #[arg(long = "fail-seed", value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// Nothing.
    Served,
    /// Its answer ends after this share of its tokens, with its connection.
    Dies(f64),
    /// Its answer stops after this share of its tokens.
    Hangs(f64),
    /// It gets a 503.
    Unavailable,
    /// It reaches the queue later, by milliseconds.
    Slow(u32),
}

impl Default for Failures {
    fn default() -> Failures {
        flags::default()
    }
}

impl Failures {
    /// Checks the shares, each of which its flag holds to be one.
    ///
    /// # Errors
    /// [`Error::Value`] where they are more than all requests.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let shares = self.shares();
        // Tenths and hundredths that are 1 together may be a little more as sums of floats.
        if shares.iter().sum::<f64>() <= 1.0 + 1e-9 {
            return Ok(());
        }
        Err(Error::Value {
            flag: "--fail-die, --fail-hang, --fail-503 and --fail-slow",
            value: shares.map(|share| share.to_string()).join(", "),
            want: "at most 1 in sum".to_owned(),
        })
    }

    fn shares(&self) -> [f64; 4] {
        [self.die, self.hang, self.unavailable, self.slow]
    }

    /// The fate of the request with this number.
    pub(super) fn fate(&self, number: u64) -> Fate {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(number);
        let place: f64 = rng.random();
        let fates = [
            Fate::Dies(place),
            Fate::Hangs(place),
            Fate::Unavailable,
            Fate::Slow(self.slow_ms),
        ];
        let mut drawn: f64 = rng.random();
        for (share, fate) in self.shares().into_iter().zip(fates) {
            if drawn < share {
                return fate;
            }
            drawn -= share;
        }
        Fate::Served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_go_wrong_as_the_shares_say_and_the_seed_says_which() {
        let failures = Failures {
            die: 0.1,
            hang: 0.2,
            unavailable: 0.3,
            slow: 0.4,
            ..Failures::default()
        };
        let fates: Vec<Fate> = (0..10_000).map(|number| failures.fate(number)).collect();
        let share = |wanted: fn(&Fate) -> bool| {
            fates.iter().filter(|fate| wanted(fate)).count() as f64 / 10_000.0
        };
        // The seed is fixed; 5 standard deviations of the largest are 0.025.
        assert!((share(|fate| matches!(fate, Fate::Dies(_))) - 0.1).abs() < 0.025);
        assert!((share(|fate| matches!(fate, Fate::Hangs(_))) - 0.2).abs() < 0.025);
        assert!((share(|fate| matches!(fate, Fate::Unavailable)) - 0.3).abs() < 0.025);
        assert!((share(|fate| matches!(fate, Fate::Slow(1_000))) - 0.4).abs() < 0.025);
        assert!(!fates.contains(&Fate::Served));
        let again: Vec<Fate> = (0..10_000).map(|number| failures.fate(number)).collect();
        assert_eq!(again, fates);
        let other = Failures {
            seed: 1,
            ..failures
        };
        assert_ne!(other.fate(0), fates[0]);
        assert_eq!(Failures::default().fate(0), Fate::Served);
    }

    #[test]
    fn shares_may_be_all_requests_and_no_more() {
        for (hang, is_right) in [(0.55, true), (0.56, false)] {
            let failures = Failures {
                die: 0.34,
                hang,
                slow: 0.11,
                ..Failures::default()
            };
            assert_eq!(failures.validate().is_ok(), is_right, "{hang}");
        }
    }
}
