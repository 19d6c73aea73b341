//! No secret in the output, however the output is cut.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};

use forgeplane_worker::redact::{MASK, Redactor};

const SECRET: &str = "s3cr3t/väl\"ue <&> +=?";

fn redactor(secrets: &[&str]) -> Redactor {
    Redactor::new(&secrets.iter().map(|secret| (*secret).to_owned().into()).collect::<Vec<_>>())
}

fn masked(secrets: &[&str], text: &str) -> String {
    String::from_utf8(redactor(secrets).redact_all(text.as_bytes())).unwrap()
}

/// Pushes the pieces, with an idle flush after each.
fn streamed(redactor: &Redactor, pieces: &[&[u8]]) -> Vec<u8> {
    let mut stream = redactor.stream();
    let mut shown = Vec::new();
    for piece in pieces {
        shown.extend(stream.push(piece));
        shown.extend(stream.flush());
    }
    shown.extend(stream.finish());
    shown
}

#[test]
fn f3_a_secret_split_at_any_offset_is_masked() {
    let redactor = redactor(&[SECRET, "another-secret"]);
    let text = format!("before {SECRET} between another-secret{SECRET} after\n").into_bytes();
    let expected = redactor.redact_all(&text);
    assert_eq!(String::from_utf8_lossy(&expected), format!("before {MASK} between {MASK}{MASK} after\n"));
    for first in 0..=text.len() {
        assert_eq!(streamed(&redactor, &[&text[..first], &text[first..]]), expected, "cut at {first}");
        for second in first..=text.len() {
            let pieces = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(streamed(&redactor, &pieces), expected, "cut at {first} and {second}");
        }
    }
    assert_eq!(streamed(&redactor, &text.chunks(1).collect::<Vec<_>>()), expected, "byte by byte");
}

#[test]
fn f3_an_idle_flush_never_shows_the_beginning_of_a_secret() {
    let mut stream = redactor(&["hunter2-hunter2"]).stream();
    assert_eq!(stream.push(b"prompt: hunter2-h"), b"prompt: ");
    assert_eq!(stream.flush(), b"");
    assert_eq!(stream.push(b"arbour\n"), b"hunter2-harbour\n", "it was none after all");
    assert_eq!(stream.push(b"no delay for normal text"), b"no delay for normal text");
    assert_eq!(stream.finish(), b"");
}

#[test]
fn f3_a_secret_cut_off_by_the_end_is_masked() {
    assert_eq!(masked(&["hunter2-hunter2"], "password=hunter2-h"), format!("password={MASK}"));
    assert_eq!(masked(&["hunter2-hunter2"], "the hun"), "the hun", "three letters tell nothing");
}

#[test]
fn f4_encoded_secrets_are_masked() {
    // Encoders that share nothing with the redactor.
    let python = |expression: &str| {
        let output = Command::new("python3")
            .args(["-c", &format!("import sys,json,base64,urllib.parse as u\ns=sys.argv[1]\nb=s.encode()\nprint({expression},end='')"), SECRET])
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "{expression}");
        String::from_utf8(output.stdout).unwrap()
    };
    for expression in [
        "s",
        "base64.b64encode(b).decode()",
        "base64.urlsafe_b64encode(b).decode()",
        "base64.urlsafe_b64encode(b).decode().rstrip('=')",
        "b.hex()",
        "b.hex().upper()",
        "u.quote(s)",
        "u.quote(s,safe='')",
        "u.quote_plus(s)",
        "json.dumps(s)[1:-1]",
        "json.dumps(s,ensure_ascii=False)[1:-1]",
        "json.dumps(json.dumps(s,ensure_ascii=False))[3:-3]",
        "json.dumps(json.dumps(s))[3:-3]",
        "json.dumps(s,ensure_ascii=False)[1:-1].replace('<','\\\\u003c').replace('>','\\\\u003e').replace('&','\\\\u0026')",
    ] {
        let encoded = python(expression);
        assert!(encoded.len() >= SECRET.len(), "{encoded}");
        assert_eq!(masked(&[SECRET], &format!("x: {encoded}, y")), format!("x: {MASK}, y"), "{expression}");
    }
    for (before, after) in [("u:", "@h"), ("us:", "@ho"), ("usr:", "@hos"), ("user:", "")] {
        let encoded = python(&format!("base64.b64encode(b'{before}'+b+b'{after}').decode()"));
        let shown = masked(&[SECRET], &encoded);
        assert!(shown.contains(MASK), "{shown}");
        // At each side one group of four characters may mix bits of the neighbour and of the secret.
        let around = before.len().div_ceil(3) * 4 + after.len().div_ceil(3) * 4 + 4;
        assert!(shown.len() - MASK.len() <= around, "{before}: {shown}");
    }
}

