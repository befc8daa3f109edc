//! Makes a plan from flags: data set, arrival process, client.

use std::sync::Arc;
use std::time::Duration;

use crate::report::load::Goal;
use crate::traffic::args::{Args, ArrivalSource, DatasetName};
use crate::traffic::arrival::curve::Curve;
use crate::traffic::arrival::{Arrival, Gaps};
use crate::traffic::client::{ClientOptions, api_key};
use crate::traffic::download;
use crate::traffic::error::Error;
use crate::traffic::workload::dataset::Dataset;
use crate::traffic::workload::trace::Limits;

use super::{DEFAULT_REQUESTS, RunPlan, nanos};

impl Args {
    /// Makes the plan.
    ///
    /// # Errors
    /// [`Error::Usage`]: values that do not go together, a data set that cannot be read.
    pub fn plan(&self) -> Result<RunPlan, Error> {
        let mut args = self.clone();
        let end = self.rate_curve.as_ref().map(Curve::end);
        let end = end.filter(|_| self.num_prompts.is_none());
        args.duration = self.duration.or(end.map(Duration::from_secs_f64));
        Goal::each_once(&args.goodput).map_err(Error::Usage)?;
        let arrival = args.arrival()?;
        let turns = args.data.turns(args.conversation.turns)?;
        let mut dataset = args.dataset(&arrival, turns)?;
        let plan = RunPlan {
            client: self.client()?,
            max_turns: turns,
            arrival: dataset.times.take().map_or(arrival, Arrival::At),
            dataset: Arc::new(dataset),
            request_id_prefix: self.id_prefix(),
            check_target: true,
            args,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Returns the flags with `--dataset-path` filled in for a data set that can be downloaded.
    ///
    /// # Errors
    /// The download failed.
    pub(in crate::traffic) async fn with_downloads(&self) -> Result<Args, Error> {
        let mut args = self.clone();
        if self.data.dataset_name == DatasetName::Sharegpt && self.data.dataset_path.is_none() {
            // The variable of Hugging Face's own client.
            let mirror = std::env::var("HF_ENDPOINT").ok();
            let mirror = mirror.as_deref().filter(|mirror| !mirror.is_empty());
            args.data.dataset_path = Some(download::sharegpt(&download::cache(), mirror).await?);
        }
        Ok(args)
    }

    /// The arrival process that the flags of rate and burstiness describe.
    fn arrival(&self) -> Result<Arrival, Error> {
        let usage = |message: &str| Err(Error::Usage(message.to_owned()));
        let gaps = match self.data.arrival {
            Some(ArrivalSource::Constant) if self.burstiness == 1.0 => Gaps::Constant,
            _ if self.burstiness == 1.0 => Gaps::Exponential,
            None | Some(ArrivalSource::Gamma) => Gaps::Gamma(self.burstiness),
            _ => return usage("--burstiness: goes with --arrival gamma"),
        };
        match &self.rate_curve {
            None => Ok(Arrival::new(self.request_rate, gaps)),
            Some(curve) => Ok(Arrival::Process {
                gaps,
                rate: curve.clone(),
            }),
        }
    }

    fn client(&self) -> Result<ClientOptions, Error> {
        Ok(ClientOptions {
            tls: self.tls.tls(&self.base_url).map_err(Error::Usage)?,
            target: self.base_url.clone(),
            upstream: self.upstream_kind,
            api_key: api_key(self.api_key.as_deref()).map_err(Error::Usage)?,
            headers: self.header.clone(),
            reuse: !self.disable_connection_reuse,
            request_timeout: self.request_timeout_s,
        })
    }

    /// The prefix of the requests' ids. By default it is random, as ids of two runs must differ even if their seeds do not; but all
    /// shards of a run must have the same.
    fn id_prefix(&self) -> String {
        match (&self.request_id_prefix, self.shard, self.start_at) {
            (Some(prefix), ..) => prefix.clone(),
            (None, None, _) => format!("qs-{:08x}", rand::random::<u32>()),
            (None, Some(_), Some(at)) => format!("qs-{}-{}", self.seed, at.compact_utc()),
            (None, Some(_), None) => format!("qs-{}", self.seed),
        }
    }

    /// Reads or generates the data set, with conversations of at most `turns`. `arrival` is the process that the flags describe.
    ///
    /// # Errors
    /// [`Error::Usage`]: flags that do not go together, a file that cannot be read.
    fn dataset(&self, arrival: &Arrival, turns: usize) -> Result<Dataset, Error> {
        let data = &self.data;
        let speed = data.speed(arrival)?;
        let end = speed.zip(self.duration);
        let limits = Limits {
            count: self.num_prompts,
            // A cast saturates.
            end: end.map(|(speed, duration)| (nanos(duration) as f64 * speed) as i64),
            speed,
        };
        let count = self.requested_count(arrival);
        let count = count.map(|count| count.unwrap_or(DEFAULT_REQUESTS));
        data.dataset(self.seed, self.vocab_size, turns, count, limits)
    }
}
