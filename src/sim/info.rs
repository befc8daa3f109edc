//! Responses about the server itself, with the fields that routers, clients and dashboards read.

use serde_json::{Value, json};

use crate::clock::{NANOS, Stamp};

use super::config::Config;
use super::engine::Load;
use super::shared::Shared;

/// The reported path of the model: a folder that exists everywhere and holds no tokenizer. A router looks
/// there for one, and queries the Hugging Face hub for paths that do not exist.
const MODEL_PATH: &str = "/";

/// `/model_info`.
pub(super) fn model_info(config: &Config) -> Value {
    json!({
        "model_path": MODEL_PATH,
        "served_model_name": config.model,
        "tokenizer_path": MODEL_PATH,
        "is_generation": true,
        "disaggregation_mode": config.disaggregation.disaggregation_mode.name(),
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    })
}

/// `/server_info`.
pub(super) fn server_info(shared: &Shared) -> Value {
    let config = &shared.config;
    let profile = &config.profile;
    let bootstrap_port = shared.bootstrap_addr.map(|addr| addr.port());
    json!({
        "model_path": MODEL_PATH,
        "tokenizer_path": MODEL_PATH,
        "served_model_name": config.model,
        "context_length": config.context_len,
        "max_running_requests": profile.max_running_requests,
        "max_total_tokens": profile.max_total_tokens,
        "disaggregation_mode": config.disaggregation.disaggregation_mode.name(),
        "disaggregation_bootstrap_port": bootstrap_port.unwrap_or(config.disaggregation.disaggregation_bootstrap_port),
        "is_embedding": false,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "internal_states": [{
            "effective_max_running_requests_per_dp": profile.max_running_requests,
            "memory_usage": { "token_capacity": profile.max_total_tokens },
        }],
        "version": config.dialect.version(),
        "frontend": "queuescope-sim",
    })
}

/// `/v1/models`.
pub(super) fn models(config: &Config, now: Stamp) -> Value {
    json!({
        "object": "list",
        "data": [{
            "id": config.model,
            "object": "model",
            "created": now.nanos().div_euclid(NANOS),
            "owned_by": "sglang",
            "root": config.model,
            "parent": null,
            "max_model_len": config.context_len,
        }],
    })
}

/// `/v1/loads`.
pub(super) fn loads(config: &Config, load: &Load) -> Value {
    let capacity = config.profile.max_total_tokens;
    json!({
        "version": config.dialect.version(),
        "loads": [{
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            // Routers read it for `power_of_two`.
            "num_total_tokens": load.used_tokens + load.waiting_tokens,
            "max_total_num_tokens": capacity,
            "max_running_requests": config.profile.max_running_requests,
            "token_usage": load.used_tokens as f64 / capacity as f64,
            "cache_hit_rate": load.cache_hit_rate,
        }],
    })
}
