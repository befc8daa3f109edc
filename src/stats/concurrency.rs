//! Concurrency: how many intervals overlap, over time.

/// A half-open interval of time, nanoseconds on any one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First nanosecond.
    pub start: i64,
    /// First nanosecond after it.
    pub end: i64,
}

/// An interval of time in equal buckets; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The whole interval.
    pub whole: Interval,
    /// Length of a bucket, nanoseconds, at least 1.
    pub bucket: i64,
}

/// The number of intervals at a time, over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// Mean over the window.
    pub mean: f64,
    /// Maximum in the window.
    pub peak: u64,
    /// Mean in each bucket.
    pub series: Vec<f64>,
}

impl Window {
    /// A window with 40 to 100 buckets of 1, 2 or 5 × 10ⁿ ns (fewer when it is shorter than 40 ns).
    /// `None` if it is empty.
    pub fn new(whole: Interval) -> Option<Window> {
        let length = whole.end.checked_sub(whole.start).filter(|l| *l > 0)?;
        let powers = (0..18).map(|power| 10_i64.pow(power));
        let mut round = powers.flat_map(|power| [1, 2, 5].map(|factor| factor * power));
        let bucket = round.find(|bucket| length <= bucket.saturating_mul(100))?;
        Some(Window { whole, bucket })
    }

    /// The interval of each bucket.
    pub fn buckets(&self) -> Vec<Interval> {
        let Interval { start, end } = self.whole;
        let starts = (start..end).step_by(self.bucket as usize);
        let bucket = |start: i64| Interval {
            start,
            end: start.saturating_add(self.bucket).min(end),
        };
        starts.map(bucket).collect()
    }
}

impl Interval {
    /// The union of intervals: ascending ones that do not touch.
    pub fn union(mut all: Vec<Interval>) -> Vec<Interval> {
        all.retain(|one| one.start < one.end);
        all.sort_unstable_by_key(|one| one.start);
        all.dedup_by(|next, last| {
            let overlaps = next.start <= last.end;
            if overlaps {
                last.end = last.end.max(next.end);
            }
            overlaps
        });
        all
    }

    /// The interval, later by so many nanoseconds.
    pub fn shifted(self, by: i64) -> Interval {
        let [start, end] = [self.start, self.end].map(|at| at.saturating_add(by));
        Interval { start, end }
    }

    /// All time.
    pub const ALWAYS: Interval = Interval {
        start: i64::MIN,
        end: i64::MAX,
    };

    /// Whether any of some ascending intervals that do not overlap contains a time.
    pub fn any_contains(all: &[Interval], at: i64) -> bool {
        let next = all.partition_point(|one| one.end <= at);
        all.get(next).is_some_and(|one| one.start <= at)
    }

    fn length(&self) -> i64 {
        self.end.saturating_sub(self.start).max(0)
    }

    /// The intersection with another interval; `None` if it is empty.
    fn within(&self, other: &Interval) -> Option<Interval> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Interval { start, end })
    }
}

impl Concurrency {
    /// Computes the concurrency of intervals in a window. Intervals that only touch do not overlap; those that end before they start
    /// are ignored.
    pub fn of(intervals: impl IntoIterator<Item = Interval>, window: &Window) -> Concurrency {
        // Per bucket, nanoseconds times level; divided by the length at the end.
        let buckets = window.buckets();
        let mut series = vec![0.0; buckets.len()];
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        let bucket = |at: i64| ((at - window.whole.start) / window.bucket) as usize;
        let inside = intervals.into_iter();
        for interval in inside.filter_map(|interval| interval.within(&window.whole)) {
            starts.push(interval.start);
            ends.push(interval.end);
            let touched = bucket(interval.start)..=bucket(interval.end - 1);
            for (sum, index) in series[touched.clone()].iter_mut().zip(touched) {
                let part = interval.within(&buckets[index]);
                *sum += part.map_or(0, |part| part.length()) as f64;
            }
        }
        starts.sort_unstable();
        ends.sort_unstable();
        let (mut ends, mut level, mut peak) = (ends.into_iter().peekable(), 0, 0);
        for start in starts {
            level += 1;
            // At the same time, ends come before starts.
            while ends.next_if(|end| *end <= start).is_some() {
                level -= 1;
            }
            peak = peak.max(level);
        }
        let total: f64 = series.iter().sum();
        for (bucket, sum) in buckets.iter().zip(&mut series) {
            *sum /= bucket.length().max(1) as f64;
        }
        Concurrency {
            mean: total / window.whole.length().max(1) as f64,
            peak,
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(start: i64, end: i64) -> Interval {
        Interval { start, end }
    }

    #[test]
    fn a_union_contains_what_any_contains_and_does_not_touch() {
        let all = [(5, 9), (0, 2), (1, 3), (3, 4), (7, 8), (12, 11), (6, 6)];
        let all = all.map(|(start, end)| interval(start, end));
        let union = Interval::union(all.to_vec());
        assert_eq!(union, [interval(0, 4), interval(5, 9)]);
        for at in -1..13 {
            let is_contained = all.iter().any(|one| one.start <= at && at < one.end);
            assert_eq!(Interval::any_contains(&union, at), is_contained, "{at}");
        }
    }

    #[test]
    fn buckets_are_round_and_few() {
        let second = 1_000_000_000;
        for (length, bucket) in [
            (2 * second, second / 50),
            (10 * second, second / 10),
            (10 * second + 1, second / 5),
            (600 * second, 10 * second),
            (50, 1),
            (100, 1),
            (101, 2),
        ] {
            let window = Window::new(interval(7, 7 + length)).unwrap();
            assert_eq!(window.bucket, bucket, "{length}");
            assert!((40..=100).contains(&window.buckets().len()), "{length}");
        }
        assert_eq!(Window::new(interval(5, 5)), None);
        let widest = Window::new(interval(0, i64::MAX)).unwrap();
        assert!(widest.buckets().len() <= 100);
    }

    proptest! {
        #[test]
        fn agrees_with_counting_every_moment(
            intervals in prop::collection::vec((-5_i64..60, -4_i64..20), 0..30),
            length in 1_i64..60,
            bucket in 1_i64..20,
        ) {
            let window = Window { whole: interval(0, length), bucket };
            let intervals: Vec<Interval> =
                intervals.into_iter().map(|(start, len)| interval(start, start + len)).collect();
            let got = Concurrency::of(intervals.iter().copied(), &window);
            let levels: Vec<u64> = (0..length)
                .map(|t| intervals.iter().filter(|i| i.start <= t && t < i.end).count() as u64)
                .collect();
            let mean = |levels: &[u64]| levels.iter().sum::<u64>() as f64 / levels.len() as f64;
            prop_assert_eq!(got.peak, *levels.iter().max().unwrap());
            prop_assert!((got.mean - mean(&levels)).abs() < 1e-9);
            let chunks: Vec<f64> = levels.chunks(bucket as usize).map(mean).collect();
            prop_assert_eq!(got.series.len(), chunks.len());
            for (a, b) in got.series.iter().zip(chunks) {
                prop_assert!((a - b).abs() < 1e-9);
            }
        }
    }
}
