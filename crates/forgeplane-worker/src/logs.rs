//! The log of an attempt: redacted, ordered, spooled to disk, delivered live.
//!
//! Every frame is appended to a spool file; a shipper reads behind it and sends what is not yet acknowledged.
//! So memory stays bounded however long the coordinator is away, the tool's pipes are always drained, and an
//! idle log costs nothing: the next send starts when the previous one was acknowledged or something arrived.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forgeplane_core::Code;
use forgeplane_core::digest::Digest;
use forgeplane_core::model::{LogFrame, LogStream};
use forgeplane_core::ports::{ClaimRef, Clock, ControlError, LogAppend};
use jiff::Timestamp;
use sha2::Digest as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{WorkerError, at};
use crate::link::Link;
use crate::redact::{RedactStream, Redactor};

/// The most bytes of one frame.
const FRAME_BYTES: usize = 64 * 1024;
/// The most bytes of one append.
const APPEND_BYTES: usize = 512 * 1024;
/// After how long without output held-back bytes that cannot be part of a secret are let go.
const IDLE_FLUSH: Duration = Duration::from_millis(50);
/// stream (1), time in microseconds (8), length (4).
const HEADER: usize = 13;

/// How the log of an ended attempt looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogSummary {
    /// Its length.
    pub(crate) bytes: u64,
    /// Digest over all of it.
    pub(crate) digest: Digest,
    /// Not all of it was delivered.
    pub(crate) incomplete: bool,
}

/// The writing end of an attempt's log. Cheap to clone.
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter").finish_non_exhaustive()
    }
}

struct Shared {
    spool: Mutex<Spool>,
    news: Notify,
    /// When a command last printed something, or was started.
    heard: Mutex<Instant>,
}

struct Spool {
    clock: Arc<dyn Clock>,
    file: File,
    bytes: u64,
    hash: sha2::Sha256,
    cap: u64,
    capped: bool,
    closed: bool,
    broken: bool,
    streams: [RedactStream; 3],
}

impl Spool {
    /// Appends redacted bytes, up to the cap.
    fn append(&mut self, stream: LogStream, mut bytes: &[u8]) {
        if self.capped || self.broken || bytes.is_empty() {
            return;
        }
        let room = usize::try_from(self.cap.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        if bytes.len() > room {
            bytes = &bytes[..room];
        }
        self.frames(stream, bytes);
        if self.bytes >= self.cap {
            self.capped = true;
            let marker = format!(
                "\n[forgeplane: the log reached its limit of {} bytes; the rest is left out]\n",
                self.cap
            );
            self.frames(LogStream::Worker, marker.as_bytes());
        }
    }

    fn frames(&mut self, stream: LogStream, bytes: &[u8]) {
        for part in bytes.chunks(FRAME_BYTES) {
            let mut record = Vec::with_capacity(HEADER + part.len());
            record.push(match stream {
                LogStream::Stdout => 0,
                LogStream::Stderr => 1,
                LogStream::Worker => 2,
            });
            record.extend_from_slice(&self.clock.now().as_microsecond().to_le_bytes());
            record.extend_from_slice(&u32::try_from(part.len()).unwrap_or(0).to_le_bytes());
            record.extend_from_slice(part);
            if let Err(error) = self.file.write_all(&record) {
                // A full disk must not end the run; the outcome will say that the log is incomplete.
                tracing::error!(%error, "the log spool cannot be written; the rest of the log is lost");
                self.broken = true;
                return;
            }
            self.bytes += part.len() as u64;
            self.hash.update(part);
        }
    }
}

fn index(stream: LogStream) -> usize {
    match stream {
        LogStream::Stdout => 0,
        LogStream::Stderr => 1,
        LogStream::Worker => 2,
    }
}

impl LogWriter {
    fn spool(&self) -> MutexGuard<'_, Spool> {
        // A panic while holding the lock is a panic of the whole attempt; the counters are still consistent.
        self.shared.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes bytes of a stream; secrets in them are masked.
    pub fn write(&self, stream: LogStream, bytes: &[u8]) {
        let mut spool = self.spool();
        if spool.capped || spool.broken {
            // Nothing of it is kept: a tool that talks for ever is read as fast as it can be.
            return;
        }
        let safe = spool.streams[index(stream)].push(bytes);
        spool.append(stream, &safe);
        drop(spool);
        self.shared.news.notify_one();
    }

