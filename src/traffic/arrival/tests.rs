use super::*;

const N: usize = 20_000;

/// √n × the Kolmogorov-Smirnov distance of `sample` from a distribution function.
fn distance_from(of: impl Fn(f64) -> f64, mut sample: Vec<f64>) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let distance = sample.iter().enumerate().fold(0.0_f64, |worst, (i, gap)| {
        let expected = of(*gap);
        let (below, above) = (i as f64 / n, (i + 1) as f64 / n);
        worst.max(expected - below).max(above - expected)
    });
    distance * n.sqrt()
}

/// The exponential distribution function of gaps of mean 1.
fn exponential(gap: f64) -> f64 {
    1.0 - (-gap).exp()
}

/// √n × the lag-1 autocorrelation, standard normal for independent gaps.
fn lag_one(sample: &[f64]) -> f64 {
    let n = sample.len() as f64;
    let mean = sample.iter().sum::<f64>() / n;
    let variance: f64 = sample.iter().map(|gap| (gap - mean).powi(2)).sum();
    let pairs = sample.windows(2);
    let covariance: f64 = pairs.map(|w| (w[0] - mean) * (w[1] - mean)).sum();
    covariance / variance * n.sqrt()
}

/// A true Poisson process exceeds each limit with a probability below 1e-6 for a random seed:
/// P(√n D > 2.7) = 2 exp(−2 × 2.7²) = 9e-7; P(|z| > 4.9) = 1e-6.
const KS_LIMIT: f64 = 2.7;
const Z_LIMIT: f64 = 4.9;

const RAMPS: &str = "0:20,100:200,100:80,200:80,300:0,350:0,360:150";

fn gamma(shape: f64) -> Gaps {
    Gaps::Gamma(Gamma::new(shape, 1.0 / shape).unwrap())
}

fn on_curve(gaps: Gaps, points: &str) -> Arrival {
    let rate = points.parse().unwrap();
    Arrival::Process { gaps, rate }
}

/// The gaps between the values of the integral of `curve` at arrivals on a curve.
fn unit_gaps(gaps: Gaps, points: &str, curve: &Curve, seed: u64, n: usize) -> Vec<f64> {
    let mut before = 0.0;
    let arrival = on_curve(gaps, points);
    let at = arrival.offsets(seed).take(n);
    at.map(|at| {
        let due = curve.integral(at as f64 / NANOS as f64);
        due - std::mem::replace(&mut before, due)
    })
    .collect()
}

#[test]
fn gamma_gaps_follow_their_distribution() {
    // For integer shapes it has a closed form: 1 − e^(−x) Σ x^k / k!, x = shape × gap of mean 1.
    let of = |gap: f64| 1.0 - (-2.0 * gap).exp() * (1.0 + 2.0 * gap);
    let flat = "0:20,9:20";
    let sample = |shape| unit_gaps(gamma(shape), flat, &flat.parse().unwrap(), 8, N);
    assert!(lag_one(&sample(2.0)).abs() < Z_LIMIT);
    assert!(distance_from(of, sample(2.0)) < KS_LIMIT);
    // 15 % off the shape.
    assert!(distance_from(of, sample(2.3)) > KS_LIMIT);
    // Shape 1/2 is χ² with one degree of freedom. These are its quantiles; the share below each has a standard error of
    // √(p (1 − p) / n).
    let bursty = sample(0.5);
    for (p, chi) in [(0.1, 0.015_790_8), (0.5, 0.454_936_4), (0.9, 2.705_543_5)] {
        let below = bursty.iter().filter(|gap| **gap < chi).count() as f64;
        let z = (below / N as f64 - p) / (p * (1.0 - p) / N as f64).sqrt();
        assert!(z.abs() < Z_LIMIT, "{p}: z = {z}");
    }
}

#[test]
fn constant_gaps_are_exact_and_a_run_has_as_many_requests_as_its_rate_says() {
    let constant = Arrival::new(8.0, Gaps::Constant);
    let offsets: Vec<i64> = constant.offsets(1).take(80_000).collect();
    let exact = (0..80_000).map(|k| NANOS / 16 + k * NANOS / 8);
    assert!(offsets.iter().copied().eq(exact));
    for seconds in [1, 10, 9999] {
        let held = offsets.iter().filter(|at| **at < seconds * NANOS).count();
        assert_eq!(held as i64, 8 * seconds);
    }
}

#[test]
fn the_integral_of_a_flat_or_changing_rate_is_a_poisson_process_of_one_a_second() {
    let flat = ["0:50,9:50", "0:500,9:500", "0:0.25,9:0.25"];
    for (seed, points) in (1..).zip(flat.into_iter().chain([RAMPS; 3])) {
        let curve = points.parse().unwrap();
        let of = |gaps| unit_gaps(gaps, points, &curve, seed, N);
        let sample = of(Gaps::Exponential);
        assert!(lag_one(&sample).abs() < Z_LIMIT, "{points}");
        assert!(distance_from(exponential, sample) < KS_LIMIT, "{points}");
        let bursty = of(gamma(0.5));
        assert!(distance_from(exponential, bursty) > KS_LIMIT);
        let even = of(Gaps::Constant);
        assert!((even[0] - 0.5).abs() < 1e-6);
        assert!(even[1..].iter().all(|gap| (gap - 1.0).abs() < 1e-6));
    }
    // The same sample does not fit a curve whose first piece is 14 % lower.
    let lower: Curve = "0:20,100:170,100:80,200:80,300:0,350:0,360:150"
        .parse()
        .unwrap();
    let off = unit_gaps(Gaps::Exponential, RAMPS, &lower, 1, 11_000);
    assert!(distance_from(exponential, off) > KS_LIMIT);
}

#[test]
fn each_piece_of_a_curve_has_as_many_requests_as_its_integral() {
    let even = on_curve(Gaps::Constant, RAMPS);
    let even: Vec<i64> = even.offsets(5).take_while(|at| *at < 400 * NANOS).collect();
    // The integrals of the pieces, computed by hand.
    for (from, to, due) in [
        (0, 50, 3250),
        (50, 100, 7750),
        (100, 200, 8000),
        (200, 300, 4000),
        (300, 350, 0),
        (350, 360, 750),
        (360, 400, 6000),
    ] {
        let within = from * NANOS..to * NANOS;
        let held = even.iter().filter(|at| within.contains(at)).count();
        assert_eq!(held, due, "{from} to {to} s");
    }
    let mean = on_curve(Gaps::Exponential, RAMPS)
        .rate(400 * NANOS)
        .unwrap();
    assert!((mean - 29_750.0 / 400.0).abs() < 1e-9, "{mean}");
}

#[test]
fn a_curve_is_shown_as_it_was_given_in_seconds() {
    let minutes = "0:5,1min:50,0.1h:5".parse::<Curve>().unwrap();
    assert_eq!(minutes.to_string(), "0:5,60:50,360:5");
    let ramps: Curve = RAMPS.parse().unwrap();
    assert_eq!((ramps.to_string(), ramps.end()), (RAMPS.to_owned(), 360.0));
}

#[test]
fn given_times_are_kept_and_end() {
    let at = Arrival::At([0, 5, 4 * NANOS].into());
    assert_eq!(at.offsets(1).collect::<Vec<_>>(), [0, 5, 4 * NANOS]);
    assert_eq!(at.rate(0), Some(0.5), "two gaps in four seconds");
    assert_eq!(Arrival::At([0, 0].into()).rate(0), None, "all at once");
}
