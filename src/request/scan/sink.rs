//! The receiver of the values found in a document.

use crate::request::field::Field;
use crate::request::scalar::Scalar;

/// The longest scalar that is reported whole, bytes.
pub const MAX_SCALAR_BYTES: usize = 256;

/// Receives what [`super::Scanner`] finds.
pub trait Sink {
    /// Whether the sink wants the optional values ([`Field::is_optional`]), asked before the parent of their container closes. On the fast path they are
    /// reported then or not at all; a scan reports them where they stand.
    fn wants_optional(&self) -> bool {
        true
    }
    /// A number, literal or whole string. Strings longer than [`MAX_SCALAR_BYTES`] bytes are cut there.
    fn scalar(&mut self, field: Field, value: Scalar<'_>);
    /// A piece of a string, with escapes. Empty strings give no piece.
    fn text(&mut self, field: Field, piece: &[u8]);
    /// The string that gave pieces ends.
    fn text_end(&mut self, _field: Field) {}
    /// An object or array begins.
    fn open(&mut self, _field: Field) {}
    /// It ends.
    fn close(&mut self, _field: Field) {}
}