    /// A command begins, or has printed something.
    pub(crate) fn hear(&self) {
        *self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until no command has printed anything for so long.
    pub(crate) async fn silent_for(&self, time: Duration) {
        loop {
            let until = *self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner) + time;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Writes a line of the worker's own.
    pub fn say(&self, line: &str) {
        self.write(LogStream::Worker, format!("{line}\n").as_bytes());
        self.flush(LogStream::Worker);
    }

    fn flush(&self, stream: LogStream) {
        let mut spool = self.spool();
        let safe = spool.streams[index(stream)].flush();
        spool.append(stream, &safe);
        drop(spool);
        self.shared.news.notify_one();
    }

    /// Copies a tool's pipe into the log until it ends.
    pub(crate) async fn pump(&self, stream: LogStream, mut pipe: impl AsyncRead + Unpin) {
        let mut buffer = vec![0; FRAME_BYTES];
        let mut held = false;
        loop {
            let read = if held {
                match tokio::time::timeout(IDLE_FLUSH, pipe.read(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => {
                        self.flush(stream);
                        held = false;
                        continue;
                    }
                }
            } else {
                pipe.read(&mut buffer).await
            };
            match read {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.hear();
                    self.write(stream, &buffer[..count]);
                    held = true;
                }
            }
        }
        self.flush(stream);
    }
}

/// The log of a claimed attempt, with its shipper.
pub(crate) struct AttemptLog {
    writer: LogWriter,
    shipper: JoinHandle<bool>,
    stop: CancellationToken,
}

impl AttemptLog {
    /// Starts a log that is spooled in `directory`.
    pub(crate) fn start(
        clock: Arc<dyn Clock>,
        link: Arc<Link>,
        claim: ClaimRef,
        directory: &Path,
        redactor: &Redactor,
        cap: u64,
    ) -> Result<Self, WorkerError> {
        let path = directory.join("log.spool");
        let file = File::options().create_new(true).append(true).open(&path).map_err(at(&path))?;
        let writer = LogWriter {
            shared: Arc::new(Shared {
                spool: Mutex::new(Spool {
                    clock,
                    file,
                    bytes: 0,
                    hash: sha2::Sha256::new(),
                    cap,
                    capped: false,
                    closed: false,
                    broken: false,
                    streams: [redactor.stream(), redactor.stream(), redactor.stream()],
                }),
                news: Notify::new(),
                heard: Mutex::new(Instant::now()),
            }),
        };
        let stop = CancellationToken::new();
        let shipper = tokio::spawn(ship(link, claim, path, writer.clone(), stop.clone()));
        Ok(Self { writer, shipper, stop })
    }

    pub(crate) fn writer(&self) -> &LogWriter {
        &self.writer
    }

    /// Ends the log: releases what the redactors hold, waits (at most `wait`) until all of it is delivered.
    pub(crate) async fn finish(mut self, wait: Duration) -> LogSummary {
        {
            let mut spool = self.writer.spool();
            for stream in [LogStream::Stdout, LogStream::Stderr, LogStream::Worker] {
                let rest = spool.streams[index(stream)].finish();
                spool.append(stream, &rest);
            }
            spool.closed = true;
        }
        self.writer.shared.news.notify_one();
        let delivered = match tokio::time::timeout(wait, &mut self.shipper).await {
            Ok(delivered) => delivered.unwrap_or(false),
            Err(_) => {
                self.stop.cancel();
                self.shipper.await.unwrap_or(false)
            }
        };
        let spool = self.writer.spool();
        LogSummary {
            bytes: spool.bytes,
            digest: Digest::from_bytes(spool.hash.clone().finalize().into()),
            incomplete: !delivered || spool.broken,
        }
    }
}

/// Reads frames behind the writer.
struct Reader {
    file: File,
    /// Log bytes before the next frame.
    offset: u64,
}

impl Reader {
    /// The next frames, up to about [`APPEND_BYTES`]; a frame that is not whole yet is left for later.
    fn frames(&mut self) -> io::Result<Vec<LogFrame>> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while bytes < APPEND_BYTES {
            let start = self.file.stream_position()?;
            let mut header = [0; HEADER];
            let mut body = Vec::new();
            let whole = read_whole(&mut self.file, &mut header)? && {
                let length = u32::from_le_bytes([header[9], header[10], header[11], header[12]]);
                body.resize(length as usize, 0);
                read_whole(&mut self.file, &mut body)?
            };
            if !whole {
                self.file.seek(SeekFrom::Start(start))?;
                break;
            }
            let mut micros = [0; 8];
            micros.copy_from_slice(&header[1..9]);
            bytes += body.len();
            frames.push(LogFrame {
                stream: match header[0] {
                    0 => LogStream::Stdout,
                    1 => LogStream::Stderr,
                    _ => LogStream::Worker,
                },
                at: Timestamp::from_microsecond(i64::from_le_bytes(micros)).unwrap_or(Timestamp::UNIX_EPOCH),
                bytes: Bytes::from(body),
            });
        }
        Ok(frames)
    }

    /// Goes back to the frame that contains byte `offset` of the log.
    fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.file.rewind()?;
        self.offset = 0;
        loop {
            let start = self.file.stream_position()?;
            let mut header = [0; HEADER];
            if !read_whole(&mut self.file, &mut header)? {
                self.file.seek(SeekFrom::Start(start))?;
                return Ok(());
            }
            let length = u64::from(u32::from_le_bytes([header[9], header[10], header[11], header[12]]));
            if self.offset + length > offset {
                self.file.seek(SeekFrom::Start(start))?;
                return Ok(());
            }
            self.offset += length;
            self.file.seek_relative(i64::try_from(length).unwrap_or(i64::MAX))?;
        }
    }
}

fn read_whole(file: &mut File, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Delivers the log until it is closed and acknowledged; `false` if that cannot be.
async fn ship(
    link: Arc<Link>,
    claim: ClaimRef,
    path: PathBuf,
    writer: LogWriter,
    stop: CancellationToken,
) -> bool {
    let mut reader = match File::open(&path) {
        Ok(file) => Reader { file, offset: 0 },
        Err(error) => {
            tracing::error!(%error, "the log spool cannot be read");
            return false;
        }
    };
    let mut pause = link.pause();
    loop {
        // Looked at before reading: what is written before the log is closed is in the file by then.
        let closed = writer.spool().closed;
        let frames = match reader.frames() {
            Ok(frames) => frames,
            Err(error) => {
                tracing::error!(%error, "the log spool cannot be read");
                return false;
            }
        };
        if frames.is_empty() {
            if closed {
                return true;
            }
            tokio::select! {
                biased;
                () = writer.shared.news.notified() => continue,
                () = stop.cancelled() => return false,
            }
        }
        let end = reader.offset + frames.iter().map(|f| f.bytes.len() as u64).sum::<u64>();
        match link.append_log(LogAppend { claim, offset: reader.offset, frames }).await {
            Ok(stored) if stored >= end => {
                reader.offset = end;
                pause.reset();
            }
            Ok(stored) => {
                if !go_back(&mut reader, stored) {
                    return false;
                }
            }
            Err(ControlError::Refused(refusal)) if refusal.code == Code::LogGap => {
                // An empty append answers with the end of the stored log.
                let stored = link.append_log(LogAppend { claim, offset: 0, frames: Vec::new() }).await;
                if !stored.is_ok_and(|stored| go_back(&mut reader, stored)) {
                    return false;
                }
            }
            Err(ControlError::Refused(refusal)) => {
                tracing::warn!(%refusal, "the coordinator does not take the log");
                return false;
            }
            Err(ControlError::Unavailable(error)) => {
                if link.out_of_service.is_cancelled() {
                    tracing::warn!(%error, "the coordinator takes nothing from this worker any more, nor its log");
                    return false;
                }
                tracing::warn!(%error, "the log waits for the coordinator");
                let back = reader.offset;
                if !pause.wait(&stop).await || !go_back(&mut reader, back) {
                    return false;
                }
            }
        }
    }
}

fn go_back(reader: &mut Reader, offset: u64) -> bool {
    reader.seek(offset).inspect_err(|error| tracing::error!(%error, "the log spool cannot be read")).is_ok()
}
