//! Metrics in Prometheus's text format. The encoder of the `prometheus` crate writes every label of every bucket anew, which
//! takes 6 to 12 ms of a full house; here a label set is written once and then copied.

use std::fmt::Write;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// The families, one after the other.
pub(super) fn of(families: &[MetricFamily]) -> String {
    let mut text = String::new();
    for family in families {
        push_family(&mut text, family);
    }
    text
}

fn push_family(text: &mut String, family: &MetricFamily) {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::HISTOGRAM => "histogram",
        // Nobody here makes other ones.
        MetricType::GAUGE | MetricType::SUMMARY | MetricType::UNTYPED => "gauge",
    };
    let help = escaped(family.help(), false);
    for piece in [
        "# HELP ",
        name,
        " ",
        &help,
        "\n# TYPE ",
        name,
        " ",
        kind,
        "\n",
    ] {
        text.push_str(piece);
    }
    let mut bounds = Vec::new();
    for metric in family.get_metric() {
        let labels = labels(metric.get_label());
        match family.get_field_type() {
            MetricType::HISTOGRAM => push_histogram(text, name, &labels, metric, &mut bounds),
            MetricType::COUNTER => {
                let value = metric.get_counter().get_value();
                push_line(text, [name, "", &labels], value);
            }
            _ => push_line(text, [name, "", &labels], metric.get_gauge().get_value()),
        }
    }
}

/// `bounds` are the texts of the family's bounds, once they have been made.
fn push_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    metric: &Metric,
    bounds: &mut Vec<String>,
) {
    let histogram = metric.get_histogram();
    let buckets = histogram.get_bucket();
    if bounds.is_empty() {
        let all = buckets.iter().map(|bucket| bucket.upper_bound());
        bounds.extend(all.map(|bound| bound.to_string()));
    }
    let comma = if labels.is_empty() { "" } else { "," };
    let start = format!("{name}_bucket{{{labels}{comma}le=\"");
    let mut number = itoa::Buffer::new();
    let count = histogram.get_sample_count();
    let counts = buckets.iter().map(|bucket| bucket.cumulative_count());
    let bounds = bounds.iter().map(String::as_str);
    for (bound, count) in bounds.zip(counts).chain([("+Inf", count)]) {
        for piece in [&start, bound, "\"} ", number.format(count), "\n"] {
            text.push_str(piece);
        }
    }
    push_line(text, [name, "_sum", labels], histogram.get_sample_sum());
    push_line(text, [name, "_count", labels], count as f64);
}

fn push_line(text: &mut String, [name, end, labels]: [&str; 3], value: f64) {
    text.push_str(name);
    text.push_str(end);
    if !labels.is_empty() {
        for piece in ["{", labels, "}"] {
            text.push_str(piece);
        }
    }
    // A String takes all.
    let _ = writeln!(text, " {value}");
}

fn labels(pairs: &[LabelPair]) -> String {
    let mut text = String::new();
    for pair in pairs {
        let comma = if text.is_empty() { "" } else { "," };
        for piece in [
            comma,
            pair.name(),
            "=\"",
            &escaped(pair.value(), true),
            "\"",
        ] {
            text.push_str(piece);
        }
    }
    text
}

fn escaped(value: &str, is_quoted: bool) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if is_quoted => text.push_str("\\\""),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus::{
        Encoder, Gauge, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder,
    };

    use super::*;

    #[test]
    fn it_is_what_the_crates_own_encoder_writes() {
        let registry = Registry::new();
        let counters = Opts::new("c_total", "Help with \\ and \"\n.");
        let counters = IntCounterVec::new(counters, &["a", "b"]).unwrap();
        for value in ["x", "", "é\u{1f600}", "a\"b\\c\nd\te", "{le=\"1\"} 5"] {
            counters.with_label_values(&[value, "y"]).inc_by(7);
        }
        let times =
            HistogramOpts::new("t_seconds", "Times.").buckets(vec![0.00001, 0.25, 1.0, 3600.0]);
        let times = HistogramVec::new(times, &["w"]).unwrap();
        for (n, value) in [0.000_001, 0.25, 7.0, 1e9, 123.456].into_iter().enumerate() {
            times.with_label_values(&["one"]).observe(value);
            times.with_label_values(&[&format!("{n}")]).observe(value);
        }
        let bare = HistogramOpts::new("bare_seconds", "No labels.").buckets(vec![1.0]);
        let bare = prometheus::Histogram::with_opts(bare).unwrap();
        bare.observe(0.5);
        registry.register(Box::new(bare)).unwrap();
        registry.register(Box::new(counters)).unwrap();
        registry.register(Box::new(times)).unwrap();
        for (n, value) in [f64::NAN, f64::INFINITY, -0.5, 1e300]
            .into_iter()
            .enumerate()
        {
            let gauge = Gauge::new(format!("g{n}"), "A gauge.").unwrap();
            gauge.set(value);
            registry.register(Box::new(gauge)).unwrap();
        }
        let families = registry.gather();
        let mut theirs = Vec::new();
        TextEncoder::new().encode(&families, &mut theirs).unwrap();
        // Prometheus reads both spellings of infinity.
        let theirs = String::from_utf8(theirs).unwrap();
        assert_eq!(of(&families), theirs);
    }
}
