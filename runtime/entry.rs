//! One submission, as the kernel lays it out, with names.
//!
//! The kernel's `struct io_uring_sqe` is a 64-byte record with unions. [`Entry`] is that record with one name per
//! field, so that a scripted ring can read what an operation asked for; only the kernel ring turns it into the
//! `io-uring` crate's entry. Field order and sizes are the kernel's (`include/uapi/linux/io_uring.h`).

/// One submission entry: the kernel's 64 bytes, with named fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// `IORING_OP_*`.
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// Request priority; for some opcodes a set of opcode flags.
    pub ioprio: u16,
    /// The descriptor (or fixed slot) the operation works on.
    pub fd: i32,
    /// File offset, or a second address (`off`, `addr2`).
    pub off: u64,
    /// Address of the buffer, vectors or name; for splice the input offset (`addr`, `splice_off_in`).
    pub addr: u64,
    /// Length in bytes, or a count of vectors.
    pub len: u32,
    /// Flags of the opcode (`rw_flags`, `poll32_events`, `splice_flags`, `msg_flags`, ...).
    pub op_flags: u32,
    /// What the completion will carry back: the key of the slot.
    pub user_data: u64,
    /// Index of a registered buffer, or a provided-buffer group.
    pub buf_index: u16,
    /// Registered credentials; unused here.
    pub personality: u16,
    /// Splice's input descriptor, or a direct slot to create into (`splice_fd_in`, `file_index`).
    pub file_index: i32,
    /// A third address.
    pub addr3: u64,
    /// Zero.
    pub pad: u64,
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry is the kernel's 64-byte submission record");
const _: () = assert!(std::mem::offset_of!(Entry, user_data) == 32, "user_data stands where the kernel reads it");
const _: () = assert!(std::mem::offset_of!(Entry, file_index) == 44, "splice_fd_in stands where the kernel reads it");
