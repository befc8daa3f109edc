//! A request whose prompt is asked for, and whose body is read, before it is sent on.

use crate::clock::Stamp;

use super::Context;

impl Context {
    /// All of the request's body has been read.
    pub fn request_read(&mut self) {
        if self.request_end.is_none() {
            self.request_end = Some(self.shared.clock.now());
            if let Some(connection) = &self.connection {
                connection.request_is_whole();
            }
        }
    }

    /// Its prompt was asked for at `began`, and is known now or will never be.
    pub fn prompt_waited(&mut self, began: Stamp) {
        let nanos = self.shared.clock.now().nanos_since(began);
        self.away.client_waited_for(nanos);
        self.prompt_wait = Some(nanos);
    }
}
