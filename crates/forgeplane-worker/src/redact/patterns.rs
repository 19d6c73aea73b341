//! What a secret may look like in a tool's output.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

/// Shorter texts are only masked as they are: their encodings occur everywhere.
const SHORTEST_ENCODED: usize = 4;
/// Shorter lines of a multi-line secret (braces, commas) say nothing.
const SHORTEST_LINE: usize = 4;
/// Widths at which tools wrap base64: PEM, MIME.
const WRAPS: [usize; 2] = [64, 76];
/// The last piece of wrapped base64 is masked from this length on.
const SHORTEST_WRAPPED: usize = 8;

/// Every pattern of every secret, each once.
pub(super) fn of<'a>(secrets: impl Iterator<Item = &'a str>) -> Vec<Vec<u8>> {
    let mut patterns = BTreeSet::new();
    for secret in secrets {
        let unix = secret.replace("\r\n", "\n");
        for whole in [secret, secret.trim(), unix.as_str(), &unix.replace('\n', "\r\n")] {
            add(&mut patterns, whole);
            wrapped(&mut patterns, whole);
        }
        if unix.trim().contains('\n') {
            for line in unix.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE) {
                add(&mut patterns, line);
            }
        }
    }
    patterns.remove(&Vec::new());
    patterns.into_iter().collect()
}

fn add(patterns: &mut BTreeSet<Vec<u8>>, text: &str) {
    patterns.insert(text.as_bytes().to_vec());
    if text.len() < SHORTEST_ENCODED {
        return;
    }
    let mut encoded = vec![hex::encode(text), hex::encode_upper(text)];
    encoded.extend(base64(text.as_bytes()));
    encoded.extend(percent(text));
    encoded.extend(json(text));
    patterns.extend(encoded.into_iter().map(String::into_bytes));
}

/// The text alone, and the characters that only it determines wherever it stands in a longer text.
fn base64(text: &[u8]) -> Vec<String> {
    let mut encoded = vec![
        STANDARD.encode(text),
        STANDARD_NO_PAD.encode(text),
        URL_SAFE.encode(text),
        URL_SAFE_NO_PAD.encode(text),
    ];
    for (before, mixed) in [(0, 0), (1, 2), (2, 3)] {
        let padded = [&[0; 2][..before], text].concat();
        // The last character also carries bits of the byte after, unless the groups of three come out even.
        let last_mixed = usize::from(!padded.len().is_multiple_of(3));
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let whole = engine.encode(&padded);
            encoded.push(whole[mixed..whole.len() - last_mixed].to_owned());
        }
    }
    encoded.retain(|pattern| pattern.len() >= SHORTEST_ENCODED);
    encoded
}

/// Base64 that was wrapped into lines: each line.
fn wrapped(patterns: &mut BTreeSet<Vec<u8>>, text: &str) {
    for encoded in [STANDARD.encode(text), URL_SAFE.encode(text)] {
        for width in WRAPS.into_iter().filter(|width| encoded.len() > *width) {
            let lines = encoded.as_bytes().chunks(width).filter(|line| line.len() >= SHORTEST_WRAPPED);
            patterns.extend(lines.map(<[u8]>::to_vec));
        }
    }
}

/// Percent-encoding as of components, paths and forms, with digits of either case.
fn percent(text: &str) -> Vec<String> {
    let mut encoded = Vec::new();
    for kept in ["-._~", "-._~/", "-._~!*'()", "-._~!$&'()*+,;=:@", "-._~!$&'()*+,;=:@/", "-._*", "-._"] {
        for upper in [true, false] {
            let mut escaped = String::new();
            for byte in text.bytes() {
                let _ = match byte {
                    byte if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => {
                        escaped.push(byte.into());
                        Ok(())
                    }
                    byte if upper => write!(escaped, "%{byte:02X}"),
                    byte => write!(escaped, "%{byte:02x}"),
                };
            }
            encoded.push(escaped.replace("%20", "+"));
            encoded.push(escaped);
        }
    }
    encoded
}

/// The inside of a JSON string: plain, as Go and PHP write it, in ASCII only, and a string within a string.
fn json(text: &str) -> Vec<String> {
    let plain = inside(&serde_json::Value::from(text).to_string());
    let go = plain.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let once = [ascii(&plain), ascii(&go), plain.replace('/', "\\/"), plain, go];
    let twice = once.each_ref().map(|text| inside(&serde_json::Value::from(text.as_str()).to_string()));
    let twice_ascii = twice.each_ref().map(|text| ascii(text));
    [once, twice, twice_ascii].concat()
}

fn inside(quoted: &str) -> String {
    quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(quoted).to_owned()
}

fn ascii(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}
