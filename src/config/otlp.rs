//! Where traces go, and which: `[telemetry.otlp]` with the environment, and where those of servers go on to.

use crate::config_error::ConfigError;
use crate::engine::keys::Traces;
use crate::telemetry::otlp::settings::{Otlp, Resolved, Settings, Wrong};

/// All that exporting needs, the environment included.
///
/// # Errors
/// A key or variable that cannot be used.
pub(super) fn settings(given: &Otlp) -> Result<Resolved, ConfigError> {
    let env = |name: &str| std::env::var(name).ok();
    let resolved = Settings::resolve(given, "queuescope", &env);
    resolved.map_err(
        |Wrong { name, problem }| match (&*name, &given.headers_file) {
            ("endpoint", _) => of_endpoint(&name, given.endpoint.as_deref(), problem),
            ("headers_file", Some(file)) => ConfigError::text(&name, file.display(), problem),
            // Any other value is in the words, or in the environment, where it may be secret.
            _ => ConfigError::new(&name, "…", problem),
        },
    )
}

/// The collector that servers' spans go on to: the one that is named, or `own`, that of our traces.
///
/// # Errors
/// `forward_to` cannot be used.
pub(super) fn forward(traces: &Traces, own: &Resolved) -> Result<Option<Settings>, ConfigError> {
    let named = match traces.forward_to.as_deref() {
        _ if traces.listen.is_none() => return Ok(None),
        None => return Ok(own.settings.clone()),
        Some("none") => return Ok(None),
        Some(named) => named,
    };
    // Headers of our own collector may be secret, and are for that one.
    let given = Otlp {
        endpoint: Some(named.to_owned()),
        protocol: traces.forward_protocol,
        ..Otlp::default()
    };
    let resolved = Settings::resolve(&given, "queuescope", &|_| None);
    let wrong =
        |Wrong { problem, .. }| of_endpoint("engine.traces: forward_to", Some(named), problem);
    Ok(resolved.map_err(wrong)?.settings)
}

/// A collector's URL that cannot be used, which is not shown if a part of it may be secret: a user, a query.
fn of_endpoint(key: &str, url: Option<&str>, problem: String) -> ConfigError {
    match url.filter(|url| !url.contains(['@', '?', '#'])) {
        Some(url) => ConfigError::text(key, url, problem),
        None => ConfigError::new(key, "…", problem),
    }
}
