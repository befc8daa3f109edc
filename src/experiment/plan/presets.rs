//! Values of keys that suit an aim: the advice of SGLang's own page on tuning
//! (docs.sglang.io, "Hyperparameter Tuning") and of the manual.

use toml::Value;

/// The presets.
pub const NAMES: [&str; 3] = ["high-throughput", "low-latency", "low-memory"];

/// What a preset sets.
pub fn of(name: &str) -> Vec<(&'static str, Value)> {
    match name {
        // Large batches: room for many, taken in early, prompts in large pieces.
        "high-throughput" => vec![
            ("max_running_requests", Value::Integer(512)),
            ("mem_fraction_static", Value::Float(0.92)),
            ("chunked_prefill_size", Value::Integer(16_384)),
            ("schedule_conservativeness", Value::Float(0.3)),
        ],
        // Small batches step faster; a prompt's small pieces hold the others' tokens up for less.
        "low-latency" => vec![
            ("max_running_requests", Value::Integer(32)),
            ("chunked_prefill_size", Value::Integer(4_096)),
        ],
        // What the page says against running out of memory in prefill, in decode and in both.
        "low-memory" => vec![
            ("max_running_requests", Value::Integer(64)),
            ("mem_fraction_static", Value::Float(0.7)),
            ("chunked_prefill_size", Value::Integer(2_048)),
        ],
        _ => Vec::new(),
    }
}