#[test]
fn f4_lines_of_a_multi_line_secret_are_masked() {
    let body = [
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
        "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
        "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3S",
    ];
    let secret = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", body.join("\n"));
    let whole = masked(&[&secret], &format!("key:\n{secret}."));
    assert_eq!(whole, format!("key:\n{MASK}."));
    for line in body {
        assert_eq!(masked(&[&secret], &format!("  | {line}\r\n")), format!("  | {MASK}\r\n"));
    }
    assert_eq!(masked(&[&secret], &secret.replace('\n', "\\n")), MASK, "as a JSON string");
    assert_eq!(masked(&[&secret], &secret.replace('\n', "\r\n")), MASK, "with other line ends");
    let indented = secret.replace('\n', "\n    ");
    assert!(body.iter().all(|line| !masked(&[&secret], &indented).contains(line)));
}

#[test]
fn f4_base64_wrapped_into_lines_is_masked() {
    let secret = (0..40).map(|n| format!("part{n};")).collect::<String>();
    for width in ["64", "76"] {
        let script = format!("printf %s \"$1\" | base64 -w {width}");
        let output = Command::new("sh").args(["-c", &script, "sh", &secret]).output().unwrap();
        let encoded = String::from_utf8(output.stdout).unwrap();
        assert!(encoded.lines().count() > 3);
        let shown = masked(&[&secret], &encoded);
        assert!(shown.lines().all(|line| line == MASK), "{shown}");
    }
}

#[test]
fn f4_one_secret_within_or_across_another_is_masked_whole() {
    let table: [(&[&str], &str, String); 7] = [
        (&["pass", "password1"], "password1 pass passwor.", format!("{MASK} {MASK} {MASK}wor.")),
        (&["password1", "word"], "password1 word", format!("{MASK} {MASK}")),
        (&["abcdef", "defghi"], "abcdefghi", MASK.to_owned()),
        (&["abcdef", "ghijkl"], "abcdefghijkl", format!("{MASK}{MASK}")),
        (&["abab"], "abababab", MASK.to_owned()),
        (&["", "abcd"], "xabcdx", format!("x{MASK}x")),
        (&[], "nothing is secret", "nothing is secret".to_owned()),
    ];
    for (secrets, text, expected) in table {
        assert_eq!(masked(secrets, text), expected, "{secrets:?}");
        let bytewise = streamed(&redactor(secrets), &text.as_bytes().chunks(1).collect::<Vec<_>>());
        assert_eq!(String::from_utf8(bytewise).unwrap(), expected, "{secrets:?}, byte by byte");
    }
}

#[test]
fn output_that_is_no_text_passes_unchanged() {
    let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
    assert_eq!(redactor(&["a secret value"]).redact_all(&bytes), bytes);
}

#[test]
fn random_streams_are_masked_like_the_whole_text_and_like_a_naive_search() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap()
    };
    for round in 0..3000 {
        // Few letters make overlaps likely. Lengths below four have no encodings, so the naive search is complete.
        let secrets: Vec<String> = (0..1 + random(4))
            .map(|_| (0..1 + random(3)).map(|_| ['a', 'b', 'c'][random(3)]).collect())
            .collect();
        let text: Vec<u8> = (0..random(60)).map(|_| b"abcd"[random(4)]).collect();
        let redactor = Redactor::new(&secrets.iter().cloned().map(Into::into).collect::<Vec<_>>());

        let mut pieces = Vec::new();
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + random(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let shown = streamed(&redactor, &pieces);
        assert_eq!(shown, redactor.redact_all(&text), "round {round}: {secrets:?}");
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            naive(&secrets, &text),
            "round {round}: {secrets:?} in {}",
            String::from_utf8_lossy(&text)
        );
    }
}

/// All matches, joined where they overlap.
fn naive(secrets: &[String], text: &[u8]) -> String {
    let mut matches: Vec<(usize, usize)> = Vec::new();
    for start in 0..text.len() {
        for secret in secrets.iter().filter(|secret| text[start..].starts_with(secret.as_bytes())) {
            matches.push((start, start + secret.len()));
        }
    }
    matches.sort_unstable();
    let mut covers: Vec<(usize, usize)> = Vec::new();
    for (start, end) in matches {
        match covers.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => covers.push((start, end)),
        }
    }
    let mut shown = String::new();
    let mut at = 0;
    for (start, end) in covers {
        shown.push_str(std::str::from_utf8(&text[at..start]).unwrap());
        shown.push_str(MASK);
        at = end;
    }
    shown + std::str::from_utf8(&text[at..]).unwrap()
}
