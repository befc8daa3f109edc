//! The attributes of spans: the columns, under the names of the semantic conventions if there are any.
//!
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/>; SGLang and vLLM use `gen_ai.latency.*`.

use std::sync::{Arc, LazyLock};

use opentelemetry::{Key, KeyValue, StringValue, Value};

use crate::clock::NANOS;
use crate::request::column::{self, Scope};
use crate::request::columns::{COLUMNS, Column, ColumnId as Id};
use crate::request::endpoint::Endpoint;
use crate::request::row::Row;

/// The columns that a convention has a name for. Every other is `queuescope.` and the column's name.
const CONVENTIONS: [(Id, &str); 12] = [
    (Id::status, "http.response.status_code"),
    (Id::endpoint, "http.route"),
    (Id::model, "gen_ai.request.model"),
    (Id::expected_output_length, "gen_ai.request.max_tokens"),
    (Id::actual_prompt_tokens, "gen_ai.usage.input_tokens"),
    (Id::actual_output_tokens, "gen_ai.usage.output_tokens"),
    (Id::cached_tokens, "gen_ai.usage.cache_read.input_tokens"),
    (Id::engine_id, "gen_ai.response.id"),
    (Id::ttft, "gen_ai.latency.time_to_first_token"),
    (Id::total_latency, "gen_ai.latency.e2e"),
    (Id::pure_queue_time, "gen_ai.latency.time_in_queue"),
    (Id::prefill_time, "gen_ai.latency.time_in_model_prefill"),
];

/// The attribute name of each column, in the order of [`COLUMNS`].
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let name = |column: &Column| Arc::<str>::from(format!("queuescope.{}", column.name));
    let mut keys: Vec<Key> = COLUMNS.iter().map(|column| name(column).into()).collect();
    for (column, convention) in CONVENTIONS {
        keys[column as usize] = Key::from_static_str(convention);
    }
    keys
});

/// Appends the columns of a row that have a value: all of them, or those of one scope.
pub fn columns(row: &Row, scope: Option<Scope>, attributes: &mut Vec<KeyValue>) {
    for (column, key) in COLUMNS.iter().zip(&*KEYS) {
        if scope.is_none_or(|scope| scope == column.scope)
            && let Some(value) = value((column.get)(row))
        {
            attributes.push(KeyValue::new(key.clone(), value));
        }
    }
}

fn value(cell: column::Value<'_>) -> Option<Value> {
    Some(match cell {
        column::Value::Empty => return None,
        column::Value::Text(text) => Value::String(StringValue::from(text.into_owned())),
        column::Value::Bool(bool) => Value::Bool(bool),
        column::Value::Count(count) => Value::I64(i64::try_from(count).unwrap_or(i64::MAX)),
        column::Value::Nanos(nanos) => Value::F64(nanos as f64 / NANOS as f64),
        column::Value::Time(stamp) => Value::F64(stamp.seconds()),
    })
}

/// Returns the attributes of every span of an HTTP request.
pub fn of_http(endpoint: Endpoint) -> [KeyValue; 2] {
    [
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("url.path", endpoint.path()),
    ]
}

/// Returns `host:port` as two attributes.
pub fn of_server(address: &str) -> impl Iterator<Item = KeyValue> + use<> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = (!host.is_empty()).then(|| KeyValue::new("server.address", host.to_owned()));
    let port = port.parse::<i64>().ok();
    let port = port.map(|port| KeyValue::new("server.port", port));
    host.into_iter().chain(port)
}
