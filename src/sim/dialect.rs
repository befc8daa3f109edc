//! Generations of SGLang, which differ in the fields of `meta_info`.

use clap::ValueEnum;

/// A generation, named after the first of its releases whose source was read. Ordered by release, except for the fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Dialect {
    /// No times at all.
    #[value(name = "0.4.0")]
    V040,
    /// `e2e_latency` alone.
    #[value(name = "0.4.6")]
    V046,
    /// The seed's fork (about 0.4.9), whose times in the queue are no epoch but `perf_counter`.
    #[value(name = "seed-fork")]
    SeedFork,
    /// The seed's fork after its correction: all times are epoch seconds.
    #[value(name = "seed-fork-epoch")]
    SeedForkEpoch,
    /// As 0.4.6, with `total_retractions`.
    #[value(name = "0.5.4")]
    V054,
    /// The first with `queue_time`.
    #[value(name = "0.5.5")]
    V055,
    /// Other names for the same.
    #[value(name = "0.5.6")]
    V056,
    /// `prefill_finished_ts` is stamped in the scheduler.
    #[value(name = "0.5.7")]
    V057,
    /// The first with `forward_entry_time`.
    #[value(name = "0.5.10")]
    V0510,
    /// Without the durations beside `queue_time`.
    #[value(name = "0.5.12")]
    V0512,
    /// The first with `first_token_latency`.
    #[value(name = "0.5.21")]
    V0521,
    /// The first with the waits for storage.
    #[value(name = "0.5.22")]
    V0522,
    /// As recorded.
    #[default]
    #[value(name = "0.5.23")]
    V0523,
}

impl Dialect {
    /// The version that the server reports.
    pub(super) fn version(self) -> String {
        match (self, self.to_possible_value()) {
            (Dialect::SeedFork | Dialect::SeedForkEpoch, _) | (_, None) => "0.4.9".to_owned(),
            (_, Some(name)) => name.get_name().to_owned(),
        }
    }
}
