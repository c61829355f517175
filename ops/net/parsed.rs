/// What the first bytes of a stream are, as far as they can be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The whole of it, and how many bytes it took.
    Complete(T, usize),
    /// The beginning of it. With fewer bytes in all than this, there is no more to say.
    Incomplete(usize),
    /// Bytes of something else.
    Foreign,
}
