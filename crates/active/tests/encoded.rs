//! Encoded forms: what comes back, from where, and what damaged or hostile files do.

mod support;

use forebay_active::Error;
use forebay_active::encoded::{
    Codec, Compress, Dedup, Format, Info, Reader, compress, dedup, encoded_end, frames,
};
use forebay_placement::Random;
use std::io::Write;
use std::process::{Command, Stdio};

fn encode(format: Format, original: &[u8], piece: u32) -> (Vec<u8>, Info) {
    let mut encoded = Vec::new();
    let mut input = original;
    let info = match format {
        Format::Zstd | Format::Lz4 => {
            let codec = if format == Format::Zstd { Codec::Zstd } else { Codec::Lz4 };
            let options = Compress { frame: piece, ..Compress::new(codec) };
            compress(&mut input, &mut encoded, &options)
        }
        Format::Dedup => {
            let options = Dedup { chunk: piece.next_power_of_two() / 16, ..Dedup::default() };
            dedup(&mut input, &mut encoded, &options)
        }
    };
    let info = info.unwrap();
    assert_eq!(info.encoded_len, encoded.len() as u64);
    assert_eq!(info.original_len, original.len() as u64);
    (encoded, info)
}

fn open(encoded: &[u8]) -> Result<Reader<&[u8]>, Error> {
    Reader::open(encoded, encoded.len() as u64)
}

fn decode(encoded: &[u8]) -> Result<Vec<u8>, Error> {
    let mut decoded = Vec::new();
    open(encoded)?.copy_to(&mut decoded)?;
    Ok(decoded)
}

#[test]
fn what_was_encoded_comes_back_whole_and_in_parts() {
    let mut random = Random::new(support::seed());
    for format in Format::ALL {
        for length in [0, 1, 17, 65_535, 65_536, 65_537, 131_072, 1_000_003] {
            let original = support::bytes(&mut random, length);
            let piece = 65_536 + random.below(200_000) as u32;
            let (encoded, info) = encode(format, &original, piece);
            let mut reader = open(&encoded).unwrap();
            assert_eq!(reader.info(), info, "{format}, {length} bytes, pieces of {piece}");
            assert!(decode(&encoded).unwrap() == original, "{format}, {length} bytes");
            for _ in 0..50 {
                let offset = random.index(length + 100);
                let mut part = vec![0x55; random.index(100_000)];
                let read = reader.read_at(&mut part, offset as u64).unwrap();
                let wanted = original.get(offset..).unwrap_or(&[]);
                let wanted = &wanted[..wanted.len().min(part.len())];
                assert!(part[..read] == *wanted, "{format}: {read} bytes at {offset}");
            }
            let mut at = 0;
            while let Some(piece) = reader.piece_at(at) {
                assert_eq!(piece.start, at);
                assert!(piece.end > at);
                at = piece.end;
            }
            assert_eq!(at, length as u64);
        }
    }
}

#[test]
fn equal_parts_at_any_distance_are_kept_once() {
    let mut random = Random::new(support::seed());
    let part: Vec<u8> = (0..1 << 20).map(|_| random.next_u64() as u8).collect();
    // The second copy begins at an odd offset.
    let original = [&part[..], b"123456789", &part[..], &part[..]].concat();
    let (encoded, info) = encode(Format::Dedup, &original, 64 << 10);
    assert!(encoded.len() < part.len() * 5 / 4, "{info:?}");
    assert!(info.kept < info.pieces / 2, "{info:?}");

    // Without memory for what is known of chunks nothing is found, and all comes back.
    let mut all = Vec::new();
    let options = Dedup { chunk: 4 << 10, memory: 0 };
    let info = dedup(&mut original.as_slice(), &mut all, &options).unwrap();
    assert_eq!(info.kept, info.pieces);
    assert!(decode(&all).unwrap() == original);
}

#[test]
fn a_file_that_was_made_longer_tells_where_it_ends() {
    for format in Format::ALL {
        let (mut encoded, info) = encode(format, &[7; 300_000], 65_536);
        encoded.resize(encoded.len() + 700_000, 0);
        let length = encoded.len() as u64;
        assert!(open(&encoded).is_err(), "{format}");
        assert_eq!(encoded_end(&encoded, length).unwrap(), info.encoded_len, "{format}");
        let reader = Reader::open(&encoded, info.encoded_len).unwrap();
        assert_eq!(reader.original_len(), 300_000);
    }
    assert_eq!(encoded_end(&vec![0; 600_000], 600_000).unwrap(), 0);
}

#[test]
fn damaged_files_give_an_error_or_the_right_bytes() {
    let mut random = Random::new(support::seed());
    let original = support::bytes(&mut random, 400_000);
    let mut noticed = 0;
    for format in Format::ALL {
        let (encoded, _) = encode(format, &original, 65_536);
        for _ in 0..400 {
            let mut damaged = encoded.clone();
            match random.below(4) {
                0 => damaged.truncate(random.index(encoded.len())),
                1 => {
                    // A byte near the end, where the tables are.
                    let at = encoded.len() - 1 - random.index(encoded.len().min(120));
                    damaged[at] ^= 1 << random.below(8);
                }
                2 => {
                    let at = random.index(encoded.len());
                    damaged[at] = random.next_u64() as u8;
                }
                _ => {
                    let at = random.index(encoded.len());
                    let end = (at + random.index(5000)).min(encoded.len());
                    damaged[at..end].fill(0);
                }
            }
            match decode(&damaged) {
                Ok(decoded) => assert!(decoded == original, "{format}: other bytes"),
                Err(Error::Damaged(_) | Error::NotEncoded(_)) => noticed += 1,
                Err(error) => panic!("{format}: {error}"),
            }
        }
    }
    assert!(noticed > 700, "{noticed} of 1200 noticed");
}

