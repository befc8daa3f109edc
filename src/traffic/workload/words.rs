//! Random prose, of common short words that most tokenizers know as one token each, and its lengths.

use std::sync::LazyLock;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

const WORDS: &str = "\
    able about above across after again air all along also always among animal answer any apple area \
    arm around art ask away baby back bad ball bank base bear beat bed before begin behind below best \
    better big bird black blue board boat body book born both box boy bread break bring brother brown \
    build burn bus buy cake call came camp car care cat catch center chair change check child choose \
    city class clean clear climb close cloud coat cold color come cook cool copy corner count country \
    cover cow cross cry cut dance dark day deep desk dog door down draw dream dress drink drive drop \
    dry each ear early earth east easy eat edge egg eight end enough even ever every eye face fact \
    fall family far farm fast feel feet few field fight fill find fine fire first fish five floor \
    flower fly follow food foot forest form four free fresh friend from front fruit full game garden \
    gave gift girl give glass gold good grass great green ground group grow hair half hand happy hard \
    hat have head hear heart heavy help here high hill hold home hope horse hot hour house huge ice \
    idea island jump keep kind king kitchen know lake land large last late laugh lead leaf learn left \
    leg letter life light line list listen little live long look loud love low lunch make many map \
    mark market meat meet milk mind minute money moon morning most mother mountain mouth move much \
    music name near neck never new next nice night nine noise north nose note number ocean offer often \
    oil old once only open orange order other over page paint paper park part pass path pay pen people \
    picture piece place plan plant play point pool poor post power press price pull push queen quick \
    quiet rain ran reach read ready real red rest rice rich ride right ring rise river road rock room \
    rope round row rule run safe sail salt same sand save say school sea seat second see seed sell send \
    seven shape share ship shirt shoe shop short show sick side sign simple sing sister sit six size \
    skin sky sleep slow small smile snow soft soil some song soon sound south space speak spoon sport \
    spring stand star start stay step stone stop store storm story street strong study sugar summer sun \
    sweet swim table tail take talk tall taste teach team tell ten test thing think three throw time \
    tired today together told tooth top touch town toy train tree trip true try turn twelve two under \
    until use valley very view visit voice wait walk wall want warm wash watch water way wear week well \
    west wheel white why wide wife wild wind window wing winter wish wood word work world write year \
    yellow young";

static LIST: LazyLock<Vec<&str>> = LazyLock::new(|| WORDS.split_ascii_whitespace().collect());

/// Adds `count` words to a text, a blank before each.
pub(super) fn append(text: &mut String, count: u64, rng: &mut ChaCha8Rng) {
    for _ in 0..count {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(LIST[rng.random_range(0..LIST.len())]);
    }
}

/// A length drawn uniformly from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl LengthRange {
    /// Uniform from `ratio` × `most` (rounded down, at least 1) to `most`, as SGLang's bench_serving draws:
    /// a ratio of 1 is always `most`. A `most` of 0 is taken for 1, and a ratio beyond 0 to 1 for the nearer of them.
    pub fn up_to(most: u64, ratio: f64) -> LengthRange {
        let high = most.max(1);
        let low = (most as f64 * ratio) as u64;
        LengthRange {
            low: low.clamp(1, high),
            high,
        }
    }

    pub(super) fn draw(self, rng: &mut ChaCha8Rng) -> u64 {
        rng.random_range(self.low..=self.high)
    }
}

impl std::fmt::Display for LengthRange {
    /// `192 to 320`, or `8`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.low == self.high {
            true => write!(f, "{}", self.high),
            false => write!(f, "{} to {}", self.low, self.high),
        }
    }
}
