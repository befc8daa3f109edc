//! A changed config taken on while the proxy serves: all of it, or nothing.

use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::config::check::Plan;
use crate::config::proxy::Config;
use crate::edge::listener::ListenSocket;
use crate::edge::takeover::Inherited;
use crate::edge::tls::Files;
use crate::proxy::shared::Role;
use crate::upstream::{Address, Rules, Upstreams};

use super::error::{Error, Refused};
use super::lifecycle::Proxy;
use super::start::{Served, Start, listen, settings};

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
    tls: Option<ServerConfig>,
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
        self.metrics().reloaded(done.is_ok());
        done
    }

    async fn try_reload(&self, config: Config) -> Result<String, Refused> {
        let plan = config.check_all().map_err(Refused::Wrong)?;
        let old = self.config.lock().clone();
        let mut fixed = needs_restart(&old, &config);
        if plan.admin_token != self.shared.admin_token
            && !fixed.iter().any(|key| key.starts_with("admin_token"))
        {
            // The file is the same, what it holds is not.
            fixed.push("admin_token_file".into());
        }
        let hop_secret = plan.hop_secret.as_ref();
        let is_changed = hop_secret.is_some_and(|secret| secret != self.shared.hop_key.secret());
        if is_changed && !fixed.iter().any(|key| key.starts_with("hop_secret")) {
            fixed.push("hop_secret_file".into());
        }
        if !fixed.is_empty() {
            return Err(Refused::NeedsRestart(fixed));
        }
        let change = self.prepare(&plan).await?;
        let keys = differing(&old, &config);
        let said = self.apply(&config, &plan, change);
        *self.config.lock() = config;
        let changed = (!keys.is_empty()).then(|| format!("changed {}", keys.join(", ")));
        let said: Vec<String> = changed.into_iter().chain(said).collect();
        if said.is_empty() {
            return Ok("every key is as before".into());
        }
        Ok(said.join("; "))
    }

    /// All that can fail.
    async fn prepare(&self, plan: &Plan) -> Result<Change, Refused> {
        let running: Vec<(ListenSocket, Arc<Upstreams>)> = {
            let running = self.running.lock();
            let now = |running: &Served| (running.socket.clone(), running.upstreams.load_full());
            running.iter().map(now).collect()
        };
        let tls = plan.tls.as_ref().map(Files::read).transpose();
        let mut change = Change {
            tls: tls.map_err(Error::from)?,
            ..Change::default()
        };
        let front = (!plan.upstream.is_empty()).then(|| {
            let name = "listen".to_owned();
            (name, plan.listen, Role::Front, plan.upstream.clone())
        });
        let hops = plan.workers.iter().map(|(name, listen, upstream)| {
            let role = Role::Hop(name.as_str().into());
            let name = format!("worker {name}");
            (name, *listen, role, vec![upstream.clone()])
        });
        for (name, address, role, addresses) in front.into_iter().chain(hops) {
            let rules = plan.rules(&role);
            let rules = rules.map_err(|wrong| Refused::Wrong(vec![wrong]))?;
            let same = |socket: &ListenSocket| socket.name == name && socket.configured == address;
            let at = running.iter().position(|(socket, _)| same(socket));
            let before = at.and_then(|at| running.get(at));
            let before = before.map(|(_, upstreams)| upstreams.clone());
            let key = match &role {
                Role::Front => "upstream".to_owned(),
                Role::Hop(worker) => format!("worker {worker}: upstream"),
            };
            let upstreams = resolve(&self.start, key, addresses, rules, before).await?;
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
    fn apply(&self, config: &Config, plan: &Plan, change: Change) -> Vec<String> {
        let mut said = Vec::new();
        self.shared.settings.store(Arc::new(settings(config, plan)));
        if let (Some(tls), Some(read)) = (&self.shared.tls, change.tls) {
            tls.put(read);
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
        let wanted: Vec<String> = plan
            .workers
            .iter()
            .map(|(name, ..)| format!("worker {name}"))
            .collect();
        let place = |running: &Served| wanted.iter().position(|name| *name == running.socket.name);
        running.retain(|one| {
            let stays = one.socket.name == "listen"
                || (place(one).is_some_and(|at| {
                    plan.workers
                        .get(at)
                        .is_some_and(|worker| worker.1 == one.socket.configured)
                }));
            if !stays {
                said.push(format!("{} gone", one.socket.name));
            }
            stays
        });
        if let Some(faults) = &self.shared.faults {
            let names = plan.workers.iter().map(|(name, ..)| name.as_str());
            faults.keep(&names.collect::<Vec<_>>());
        }
        running.sort_by_key(|one| place(one).map_or(0, |at| at + 1));
        said
    }
}

async fn resolve(
    start: &Start,
    key: String,
    addresses: Vec<Address>,
    rules: Rules,
    before: Option<Arc<Upstreams>>,
) -> Result<Arc<Upstreams>, Refused> {
    let metrics = start.shared.metrics.clone();
    // The system's resolver blocks.
    let resolve = move || Upstreams::resolve(&addresses, rules, before.as_deref(), &metrics);
    let resolved = tokio::task::spawn_blocking(resolve).await;
    let resolved = resolved.map_err(Refused::LookUp)?;
    let resolved = resolved.map_err(|problem| Error::Resolve { key, problem })?;
    Ok(Arc::new(resolved))
}

/// The keys that differ, of those that are read only at the start.
fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    // What a reload takes on; all else is for a restart.
    let taken_on = Config {
        upstream: new.upstream.clone(),
        policy: new.policy,
        upstream_out_s: new.upstream_out_s,
        upstream_ca: new.upstream_ca.clone(),
        resend_broken: new.resend_broken,
        workers: new.workers.clone(),
        stamps: new.stamps,
        ready_needs_upstream: new.ready_needs_upstream,
        stamps_token: new.stamps_token.clone(),
        drain_timeout_s: new.drain_timeout_s,
        upstream_connect_timeout_s: new.upstream_connect_timeout_s,
        upstream_read_timeout_s: new.upstream_read_timeout_s,
        upstream_write_timeout_s: new.upstream_write_timeout_s,
        upstream_idle_timeout_s: new.upstream_idle_timeout_s,
        client_idle_timeout_s: new.client_idle_timeout_s,
        client_read_timeout_s: new.client_read_timeout_s,
        client_write_timeout_s: new.client_write_timeout_s,
        client_head_timeout_s: new.client_head_timeout_s,
        client_body_timeout_s: new.client_body_timeout_s,
        client_stall_timeout_s: new.client_stall_timeout_s,
        request_head_max_bytes: new.request_head_max_bytes,
        request_body_max_bytes: new.request_body_max_bytes,
        ..old.clone()
    };
    let mut keys = differing(&taken_on, new);
    if old.upstream.is_empty() != new.upstream.is_empty() {
        // A front comes or goes.
        keys.push("upstream".into());
    }
    keys
}

/// The names of the members that differ. A config's pretty `Debug` has a member a line, at this indent; that
/// covers keys that are added later, too.
fn differing(a: &Config, b: &Config) -> Vec<String> {
    let members = |config: &Config| {
        let mut members: Vec<(String, String)> = Vec::new();
        for line in format!("{config:#?}").lines() {
            let member = line
                .strip_prefix("    ")
                .filter(|line| !line.starts_with([' ', ']', ')', '}']));
            match (
                member.and_then(|line| line.split_once(':')),
                members.last_mut(),
            ) {
                (Some((name, value)), _) => members.push((name.to_owned(), value.to_owned())),
                (None, Some((_, value))) => value.push_str(line),
                (None, None) => {}
            }
        }
        members
    };
    let pairs = members(a).into_iter().zip(members(b));
    let mut keys: Vec<String> = pairs.filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
    // `Debug` does not show secrets.
    for (key, a, b) in [
        ("stamps_token", &a.stamps_token, &b.stamps_token),
        ("admin_token", &a.admin_token, &b.admin_token),
        ("hop_secret", &a.hop_secret, &b.hop_secret),
    ] {
        if a != b && !keys.iter().any(|other| other == key) {
            keys.push(key.into());
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            upstream: vec!["127.0.0.1:1".into()],
            ..Config::default()
        }
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let keys = |change: fn(&mut Config)| {
            let mut new = config();
            change(&mut new);
            needs_restart(&config(), &new)
        };
        assert_eq!(keys(|_| {}), [""; 0]);
        assert_eq!(keys(|c| c.listen = "127.0.0.1:9".into()), ["listen"]);
        assert_eq!(keys(|c| c.admin = "127.0.0.1:9".into()), ["admin"]);
        assert_eq!(keys(|c| c.threads = 7), ["threads"]);
        assert_eq!(keys(|c| c.records = Some("r".into())), ["records"]);
        assert_eq!(keys(|c| c.takeover = Some("t".into())), ["takeover"]);
        assert_eq!(keys(|c| c.record_queue = 7), ["record_queue"]);
        assert_eq!(keys(|c| c.upstream.clear()), ["upstream"]);
        assert_eq!(keys(|c| c.admin_token = Some("s".into())), ["admin_token"]);
        let secret = |c: &mut Config| c.hop_secret = Some("sixteen bytes of it".into());
        assert_eq!(keys(secret), ["hop_secret"]);
        let both = |c: &mut Config| {
            c.threads = 7;
            c.time_base = crate::config::proxy::Base::Run;
        };
        assert_eq!(keys(both), ["time_base", "threads"]);
    }

    #[test]
    fn what_a_reload_takes_on_needs_none() {
        let new = Config {
            upstream: vec!["127.0.0.1:2".into(), "127.0.0.1:3".into()],
            policy: crate::upstream::Policy::Random,
            workers: vec!["w=127.0.0.1:0=127.0.0.1:4".parse().unwrap()],
            stamps_token: Some("s".into()),
            drain_timeout_s: 1.0,
            client_idle_timeout_s: 9,
            ..config()
        };
        assert_eq!(needs_restart(&config(), &new), [""; 0]);
        let other = Config {
            stamps_token: Some("t".into()),
            drain_timeout_s: 2.0,
            ..new.clone()
        };
        assert_eq!(differing(&new, &other), ["drain_timeout_s", "stamps_token"]);
    }
}
