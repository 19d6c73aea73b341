//! Archives that do harm are refused before anything is written.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use forgeplane_worker::unpack::{Limits, UnpackError, check, unpack};
use tar::{Builder, EntryType, Header};

const FILE: EntryType = EntryType::Regular;

/// One entry: kind, name, link target, mode, content.
type Row<'a> = (EntryType, &'a str, &'a str, u32, &'a [u8]);

fn file(name: &str) -> Row<'_> {
    (FILE, name, "", 0o644, b"content\n")
}

fn link<'a>(name: &'a str, target: &'a str) -> Row<'a> {
    (EntryType::Symlink, name, target, 0o777, b"")
}

fn folder(name: &str) -> Row<'_> {
    (EntryType::Directory, name, "", 0o700, b"")
}

/// Writes names into the header as they are; the tar library would refuse many of them.
fn tar(rows: &[Row<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, target, mode, content) in rows {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Tries to unpack and asserts that nothing at all was written, in the folder or around it.
fn refused(archive: &[u8], limits: &Limits) -> UnpackError {
    let around = tempfile::tempdir().unwrap();
    let into = around.path().join("source");
    fs::create_dir(&into).unwrap();
    let error = unpack(archive, &into, limits).unwrap_err();
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "nothing was written: {error}");
    assert_eq!(fs::read_dir(around.path()).unwrap().count(), 1, "nothing was written beside it: {error}");
    assert_eq!(check(archive, limits).unwrap_err().code(), error.code(), "check and unpack agree");
    assert!(!error.is_retryable());
    error
}

fn refused_rows(rows: &[Row<'_>]) -> (&'static str, Option<String>) {
    // A good entry first shows that it is not written either.
    let rows = [&[file("good.tf")], rows].concat();
    let error = refused(&gzip(&tar(&rows)), &Limits::default());
    (error.code(), error.entry().map(str::to_owned))
}

#[test]
fn g4_names_that_leave_the_folder_are_refused() {
    for name in ["/etc/passwd", "../x", "a/../../x", "a/..", "..", "./../x", "//x", "a/b/../c"] {
        assert_eq!(refused_rows(&[file(name)]), ("unsafe_name", Some(name.to_owned())));
        assert_eq!(refused_rows(&[folder(name)]), ("unsafe_name", Some(name.to_owned())));
    }
    for name in ["x/", ".", "./", ""] {
        assert_eq!(refused_rows(&[file(name)]).0, "unsafe_name", "a file called {name:?}");
    }
}

#[test]
fn g4_links_that_may_leave_the_folder_are_refused() {
    for (name, target) in [
        ("l", "/etc"),
        ("l", ".."),
        ("l", "../x"),
        ("a/l", "../../x"),
        ("a/l", "b/../../../x"),
        // Behind a name `..` goes up from wherever that name leads.
        ("l", "a/.."),
        ("l", ""),
    ] {
        assert_eq!(refused_rows(&[link(name, target)]), ("unsafe_link", Some(name.to_owned())), "{target}");
    }
}

#[test]
fn g4_nothing_is_written_through_a_link() {
    let through = "dir/evil".to_owned();
    assert_eq!(
        refused_rows(&[link("dir", "elsewhere"), file("dir/evil")]),
        ("duplicate_name", Some(through))
    );
    assert_eq!(refused_rows(&[file("dir/evil"), link("dir", "elsewhere")]).0, "duplicate_name");
    assert_eq!(refused_rows(&[link("x", "y"), file("x")]).0, "duplicate_name");
    assert_eq!(refused_rows(&[link("x", "y"), folder("x")]).0, "duplicate_name");
    assert_eq!(refused_rows(&[file("x"), file("x/y")]).0, "duplicate_name");
}

#[test]
fn g4_names_that_collide_are_refused() {
    assert_eq!(refused_rows(&[file("a"), file("a")]), ("duplicate_name", Some("a".to_owned())));
    assert_eq!(refused_rows(&[file("a"), file("./a")]).0, "duplicate_name");
    assert_eq!(refused_rows(&[file("Main.tf"), file("main.tf")]).0, "duplicate_name");
    assert_eq!(refused_rows(&[file("Dir/a"), file("dir/b")]).0, "duplicate_name");
}

#[test]
fn g4_only_folders_files_and_links_are_accepted() {
    for kind in [
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::GNUSparse,
        EntryType::Continuous,
    ] {
        assert_eq!(
            refused_rows(&[(kind, "thing", "good.tf", 0o644, b"")]),
            ("forbidden_kind", Some("thing".to_owned()))
        );
    }
    assert_eq!(refused_rows(&[(EntryType::Directory, "d", "", 0o755, b"content")]).0, "forbidden_kind");
    for mode in [0o4755, 0o2755, 0o6755] {
        assert_eq!(refused_rows(&[(FILE, "su", "", mode, b"x")]), ("privileged_mode", Some("su".to_owned())));
    }
}

#[test]
fn g4_limits_hold() {
    let small = Limits { entries: 10, total_bytes: 100_000, path_bytes: 100, ratio: 1000 };
    let names: Vec<String> = (0..11).map(|n| format!("f{n}")).collect();
    let many = tar(&names.iter().map(|name| file(name)).collect::<Vec<_>>());
    assert_eq!(refused(&gzip(&many), &small).code(), "too_many_entries");
    check(&gzip(&many), &Limits { entries: 11, ..small.clone() }).unwrap();

    let implied = tar(&[file("1/2/3/4/5/6/7/8/9/10/11")]);
    assert_eq!(refused(&gzip(&implied), &small).code(), "too_many_entries", "implied folders count");

    let large = tar(&[(FILE, "large", "", 0o644, &[b'x'; 100_001])]);
    assert_eq!(refused(&gzip(&large), &small).code(), "archive_too_large");

    let zeros = vec![0; 8 << 20];
    let bomb = gzip(&tar(&[(FILE, "bomb", "", 0o644, &zeros)]));
    assert_eq!(refused(&bomb, &Limits::default()).code(), "archive_bomb");
    // Also if the zeros stand behind the archive's end, where no entry reads them.
    let bomb = gzip(&[tar(&[file("a")]), zeros].concat());
    assert_eq!(refused(&bomb, &Limits::default()).code(), "archive_bomb");
}

#[test]
fn g4_long_names_are_measured_before_they_are_read() {
    let long = |length: usize| {
        let mut builder = Builder::new(Vec::new());
        let name = vec![b"n".repeat(100); length / 100].join(&b'/');
        let mut header = Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        builder.append_data(&mut header, Path::new(std::str::from_utf8(&name).unwrap()), &b"x"[..]).unwrap();
        gzip(&builder.into_inner().unwrap())
    };
    check(&long(600), &Limits::default()).unwrap();
    assert_eq!(refused(&long(2000), &Limits::default()).code(), "unsafe_name");
    let huge = (EntryType::GNULongName, "././@LongLink", "", 0o644, vec![b'a'; 50_000]);
    let rows: [Row<'_>; 2] = [(huge.0, huge.1, huge.2, huge.3, &huge.4), file("a")];
    assert_eq!(refused_rows(&rows).0, "unsafe_name");
    let component = "c".repeat(256);
    let rows: [Row<'_>; 2] =
        [(EntryType::GNULongName, "././@LongLink", "", 0o644, component.as_bytes()), file("a")];
    assert_eq!(refused_rows(&rows).0, "unsafe_name");
}

#[test]
fn g4_long_names_and_pax_headers_obey_the_same_rules() {
    let gnu = |name: &'static [u8]| -> [Row<'static>; 2] {
        [(EntryType::GNULongName, "././@LongLink", "", 0o644, name), file("a")]
    };
    assert_eq!(refused_rows(&gnu(b"../../evil\0")), ("unsafe_name", Some("../../evil".to_owned())));
    let pax = |record: &'static [u8], then: Row<'static>| -> [Row<'static>; 2] {
        [(EntryType::XHeader, "pax", "", 0o644, record), then]
    };
    assert_eq!(
        refused_rows(&pax(b"16 path=../evil\n", file("a"))),
        ("unsafe_name", Some("../evil".to_owned()))
    );
    assert_eq!(refused_rows(&pax(b"18 linkpath=/evil\n", link("l", "good.tf"))).0, "unsafe_link");
    assert_eq!(refused_rows(&pax(b"9 size=1\n", file("a"))).0, "archive_malformed");
    assert_eq!(refused_rows(&pax(b"22 GNU.sparse.major=1\n", file("a"))).0, "forbidden_kind");
    let global = [(EntryType::XGlobalHeader, "pax", "", 0o644, &b"16 path=../evil\n"[..]), file("a")];
    assert_eq!(refused_rows(&global).0, "forbidden_kind");
}

#[test]
fn g4_an_archive_that_is_cut_or_damaged_or_no_archive_is_refused() {
    let good = gzip(&tar(&[file("a"), (FILE, "b", "", 0o644, &(0..=255).collect::<Vec<u8>>())]));
    check(&good, &Limits::default()).unwrap();
    for length in 0..good.len() {
        assert_eq!(
            refused(&good[..length], &Limits::default()).code(),
            "archive_malformed",
            "cut at {length}"
        );
    }
    let mut damaged = good.clone();
    let checksum = good.len() - 8;
    damaged[checksum] ^= 1;
    assert_eq!(refused(&damaged, &Limits::default()).code(), "archive_malformed");
    assert_eq!(refused(b"PK\x03\x04 a zip", &Limits::default()).code(), "archive_malformed");
    assert_eq!(refused(&tar(&[file("not compressed")]), &Limits::default()).code(), "archive_malformed");
    assert_eq!(
        refused(&gzip(b"compressed, but no tar archive".repeat(40).as_slice()), &Limits::default()).code(),
        "archive_malformed"
    );
    let two = gzip(&[tar(&[file("a")]), tar(&[file("b")])].concat());
    assert_eq!(
        refused(&two, &Limits::default()).code(),
        "archive_malformed",
        "a second archive behind the first"
    );
}

#[test]
fn a_good_archive_arrives_whole_with_plain_modes() {
    let rows = [
        folder("./"),
        folder("modules/"),
        (FILE, "./main.tf", "", 0o600, &b"resource\n"[..]),
        (FILE, "modules/net/run.sh", "", 0o750, b"#!/bin/sh\n"),
        folder("modules/net"),
        (FILE, "modules/world-writable", "", 0o666, b""),
        link("modules/net/up", "../../main.tf"),
        link("current", "modules/net"),
        link("dangling", "./absent"),
    ];
    let into = tempfile::tempdir().unwrap();
    unpack(&gzip(&tar(&rows)), into.path(), &Limits::default()).unwrap();
    let mode =
        |path: &str| fs::symlink_metadata(into.path().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(fs::read(into.path().join("main.tf")).unwrap(), b"resource\n");
    assert_eq!(fs::read(into.path().join("modules/net/up")).unwrap(), b"resource\n");
    assert_eq!(fs::read(into.path().join("current/run.sh")).unwrap(), b"#!/bin/sh\n");
    assert_eq!(fs::read_link(into.path().join("dangling")).unwrap(), Path::new("./absent"));
    assert_eq!((mode("main.tf"), mode("modules/net/run.sh")), (0o644, 0o755));
    assert_eq!((mode("modules"), mode("modules/net"), mode("modules/world-writable")), (0o755, 0o755, 0o644));

    let error = unpack(&gzip(&tar(&rows)), into.path(), &Limits::default()).unwrap_err();
    assert_eq!(error.code(), "folder_not_empty");
}

#[test]
fn archives_of_common_tools_are_accepted() {
    let from = tempfile::tempdir().unwrap();
    let deep = from.path().join("a".repeat(120)).join("b".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("ünï.tf"), "deep\n").unwrap();
    fs::write(from.path().join("main.tf"), "main\n").unwrap();
    let script = "set -e; cd \"$1\"; tar --format=gnu -czf ../gnu.tgz .; tar --format=pax -czf ../pax.tgz .; \
                  python3 -c 'import tarfile; t=tarfile.open(\"../python.tgz\",\"w:gz\"); t.add(\".\"); t.close()'; \
                  git init -q; git add -A; git -c user.name=n -c user.email=e@example.org commit -qm m; \
                  git archive --format=tar.gz -o ../git.tgz HEAD";
    let source = from.path().join("repo");
    fs::create_dir(&source).unwrap();
    fs::rename(from.path().join("main.tf"), source.join("main.tf")).unwrap();
    fs::rename(from.path().join("a".repeat(120)), source.join("a".repeat(120))).unwrap();
    let status = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(&source).status().unwrap();
    assert!(status.success());
    for name in ["gnu.tgz", "pax.tgz", "python.tgz", "git.tgz"] {
        let archive = fs::read(from.path().join(name)).unwrap();
        let into = tempfile::tempdir().unwrap();
        unpack(&archive, into.path(), &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(fs::read(into.path().join("main.tf")).unwrap(), b"main\n");
        let deep = into.path().join("a".repeat(120)).join("b".repeat(120)).join("ünï.tf");
        assert_eq!(fs::read(deep).unwrap(), b"deep\n", "{name}");
    }
}
