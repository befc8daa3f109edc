//! Error responses of the proxy's own.

/// An answer in the shape of OpenAI's errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// What happened.
    pub message: String,
}

impl Answer {
    /// For a request that is refused with this status.
    pub fn refusing(status: u16) -> Answer {
        let (kind, what) = match status {
            400 => (
                "invalid_request_error",
                "the request target holds a control byte",
            ),
            501 => (
                "invalid_request_error",
                "the only Transfer-Encoding that this proxy takes is chunked",
            ),
            413 => (
                "invalid_request_error",
                "the request body is larger than this proxy takes",
            ),
            431 => (
                "invalid_request_error",
                "the request head is larger than this proxy takes",
            ),
            503 => (
                "overloaded",
                "this proxy has as many connections as it takes; try again later",
            ),
            _ => ("request_timeout", "the request did not come in time"),
        };
        Answer {
            status,
            kind,
            message: what.to_owned(),
        }
    }

    /// The JSON body.
    pub fn body(&self) -> String {
        let error = serde_json::json!({
            "message": self.message, "type": self.kind, "param": null, "code": self.status,
        });
        serde_json::json!({ "error": error }).to_string()
    }

    /// Head and body, where Pingora has no request to answer.
    pub fn message_on_its_own(&self) -> String {
        let body = self.body();
        let reason = http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or_default();
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             cache-control: no-store\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
    }
}
