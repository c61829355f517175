//! Registered pages past the page cache: what the disk writes into them, wherever in the registry they lie.

use std::fs::File as StdFile;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use ringmain::fs::File;
use ringmain::{FixedBuf, IoBuf, OFlags};

use crate::peers::{pattern, without_hanging};
use crate::rings;

const PAGE: usize = 4096;
const FILE_BYTES: usize = 3 << 20;

/// Where a buffer begins in the registry's one mapping, which is aligned to 2 MiB: at that, at less, and at no more than
/// a page; and how many pages it has. The last ones cross a border of 2 MiB.
const PLACES: [(usize, usize); 6] = [(0, 1), (1, 3), (16, 16), (512, 512), (17, 255), (500, 30)];

#[test]
fn f16_direct_reads_into_registered_pages_are_those_of_plain_reads_at_every_alignment() {
    without_hanging(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes = pattern(16, FILE_BYTES);
        StdFile::create(&path).unwrap().write_all(&bytes).unwrap();
        let direct = || StdFile::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path);
        if let Err(error) = direct() {
            assert!(std::env::var_os("CI").is_none(), "f16 was skipped: {error}");
            eprintln!("SKIPPED f16: {} has no O_DIRECT: {error}", folder.path().display());
            return;
        }
        rings::each_with(
            |config| config.pages(1024),
            |runtime| {
                let file = File::from(direct().unwrap());
                let mut whole = Some(lease_all(&runtime));
                runtime.block_on(async {
                    for (first, pages) in PLACES {
                        for at in [0, PAGE, 7 * PAGE, FILE_BYTES - PAGE] {
                            let range = first * PAGE..(first + pages) * PAGE;
                            let slice = whole.take().unwrap().slice(range.clone());
                            let (count, slice) = file.read_fixed_at(slice, at as u64).await;
                            let mut back = slice.into_inner();
                            let count = count.unwrap();
                            let mut plain = vec![0; range.len()];
                            assert_eq!(StdFile::open(&path).unwrap().read_at(&mut plain, at as u64).unwrap(), count);
                            let filled = &back.as_capacity_mut()[range][..count];
                            assert!(filled == &plain[..count], "page {first}, {pages} pages, at {at}");
                            whole = Some(back);
                        }
                    }
                });
            },
        );
    });
}

fn lease_all(runtime: &ringmain::Runtime) -> FixedBuf {
    runtime.driver().registry().try_lease(1024 * PAGE).expect("nobody has a page yet")
}
