//! Prometheus's text format, as far as gauges need it; pure.

/// A sample.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    labels: Vec<(&'a str, String)>,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// A label's value; empty: it has none.
    pub(super) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// The samples of a page; lines that are none are passed over.
pub(super) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time may follow the value.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name,
        labels,
        value,
    })
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        rest = loop {
            match chars.next()? {
                (at, '"') => break quoted.get(at + 1..)?,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_and_without_labels() {
        let page = "# HELP a b\na 1\nb{x=\"1\",y=\"a\\\"},\\\\ \"} 2.5e3 1700000000\n\nbroken{x=\"1\nc{} NaN\nd\n";
        let found: Vec<_> = samples(page).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!((found[0].name, found[0].value), ("a", 1.0));
        assert_eq!((found[1].name, found[1].value), ("b", 2500.0));
        assert_eq!(found[1].label("y"), "a\"},\\ ");
        assert_eq!(found[1].label("z"), "");
        assert!(found[2].value.is_nan());
    }
}
