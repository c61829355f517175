//! What the kernel would write is written beforehand, behind the visible length: a completion then has to show exactly
//! that.
#![deny(unsafe_code, reason = "what guards the unsafe code beside it is safe")]

use std::io;

use super::*;
use crate::Registry;

const TICKET: Ticket = Ticket { ring: 1, sequence: 7 };

/// A vector of length `len` whose spare capacity, up to `capacity`, is written with 0xAA.
fn vector(len: usize, capacity: usize) -> Vec<u8> {
    let mut buf = vec![0xAA; capacity];
    buf.truncate(len);
    buf
}

/// Fills `buf` with one operation that ends with `result`.
fn filled<B: IoBufMut>(buf: B, result: io::Result<usize>) -> (io::Result<usize>, B) {
    let mut fill = Fill::new(buf);
    fill.arm(TICKET, 0).expect("the buffer has room");
    fill.finish_with(TICKET, result)
}

fn lease(bytes: usize) -> FixedBuf {
    let registry = Registry::new(bytes.div_ceil(4096)).expect("a small mapping is granted");
    registry.try_lease(bytes).expect("all pages are free")
}

#[test]
fn a_filled_vector_shows_what_arrived_and_nothing_else() {
    let mut fill = Fill::new(vector(3, 64));
    let (start, len) = fill.arm(TICKET, 0).expect("there is room");
    let (result, buf) = fill.finish_with(TICKET, Ok(5));
    assert_eq!(len, buf.capacity(), "the whole capacity is offered, whatever the length");
    assert_eq!(start.as_ptr().cast_const(), buf.as_ptr(), "from the start");
    assert_eq!((result.expect("five bytes"), &buf[..]), (5, &[0xAA; 5][..]));

    let (result, buf) = filled(buf, Ok(2));
    assert_eq!((result.expect("two bytes"), buf.len()), (2, 2), "a shorter read shortens it");
}

#[test]
fn a_filled_box_keeps_its_length() {
    let (result, buf) = filled(vec![7; 16].into_boxed_slice(), Ok(5));
    assert_eq!((result.expect("five bytes"), &buf[..]), (5, &[7; 16][..]));
}

#[cfg(feature = "bytes")]
#[test]
fn a_filled_bytes_mut_shows_what_arrived() {
    let mut buf = bytes::BytesMut::zeroed(64);
    buf.fill(0xAA);
    let tail = buf.split_off(32);
    buf.truncate(3);
    let mut fill = Fill::new(buf);
    let (start, len) = fill.arm(TICKET, 0).expect("there is room");
    assert_eq!(len, 32, "the other half is not offered");
    let buf = fill.into_inner();
    assert_eq!((&buf[..], buf.as_ptr()), (&[0xAA; 3][..], start.as_ptr().cast_const()), "arming changes nothing");
    let (result, buf) = filled(buf, Ok(32));
    assert_eq!((result.expect("all of it"), &buf[..], tail.len()), (32, &[0xAA; 32][..], 32));
}

#[test]
fn a_failed_operation_leaves_the_buffer_as_it_was() {
    let (result, buf) = filled(vector(3, 64), Err(io::ErrorKind::ConnectionReset.into()));
    assert_eq!(result.expect_err("the error is passed on").kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(buf, [0xAA; 3]);

    let (result, slice) = filled(vector(3, 64).slice(10..20), Err(io::ErrorKind::ConnectionReset.into()));
    assert_eq!((result.is_err(), slice.into_inner()), (true, vec![0xAA; 3]));
}

#[test]
fn a_buffer_without_room_is_refused_with_a_sentence() {
    for mut fill in
        [Fill::new(Vec::new().slice(..)), Fill::new(vector(0, 8).slice(8..)), Fill::new(vector(8, 8).slice(3..3))]
    {
        let error = fill.arm(TICKET, 0).expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("give it a capacity"), "{error}");
    }
    assert!(Fill::new(lease(64).slice(64..)).arm(TICKET, 0).is_err());
}

#[test]
fn f12_a_lease_fills_up_to_its_capacity_and_shows_the_last_count() {
    let mut buf = lease(4096);
    buf.as_capacity_mut().fill(0xAA);
    let (result, buf) = filled(buf, Ok(4096));
    assert_eq!((result.expect("a page"), buf.len()), (4096, 4096));
    let (result, buf) = filled(buf, Ok(10));
    assert_eq!((result.expect("ten bytes"), &buf[..]), (10, &[0xAA; 10][..]), "stale bytes do not look valid");
    let (result, buf) = filled(buf, Ok(0));
    assert_eq!((result.expect("end of file"), buf.is_empty()), (0, true));
}

#[test]
fn f12_a_slice_of_a_fresh_buffer_has_no_bytes_and_does_not_panic() {
    assert_eq!(lease(4096).slice(100..200).bytes(), b"");
    assert_eq!(Vec::with_capacity(4096).slice(100..200).bytes(), b"");
    let mut half = lease(4096);
    half.set_len(150);
    assert_eq!(half.slice(100..200).bytes(), [0; 50], "only the visible part is sent");
}

