//! The kernel's numbers that the entries carry, by the names of `include/uapi/linux/io_uring.h`.

use io_uring::opcode;

pub(crate) const NOP: u8 = opcode::Nop::CODE;
pub(crate) const READ: u8 = opcode::Read::CODE;
pub(crate) const WRITE: u8 = opcode::Write::CODE;
pub(crate) const READV: u8 = opcode::Readv::CODE;
pub(crate) const WRITEV: u8 = opcode::Writev::CODE;
pub(crate) const READ_FIXED: u8 = opcode::ReadFixed::CODE;
pub(crate) const WRITE_FIXED: u8 = opcode::WriteFixed::CODE;
pub(crate) const READV_FIXED: u8 = opcode::ReadvFixed::CODE;
pub(crate) const WRITEV_FIXED: u8 = opcode::WritevFixed::CODE;
pub(crate) const RECV: u8 = opcode::Recv::CODE;
pub(crate) const RECVMSG: u8 = opcode::RecvMsg::CODE;
pub(crate) const READ_MULTISHOT: u8 = opcode::ReadMulti::CODE;
pub(crate) const SEND: u8 = opcode::Send::CODE;
pub(crate) const SEND_ZC: u8 = opcode::SendZc::CODE;
pub(crate) const SENDMSG: u8 = opcode::SendMsg::CODE;
pub(crate) const SENDMSG_ZC: u8 = opcode::SendMsgZc::CODE;
pub(crate) const SPLICE: u8 = opcode::Splice::CODE;
pub(crate) const TEE: u8 = opcode::Tee::CODE;
pub(crate) const POLL_ADD: u8 = opcode::PollAdd::CODE;
pub(crate) const ACCEPT: u8 = opcode::Accept::CODE;
pub(crate) const CONNECT: u8 = opcode::Connect::CODE;
pub(crate) const SHUTDOWN: u8 = opcode::Shutdown::CODE;
pub(crate) const OPENAT: u8 = opcode::OpenAt::CODE;
pub(crate) const CLOSE: u8 = opcode::Close::CODE;
pub(crate) const FSYNC: u8 = opcode::Fsync::CODE;
pub(crate) const ASYNC_CANCEL: u8 = opcode::AsyncCancel::CODE;

/// `IORING_FSYNC_DATASYNC`.
pub(crate) const FSYNC_DATASYNC: u32 = 1;
/// `MSG_PEEK` of `recv(2)`.
pub(crate) const MSG_PEEK: u32 = libc::MSG_PEEK.unsigned_abs();
/// `IORING_POLL_ADD_MULTI`, in the entry's `len`.
pub(crate) const POLL_ADD_MULTI: u32 = 1;
/// `IORING_ACCEPT_MULTISHOT`, in the entry's `ioprio`.
pub(crate) const ACCEPT_MULTISHOT: u16 = 1;
/// `IORING_RECVSEND_FIXED_BUF`, in the entry's `ioprio`: the memory is a registered buffer's.
pub(crate) const RECVSEND_FIXED_BUF: u16 = 1 << 2;
/// `IORING_SEND_ZC_REPORT_USAGE`, in the entry's `ioprio`: the notification shall say whether bytes were copied.
pub(crate) const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`, in the result of a notification that was asked to report.
pub(crate) const ZC_COPIED: i32 = i32::MIN;
/// `IORING_RECV_MULTISHOT`, in the entry's `ioprio`.
pub(crate) const RECV_MULTISHOT: u16 = 1 << 1;
/// `IORING_RECVSEND_BUNDLE`, in the entry's `ioprio`: one completion for several consecutive buffers.
pub(crate) const RECV_BUNDLE: u16 = 1 << 4;
/// `IOSQE_BUFFER_SELECT`: the kernel takes a buffer of the group that `buf_index` names.
pub(crate) const BUFFER_SELECT: u8 = 1 << 5;
/// `IORING_CQE_F_BUFFER`: the upper 16 bits of the flags are the number of the buffer taken.
pub(crate) const BUFFER: u32 = 1 << 0;
/// `IORING_CQE_F_BUF_MORE`: the rest of the buffer taken is still the kernel's.
pub(crate) const BUFFER_MORE: u32 = 1 << 4;
/// Where the number of the buffer begins in the flags (`IORING_CQE_BUFFER_SHIFT`).
pub(crate) const BUFFER_SHIFT: u32 = 16;
/// `IOSQE_IO_LINK`: the next entry starts when this one is done.
pub(crate) const LINK: u8 = 1 << 2;
/// `IORING_CQE_F_NOTIF`: the kernel has let go of what a zero-copy send lent.
pub(crate) const NOTIFICATION: u32 = 1 << 3;
/// `IORING_CQE_F_MORE`: more completions for this entry will come.
pub(crate) const MORE: u32 = 1 << 1;
