//! CRC32C, the checksum of iSCSI (RFC 3720, B.4), bit by bit: a header is short, and few have one.

/// The generator polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum of parts that follow each other.
pub(super) fn crc32c<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let bytes = parts.into_iter().flatten();
    !bytes.fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_are_those_of_the_standard() {
        let ascending: Vec<u8> = (0..32).collect();
        let known: [(&[u8], u32); 5] = [
            (b"", 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
        ];
        for (bytes, sum) in known {
            assert_eq!(crc32c([bytes]), sum);
            let (front, back) = bytes.split_at(bytes.len() / 2);
            assert_eq!(crc32c([front, back]), sum);
        }
    }
}
