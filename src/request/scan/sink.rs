//! Who receives what is found in a document.

use crate::request::field::Field;
use crate::request::scalar::Scalar;

/// The longest scalar that is kept whole, bytes.
pub const CAPTURE: usize = 256;

/// Receives what [`super::Scanner`] finds.
pub trait Sink {
    /// Whether the sink may do without numbers and literals of this field.
    fn may_skip(_field: Field) -> bool {
        false
    }
    /// Asked where what holds the container of such values is about to close: whether the sink wants them. Of a document
    /// that was compared they come then, and else not at all; one that is scanned tells them where they stand.
    fn wants(&self) -> bool {
        true
    }
    /// A number, literal or whole string. Strings longer than [`CAPTURE`] bytes are cut there.
    fn scalar(&mut self, field: Field, value: Scalar<'_>);
    /// A piece of a string, its escapes still in it. Empty strings give no piece.
    fn text(&mut self, field: Field, piece: &[u8]);
    /// The string that gave pieces is over.
    fn text_end(&mut self, _field: Field) {}
    /// An object or array begins.
    fn open(&mut self, _field: Field) {}
    /// It is over.
    fn close(&mut self, _field: Field) {}
}
