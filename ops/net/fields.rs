/// Fields in network order, taken one by one from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).map(|bytes| bytes.try_into().expect("so many bytes were taken"))
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A field of its own length, which one byte before it says.
    pub(super) fn counted_by_u8(&mut self) -> Option<&'a [u8]> {
        let count = self.u8()?;
        self.take(count.into())
    }

    /// A field of its own length, which two bytes before it say.
    pub(super) fn counted_by_u16(&mut self) -> Option<&'a [u8]> {
        let count = self.u16()?;
        self.take(count.into())
    }
}
