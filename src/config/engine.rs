//! The `[engine]` sections: what engines tell outside of their responses, and how long rows wait for it.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::config_error::ConfigError;
use crate::telemetry::otlp::settings::{self, Given, Protocol, Resolved, Wrong};

use super::values::{self, Seconds, Whole};

/// The `[engine]` section, with those below it. Keys, units and defaults: `config.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// How long the rows of a request that has ended wait for its trace or log line.
    pub wait_s: Seconds<0>,
    /// The same where the client has left.
    pub wait_abort_s: Seconds<0>,
    /// Requests whose rows may wait.
    pub most_waiting: Whole<1, 1_048_576>,
    /// The servers' traces: `[engine.traces]` in the file.
    #[serde(skip)]
    pub traces: Traces,
    /// The servers' request logs: `[engine.logs]` in the file.
    #[serde(skip)]
    pub logs: Logs,
}

/// The `[engine.traces]` section.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// Where servers send their spans; none: nowhere.
    #[serde(deserialize_with = "listen")]
    pub listen: Option<SocketAddr>,
    /// The collector that gets them all; `none` for nobody, else that of `[telemetry.otlp]`.
    pub forward_to: Option<String>,
    /// How they travel there.
    pub forward_protocol: Option<Protocol>,
    /// Bytes of them that may wait for it.
    pub queue_bytes: Whole<65_536, 4_294_967_296>,
}

/// The `[engine.logs]` section.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Logs {
    /// The folder where servers on this disk write them; none: they are not read.
    pub path: Option<PathBuf>,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            wait_s: Seconds::of::<2>(),
            wait_abort_s: Seconds::of::<5>(),
            most_waiting: Whole::of::<16_384>(),
            traces: Traces::default(),
            logs: Logs::default(),
        }
    }
}

impl Default for Traces {
    fn default() -> Traces {
        Traces {
            listen: None,
            forward_to: None,
            forward_protocol: None,
            queue_bytes: Whole::of::<33_554_432>(),
        }
    }
}

impl Engine {
    /// Whether anything is listened to.
    pub fn is_on(&self) -> bool {
        self.traces.listen.is_some() || self.logs.path.is_some()
    }
}

impl Traces {
    /// The collector that servers' spans go on to: the one that is named, or `own`, that of our traces.
    ///
    /// # Errors
    /// `forward_to` cannot be used.
    pub fn forward(&self, own: &Resolved) -> Result<Option<settings::Settings>, ConfigError> {
        let named = match self.forward_to.as_deref() {
            _ if self.listen.is_none() => return Ok(None),
            None => return Ok(own.settings.clone()),
            Some("none") => return Ok(None),
            Some(named) => named,
        };
        let given = Given {
            endpoint: Some(named.to_owned()),
            protocol: self.forward_protocol,
            // Those of our own collector may be secret, and are for that one.
            headers: Some(settings::Headers::default()),
            ..Given::default()
        };
        let resolved = settings::Settings::resolve(&given, "queuescope", &|_| None);
        let wrong = |Wrong { problem, .. }| {
            let shown = if named.contains(['@', '?', '#']) {
                "…"
            } else {
                named
            };
            ConfigError::text("engine.traces: forward_to", shown, problem)
        };
        Ok(resolved.map_err(wrong)?.settings)
    }
}

fn listen<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SocketAddr>, D::Error> {
    values::listen_address(value).map(Some)
}