#[test]
fn files_of_nonsense_are_refused() {
    let mut random = Random::new(support::seed());
    let magics: [&[u8]; 3] =
        [&0xFD2F_B528_u32.to_le_bytes(), &0x184D_2204_u32.to_le_bytes(), b"FBYDEDUP"];
    for round in 0..3000 {
        let mut nonsense: Vec<u8> = magics[round % 3].to_vec();
        nonsense.extend((0..random.index(300)).map(|_| random.next_u64() as u8));
        if random.one_in(2) {
            nonsense.extend(0x8F92_EAB1_u32.to_le_bytes());
        }
        assert!(decode(&nonsense).is_err(), "{nonsense:?}");
    }
}

/// A table that claims what the file has not, with the frames' magic before it.
fn claims(entries: &[(u32, u32)], frames: u32) -> Vec<u8> {
    let mut file = 0xFD2F_B528_u32.to_le_bytes().to_vec();
    file.extend(0x184D_2A5E_u32.to_le_bytes());
    file.extend((entries.len() as u32 * 8 + 9).to_le_bytes());
    for (bytes, decoded) in entries {
        file.extend(bytes.to_le_bytes());
        file.extend(decoded.to_le_bytes());
    }
    file.extend(frames.to_le_bytes());
    file.push(0);
    file.extend(0x8F92_EAB1_u32.to_le_bytes());
    file
}

#[test]
fn tables_that_claim_too_much_are_refused_before_memory_is_taken() {
    let refused = |file: Vec<u8>| match open(&file) {
        Err(Error::Damaged(what)) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(claims(&[], u32::MAX)).contains("more than"));
    assert!(refused(claims(&[], frames::FRAMES_MAX as u32)).contains("cut short"));
    assert!(refused(claims(&[(4, u32::MAX)], 1)).contains("larger than 16 MiB"));
    assert!(refused(claims(&[(u32::MAX, 4)], 1)).contains("larger than 16 MiB"));
    assert!(refused(claims(&[(5, 4)], 1)).contains("do not end"));
    // The table is right, the frame is not one.
    let error = decode(&claims(&[(4, 4)], 1)).unwrap_err().to_string();
    assert!(error.contains("cannot be decoded"), "{error}");
}

#[test]
fn a_frame_that_decodes_to_more_than_the_table_says_is_refused() {
    for (format, magic_len) in [(Format::Zstd, 9), (Format::Lz4, 9)] {
        let (mut encoded, _) = encode(format, &[3; 60_000], 65_536);
        let decoded_at = encoded.len() - magic_len - 4;
        encoded[decoded_at..decoded_at + 4].copy_from_slice(&1000_u32.to_le_bytes());
        assert!(matches!(decode(&encoded), Err(Error::Damaged(_))), "{format}");
    }
}

#[test]
fn limits_are_said() {
    let mut out = Vec::new();
    let level = Compress { level: 20, ..Compress::new(Codec::Zstd) };
    assert!(matches!(compress(&mut &b""[..], &mut out, &level), Err(Error::Option(_))));
    let frame = Compress { frame: 1000, ..Compress::new(Codec::Zstd) };
    assert!(matches!(compress(&mut &b""[..], &mut out, &frame), Err(Error::Option(_))));
    let chunk = Dedup { chunk: 3000, ..Dedup::default() };
    assert!(matches!(dedup(&mut &b""[..], &mut out, &chunk), Err(Error::Option(_))));
    assert!(out.is_empty());
    assert_eq!(Compress::new(Codec::Zstd).for_length(1 << 40).frame, 1 << 20);
    assert_eq!(Compress::new(Codec::Zstd).for_length(1 << 44).frame, 8 << 20);
    assert_eq!(Dedup::default().for_length(1 << 30).chunk, 64 << 10);
    assert_eq!(Dedup::default().for_length(1 << 40).chunk, 2 << 20);
}

/// What a tool makes of the file; none where there is no such tool.
fn tool(command: &str, encoded: &[u8]) -> Option<Vec<u8>> {
    let mut child = Command::new(command)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = stdin.write_all(encoded);
        });
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{command}: {}", output.status);
    Some(output.stdout)
}

#[test]
fn zstd_and_lz4_read_it_without_forebay() {
    let mut random = Random::new(support::seed());
    for length in [0, 5, 700_001] {
        let original = support::bytes(&mut random, length);
        for format in [Format::Zstd, Format::Lz4] {
            let (encoded, _) = encode(format, &original, 65_536);
            match tool(format.name(), &encoded) {
                Some(decoded) => assert!(decoded == original, "{format}, {length} bytes"),
                None => println!("there is no {format} here: not compared"),
            }
        }
    }
}
