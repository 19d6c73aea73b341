//! What the worker tells the helper, and what the helper answers.
//!
//! The request travels over the socket that is the helper's stdin. It is not in argv, which everybody
//! on the host can read, and not in the helper's own environment, where an `LD_PRELOAD` meant for the
//! tool would be loaded by the helper while it still is root.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use super::{CommandSpec, Isolation, SandboxError};

/// Upper bound of a request; far above what `execve` accepts.
const LARGEST: u32 = 16 << 20;

/// The helper's answer before `execve` replaces it.
pub(super) const READY: u8 = b'R';
/// The helper's answer when a step failed: followed by the errno (4 bytes, little endian) and the step's name.
pub(super) const FAILED: u8 = b'F';

/// A validated command, ready for `execve`.
#[derive(PartialEq, Eq)]
pub(super) struct Request {
    /// IaC uid and gid; `None` keeps the caller's.
    pub ids: Option<(u32, u32)>,
    /// The worker's process id, compared with `getppid` after the parent-death signal is set.
    pub parent: u32,
    /// Absolute path of the tool.
    pub program: CString,
    /// Working directory.
    pub cwd: CString,
    /// Arguments, the program's name first.
    pub args: Vec<CString>,
    /// The whole environment, each `NAME=value`.
    pub env: Vec<CString>,
}

impl Request {
    /// Checks a command and makes it a request.
    pub(super) fn new(spec: &CommandSpec, isolation: Isolation, parent: u32) -> Result<Self, SandboxError> {
        let text = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| SandboxError::InvalidCommand { reason: "a text holds a NUL byte" })
        };
        if !spec.program.is_absolute() {
            return Err(SandboxError::InvalidCommand { reason: "the program's path is not absolute" });
        }
        if !spec.cwd.is_absolute() {
            return Err(SandboxError::InvalidCommand {
                reason: "the working directory's path is not absolute",
            });
        }
        let mut args = vec![text(spec.program.as_os_str().as_bytes())?];
        for arg in &spec.args {
            args.push(text(arg.as_bytes())?);
        }
        let mut env = Vec::with_capacity(spec.env.len());
        for (name, value) in &spec.env {
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(SandboxError::InvalidCommand {
                    reason: "an environment name is empty or holds '='",
                });
            }
            env.push(text(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let request = Self {
            ids: match isolation {
                Isolation::Uid { uid, gid, .. } => Some((uid, gid)),
                Isolation::UnsafeNone => None,
            },
            parent,
            program: text(spec.program.as_os_str().as_bytes())?,
            cwd: text(spec.cwd.as_os_str().as_bytes())?,
            args,
            env,
        };
        if request.texts().map(|text| text.as_bytes().len() as u64 + 4).sum::<u64>() > u64::from(LARGEST / 2)
        {
            return Err(SandboxError::InvalidCommand { reason: "arguments and environment are too large" });
        }
        Ok(request)
    }

    fn texts(&self) -> impl Iterator<Item = &CString> {
        [&self.program, &self.cwd].into_iter().chain(&self.args).chain(&self.env)
    }

    /// Sends the request in one piece.
    pub(super) fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        let (uid, gid) = self.ids.unwrap_or_default();
        for number in [u32::from(self.ids.is_some()), uid, gid, self.parent, length(self.args.len())?] {
            body.extend(number.to_le_bytes());
        }
        for text in self.texts() {
            body.extend(length(text.as_bytes().len())?.to_le_bytes());
            body.extend(text.as_bytes());
        }
        out.write_all(&length(body.len())?.to_le_bytes())?;
        out.write_all(&body)
    }

    /// Receives a request.
    pub(super) fn read_from(mut source: impl Read) -> io::Result<Self> {
        let size = number(&mut source)?;
        if size > LARGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = source.take(size.into());
        let isolated = number(&mut body)? != 0;
        let (uid, gid) = (number(&mut body)?, number(&mut body)?);
        let (parent, args) = (number(&mut body)?, number(&mut body)? as usize);
        let (program, cwd) = (text(&mut body)?, text(&mut body)?);
        let args = (0..args).map(|_| text(&mut body)).collect::<io::Result<Vec<_>>>()?;
        let mut env = Vec::new();
        while body.limit() > 0 {
            env.push(text(&mut body)?);
        }
        Ok(Self { ids: isolated.then_some((uid, gid)), parent, program, cwd, args, env })
    }
}

fn length(size: usize) -> io::Result<u32> {
    u32::try_from(size).ok().filter(|size| *size <= LARGEST).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn number(source: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    source.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn text(source: &mut impl Read) -> io::Result<CString> {
    let mut bytes = vec![0; length(number(source)? as usize)? as usize];
    source.read_exact(&mut bytes)?;
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn spec() -> CommandSpec {
        CommandSpec {
            program: "/bin/true".into(),
            args: vec!["".into(), "two words".into()],
            env: vec![("A".into(), "1=2".into()), ("B".into(), "".into())],
            cwd: "/".into(),
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for isolation in [Isolation::UnsafeNone, Isolation::Uid { uid: 7, gid: 8, reaper_uid: 9 }] {
            let sent = Request::new(&spec(), isolation, 42).unwrap();
            let mut wire = Vec::new();
            sent.write_to(&mut wire).unwrap();
            assert!(Request::read_from(wire.as_slice()).unwrap() == sent);
            for cut in 0..wire.len() {
                assert!(Request::read_from(&wire[..cut]).is_err(), "a request cut at {cut} is refused");
            }
        }
    }

    #[test]
    fn a_malformed_command_is_refused() {
        let refused = |change: fn(&mut CommandSpec)| {
            let mut spec = spec();
            change(&mut spec);
            Request::new(&spec, Isolation::UnsafeNone, 1).err().map(|error| error.code())
        };
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|spec| spec.program = "true".into()), Some("invalid_command"));
        assert_eq!(refused(|spec| spec.cwd = ".".into()), Some("invalid_command"));
        assert_eq!(refused(|spec| spec.args.push("a\0b".into())), Some("invalid_command"));
        assert_eq!(refused(|spec| spec.env.push(("".into(), "x".into()))), Some("invalid_command"));
        assert_eq!(refused(|spec| spec.env.push(("A=B".into(), "x".into()))), Some("invalid_command"));
        assert_eq!(refused(|spec| spec.args.push("x".repeat(9 << 20).into())), Some("invalid_command"));
    }
}
