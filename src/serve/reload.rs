//! A changed config taken on while the proxy serves: all of it, or nothing.

use std::sync::Arc;

use crate::client::listener::ListenSocket;
use crate::client::takeover::Inherited;
use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::keys::Taken;
use crate::upstream::Upstreams;

use super::lifecycle::Proxy;
use super::start::{Served, bind};

impl Proxy {
    /// Takes on what can change without a restart: upstreams, policy, workers, time limits, stamps. Requests
    /// under way end as they began. A worker that is gone is accepted from no more, and its connections end with
    /// their next response. Gives what has changed, in words.
    ///
    /// # Errors
    /// Why it is refused, in words, each reason by itself; then nothing has changed.
    pub async fn reload(&self, config: Config) -> Result<String, Vec<String>> {
        let done = self.try_reload(config).await;
        let result = if done.is_ok() { "applied" } else { "refused" };
        self.metrics().reloads.with(&[result]).inc();
        done
    }

    async fn try_reload(&self, config: Config) -> Result<String, Vec<String>> {
        let wrong = |all: Vec<ConfigError>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let credentials = config.check().map_err(wrong)?;
        let old = self.shared.config.load_full();
        let changes = old.changes(&config);
        let mut fixed = needs_restart(&old, &config);
        // The file is the same, what it holds is not.
        let is_new = |key: &str| !fixed.iter().any(|fixed| fixed.starts_with(key));
        let admin_token =
            is_new("admin_token") && credentials.admin_token != self.shared.admin_token;
        let hop_secret = credentials.hop_secret.as_ref();
        let hop_secret = is_new("hop_secret")
            && hop_secret.is_some_and(|secret| secret != self.shared.hop_key.secret());
        fixed.extend(admin_token.then_some("admin_token_file"));
        fixed.extend(hop_secret.then_some("hop_secret_file"));
        if !fixed.is_empty() {
            let keys = fixed.join(", ");
            let why = format!("{keys}: needs a restart to change; take it back, or restart");
            return Err(vec![why]);
        }
        let running: Vec<(ListenSocket, Arc<Upstreams>)> = {
            let running = self.listeners.running.lock();
            let now = |running: &Served| {
                (
                    running.socket.clone(),
                    running.service.upstreams.load_full(),
                )
            };
            running.iter().map(now).collect()
        };
        let (metrics, none) = (self.metrics(), &mut Inherited::default());
        let bound = bind(&config, credentials.trust, &running, metrics, none).await;
        let bound = bound.map_err(|wrong| vec![wrong.to_string()])?;
        // From here on nothing can fail.
        let keys: Vec<&str> = changes.into_iter().map(|(key, _)| key).collect();
        let mut said = Vec::new();
        said.extend((!keys.is_empty()).then(|| format!("changed {}", keys.join(", "))));
        if let (Some(tls), Some(read)) = (&self.shared.tls, credentials.tls) {
            tls.store(read);
            said.push("certificate read again".to_owned());
        }
        said.extend(self.listeners.take_on(&config, bound));
        if said.is_empty() {
            return Ok("every key is as before".into());
        }
        Ok(said.join("; "))
    }
}

/// The keys that differ, of those that are read only at the start.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let changes = old.changes(new).into_iter();
    let fixed = changes.filter(|(_, taken)| *taken == Taken::Restart);
    let mut keys: Vec<&str> = fixed.map(|(key, _)| key).collect();
    if old.upstream.is_empty() != new.upstream.is_empty() {
        // A front comes or goes.
        keys.push("upstream");
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_that_comes_or_goes_needs_a_restart() {
        let hops = Config::default();
        let front = Config {
            upstream: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into()],
            ..Config::default()
        };
        let more = Config {
            upstream: [front.upstream.clone(), front.upstream.clone()].concat(),
            workers: vec!["w=127.0.0.1:0=127.0.0.1:4".parse().unwrap()],
            ..Config::default()
        };
        assert_eq!(needs_restart(&hops, &front), ["upstream"]);
        assert_eq!(needs_restart(&front, &hops), ["upstream"]);
        assert_eq!(needs_restart(&front, &more), [""; 0]);
    }
}