#[test]
fn f12_a_slice_fills_its_range_and_zeroes_the_gap_before_it() {
    let (result, slice) = filled(vector(3, 64).slice(10..20), Ok(5));
    assert_eq!((result.expect("five bytes"), slice.bytes()), (5, &[0xAA; 5][..]));
    let expected = [&[0xAA; 3][..], &[0; 7], &[0xAA; 5]].concat();
    assert_eq!(slice.into_inner(), expected);

    let mut stale = lease(64);
    stale.as_capacity_mut().fill(0xAA);
    let (_, slice) = filled(stale.slice(10..20), Ok(5));
    assert_eq!(slice.into_inner()[..], [&[0; 10][..], &[0xAA; 5]].concat());
}

#[test]
fn a_slice_before_the_end_shortens_the_buffer_to_what_arrived() {
    let (_, slice) = filled(vector(64, 64).slice(8..32), Ok(4));
    assert_eq!(slice.into_inner().len(), 12);
}

#[test]
fn f07_a_slice_of_a_slice_cannot_leave_it() {
    let mut fill = Fill::new(vector(64, 64).slice(8..32).slice(20..).slice(2..1000));
    let (start, len) = fill.arm(TICKET, 0).expect("two bytes are left");
    let slice = fill.into_inner();
    let inner = slice.get_ref().get_ref().get_ref();
    assert_eq!((start.as_ptr().addr() - inner.as_ptr().addr(), len), (30, 2));
    assert_eq!(slice.bytes().as_ptr().addr(), start.as_ptr().addr());
    assert_eq!(slice.bytes().len(), 2);

    let (_, slice) = filled(vector(0, 64).slice(8..32).slice(4..), Ok(20));
    let expected = [&[0; 12][..], &[0xAA; 20]].concat();
    assert_eq!(slice.into_inner().into_inner(), expected, "both gaps are zeroed");
}

#[test]
fn f07_a_slice_beyond_the_capacity_is_clamped_to_it() {
    let mut fill = Fill::new(lease(5000).slice(4990..9000));
    assert_eq!(fill.arm(TICKET, 0).expect("ten bytes are left").1, 10, "not the rest of the page");
    assert_eq!(Fill::new(lease(5000)).capacity(), 5000);
}

#[test]
#[should_panic(expected = "a slice begins at 3 but ends at 2")]
#[expect(clippy::reversed_empty_ranges, reason = "that is what must not pass")]
fn a_slice_that_ends_before_it_begins_panics() {
    let _ = "hello".slice(3..2);
}

#[test]
#[should_panic(expected = "a slice ends at most at usize::MAX")]
fn a_slice_that_includes_the_last_address_panics() {
    let _ = "hello".slice(..=usize::MAX);
}

#[test]
fn a_fill_believes_only_the_submission_that_it_was_given_to() {
    let mut fill = Fill::new(vector(0, 64));
    fill.arm(TICKET, 0).expect("there is room");
    let later = Ticket { ring: 1, sequence: 8 };
    fill.arm(later, 0).expect("there is room");
    let (result, buf) = fill.finish_with(later, Ok(64));
    assert_eq!((result.expect("all of it"), &buf[..]), (64, &[0xAA; 64][..]));
}

#[test]
#[should_panic(expected = "comes to the buffer of")]
fn a_completion_of_an_earlier_submission_is_not_believed() {
    let mut fill = Fill::new(vector(0, 64));
    fill.arm(TICKET, 0).expect("there is room");
    fill.arm(Ticket { ring: 1, sequence: 8 }, 0).expect("there is room");
    let _ = fill.finish_with(TICKET, Ok(64));
}

#[test]
#[should_panic(expected = "comes to the buffer of")]
fn a_completion_of_another_ring_is_not_believed() {
    let mut fill = Fill::new(vector(0, 64));
    fill.arm(TICKET, 0).expect("there is room");
    let _ = fill.finish_with(Ticket { ring: 2, ..TICKET }, Ok(64));
}

#[test]
#[should_panic(expected = "comes to a buffer that no submission was given")]
fn a_completion_for_a_buffer_that_was_never_given_away_is_not_believed() {
    let _ = Fill::new(vector(0, 64)).finish_with(TICKET, Ok(1));
}

#[test]
#[should_panic(expected = "the kernel claims 65 bytes in a buffer of 64")]
fn a_count_beyond_what_was_given_is_not_believed() {
    let _ = filled(vec![0; 64].into_boxed_slice(), Ok(65));
}

#[test]
fn every_kind_of_buffer_sends_its_bytes() {
    fn sent(buf: impl IoBuf) -> Vec<u8> {
        buf.bytes().to_vec()
    }
    let mut fixed = lease(10);
    fixed.as_capacity_mut()[..5].copy_from_slice(b"hello");
    fixed.set_len(5);
    let all = [
        sent(b"hello".to_vec()),
        sent(Box::<[u8]>::from(&b"hello"[..])),
        sent(Arc::<[u8]>::from(&b"hello"[..])),
        sent(Rc::<[u8]>::from(&b"hello"[..])),
        sent(&b"hello"[..]),
        sent(*b"hello"),
        sent("hello"),
        sent("hello".to_owned()),
        sent(fixed),
        sent("say hello".slice(4..)),
    ];
    assert!(all.iter().all(|bytes| bytes == b"hello"), "{all:?}");
    #[cfg(feature = "bytes")]
    assert_eq!([sent(bytes::Bytes::from_static(b"hello")), sent(bytes::BytesMut::from("hello"))], [b"hello"; 2]);
}
