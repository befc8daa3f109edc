//! A changed config taken on while the proxy serves: all of it, or nothing.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::client::listener::ListenSocket;
use crate::client::takeover::Inherited;
use crate::config::keys::Taken;
use crate::config::proxy::{Config, Worker};
use crate::upstream::Upstreams;

use super::error::{Error, Refused};
use super::lifecycle::Proxy;
use super::start::{Served, listen, listeners, settings};

/// New upstreams for a listener that goes on.
struct Swap {
    /// Its place among the running ones.
    at: usize,
    upstreams: Arc<Upstreams>,
}

/// What a reload will do once nothing can fail any more.
#[derive(Default)]
struct Change {
    swaps: Vec<Swap>,
    added: Vec<Served>,
    /// What the certificate's files say now.
    tls: Option<Arc<ServerConfig>>,
}

impl Proxy {
    /// Takes on what can change without a restart: upstreams, policy, workers, time limits, stamps. Requests
    /// under way end as they began. A worker that is gone is accepted from no more, and its connections end with
    /// their next response. Gives what has changed, in words.
    ///
    /// # Errors
    /// See [`Refused`]; then nothing has changed.
    pub async fn reload(&self, config: Config) -> Result<String, Refused> {
        let done = self.try_reload(config).await;
        let result = if done.is_ok() { "applied" } else { "refused" };
        self.metrics().reloads.with(&[result]).inc();
        done
    }

    async fn try_reload(&self, config: Config) -> Result<String, Refused> {
        let credentials = config.check_all().map_err(Refused::Config)?;
        let old = self.config.lock().clone();
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
            return Err(Refused::NeedsRestart(fixed));
        }
        let change = self.prepare(&config, credentials.tls).await?;
        let said = self.apply(&config, change);
        *self.config.lock() = config;
        let keys: Vec<&str> = changes.into_iter().map(|(key, _)| key).collect();
        let changed = (!keys.is_empty()).then(|| format!("changed {}", keys.join(", ")));
        let said: Vec<String> = changed.into_iter().chain(said).collect();
        if said.is_empty() {
            return Ok("every key is as before".into());
        }
        Ok(said.join("; "))
    }

    /// All that can fail.
    async fn prepare(
        &self,
        config: &Config,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<Change, Refused> {
        let running: Vec<(ListenSocket, Arc<Upstreams>)> = {
            let running = self.running.lock();
            let now = |running: &Served| (running.socket.clone(), running.upstreams.load_full());
            running.iter().map(now).collect()
        };
        let mut change = Change {
            tls,
            ..Change::default()
        };
        for spec in listeners(config).map_err(Error::from)? {
            let (name, address, role) = (spec.name.clone(), spec.address, spec.role.clone());
            let same = |socket: &ListenSocket| socket.name == name && socket.configured == address;
            let at = running.iter().position(|(socket, _)| same(socket));
            let before = at.and_then(|at| running.get(at));
            let before = before.map(|(_, upstreams)| upstreams.clone());
            let metrics = self.start.shared.metrics.clone();
            // The system's resolver blocks.
            let resolve = move || spec.resolve(before.as_deref(), &metrics);
            let resolved = tokio::task::spawn_blocking(resolve).await;
            let upstreams = Arc::new(resolved.map_err(Refused::LookUp)??);
            if let Some(at) = at {
                change.swaps.push(Swap { at, upstreams });
                continue;
            }
            // A worker that was renamed keeps its socket.
            let has_it =
                |socket: &&ListenSocket| socket.configured == address && address.port() != 0;
            let socket = match running.iter().map(|(socket, _)| socket).find(has_it) {
                Some(socket) => ListenSocket {
                    name,
                    ..socket.clone()
                },
                None => listen(&name, address, &mut Inherited::default())?,
            };
            change.added.push(self.start.ready(role, socket, upstreams));
        }
        Ok(change)
    }

    /// None of this can fail. Gives what became of listeners and upstreams.
    fn apply(&self, config: &Config, change: Change) -> Vec<String> {
        let mut said = Vec::new();
        self.shared.settings.store(Arc::new(settings(config)));
        if let (Some(tls), Some(read)) = (&self.shared.tls, change.tls) {
            tls.store(read);
        }
        let mut running = self.running.lock();
        for Swap { at, upstreams } in change.swaps {
            if let Some(running) = running.get(at) {
                let (before, now) = (running.upstreams.load().names(), upstreams.names());
                if before != now {
                    let name = &running.socket.name;
                    said.push(format!("{name} to {}", now.join(", ")));
                }
                running.upstreams.store(upstreams);
            }
        }
        for added in change.added {
            said.push(format!(
                "{} on http://{}",
                added.socket.name, added.socket.address
            ));
            running.push(added.accept());
        }
        let place = |running: &Served| {
            let is_it = |worker: &Worker| running.socket.name == format!("worker {}", worker.name);
            config.workers.iter().position(is_it)
        };
        running.retain(|one| {
            let worker = place(one).and_then(|at| config.workers.get(at));
            let is_there = worker.is_some_and(|worker| worker.listen == one.socket.configured);
            let stays = one.socket.name == "listen" || is_there;
            if !stays {
                said.push(format!("{} gone", one.socket.name));
            }
            stays
        });
        // Metrics of one that was added begin at 0 before its first request.
        let metrics = &self.shared.metrics;
        let workers = config.workers.iter();
        workers.for_each(|worker| metrics.expect_worker(&worker.name));
        if let Some(faults) = &self.shared.faults {
            let names = config.workers.iter().map(|worker| worker.name.as_str());
            faults.keep(&names.collect::<Vec<_>>());
        }
        running.sort_by_key(|one| place(one).map_or(0, |at| at + 1));
        said
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

    /// What changes of a proxy before one upstream, and what of it needs a restart.
    fn changed(change: fn(&mut Config)) -> (Vec<&'static str>, Vec<&'static str>) {
        let before = Config {
            upstream: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into()],
            ..Config::default()
        };
        let mut after = before.clone();
        change(&mut after);
        let changes = before.changes(&after).into_iter().map(|(key, _)| key);
        (changes.collect(), needs_restart(&before, &after))
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        for (change, keys) in [
            ((|_| {}) as fn(&mut Config), &[][..]),
            (
                |c| c.listen = "127.0.0.1:9".parse().unwrap(),
                &["listen"][..],
            ),
            (|c| c.records = Some("r".into()), &["records"]),
            (|c| c.admin_token = Some("s".into()), &["admin_token"]),
            (|c| c.upstream.clear(), &["upstream"]),
            (
                |c| {
                    c.threads = 7.try_into().unwrap();
                    c.time_base = crate::config::proxy::Base::Run;
                },
                &["time_base", "threads"],
            ),
        ] {
            assert_eq!(changed(change).1, keys);
        }
    }

    #[test]
    fn what_a_reload_takes_on_needs_none() {
        let (changes, fixed) = changed(|c| {
            c.upstream.extend(c.upstream.clone());
            c.policy = crate::upstream::Policy::Random;
            c.workers = vec!["w=127.0.0.1:0=127.0.0.1:4".parse().unwrap()];
            c.stamps_token = Some("s".into());
            c.drain_timeout_s = 1.0.try_into().unwrap();
            c.client_idle_timeout_s = 9.try_into().unwrap();
        });
        assert_eq!((changes.len(), fixed), (6, Vec::new()));
    }
}
