//! Masks secrets in output, however the output is cut into pieces.
//!
//! Every secret is looked for as it is and in the encodings that tools commonly print: base64 at each of
//! its three alignments, hex, percent-encoding, JSON strings, single lines of a multi-line secret. Whatever
//! a match covers becomes `[redacted]`; matches that overlap are covered together.
//!
//! A stream holds back exactly the bytes that may still become a match, no more: the longest tail that
//! begins one of the patterns. Normal output therefore passes at once, and a secret that arrives byte by
//! byte is still masked. The result is the same for every way of cutting the stream.

mod patterns;

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use secrecy::{ExposeSecret, SecretString};

/// What is shown in place of a secret.
pub const MASK: &str = "[redacted]";

/// A stream that ends within a pattern, at least this far in, was cut off within a secret; so much of a
/// secret is not shown.
const TELLING_PREFIX: usize = 4;

/// Knows the secrets of one run.
#[derive(Clone)]
pub struct Redactor {
    machine: Option<Arc<Machine>>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// The automaton, and what the automaton does not tell about its states.
struct Machine {
    automaton: NFA,
    start: StateID,
    states: HashMap<StateID, State>,
}

/// A state stands for the longest tail of the input that begins a pattern.
#[derive(Clone, Copy, Default)]
struct State {
    /// That tail's length.
    tail: usize,
    /// The longest pattern that ends here, 0 if none does.
    ended: usize,
}

impl Redactor {
    /// A redactor of `secrets`. Empty ones are ignored.
    #[must_use]
    pub fn new(secrets: &[SecretString]) -> Self {
        let patterns = patterns::of(secrets.iter().map(ExposeSecret::expose_secret));
        if patterns.is_empty() {
            return Self { machine: None };
        }
        Self { machine: Some(Arc::new(Machine::new(&patterns))) }
    }

    /// Starts one stream of output. Each of stdout and stderr needs its own.
    #[must_use]
    pub fn stream(&self) -> RedactStream {
        RedactStream {
            state: self.machine.as_ref().map(|machine| machine.start),
            machine: self.machine.clone(),
            held: VecDeque::new(),
            first: 0,
            covers: VecDeque::new(),
        }
    }

    /// Masks a whole text.
    #[must_use]
    pub fn redact_all(&self, text: &[u8]) -> Vec<u8> {
        let mut stream = self.stream();
        let mut shown = stream.push(text);
        shown.extend(stream.finish());
        shown
    }
}

impl Machine {
    fn new(patterns: &[Vec<u8>]) -> Self {
        let mut builder = NFA::builder();
        builder.match_kind(MatchKind::Standard).prefilter(false);
        // Building fails only beyond 2^31 states. Secrets are limited to far less, and running without
        // masking is not an option.
        #[allow(clippy::expect_used)]
        let automaton =
            builder.build(patterns).expect("secrets of a run are far smaller than an automaton can be");
        #[allow(clippy::expect_used)]
        let start = automaton.start_state(Anchored::No).expect("an NFA supports unanchored search");
        // After the first n bytes of a pattern, the longest tail that begins a pattern is these n bytes.
        let mut states = HashMap::new();
        for pattern in patterns {
            let mut id = start;
            for (index, byte) in pattern.iter().enumerate() {
                id = automaton.next_state(Anchored::No, id, *byte);
                let ended = if automaton.is_match(id) {
                    let matches = 0..automaton.match_len(id);
                    matches
                        .map(|nth| automaton.pattern_len(automaton.match_pattern(id, nth)))
                        .max()
                        .unwrap_or(0)
                } else {
                    0
                };
                states.insert(id, State { tail: index + 1, ended });
            }
        }
        Self { automaton, start, states }
    }

    fn state(&self, id: StateID) -> State {
        if id == self.start { State::default() } else { self.states.get(&id).copied().unwrap_or_default() }
    }
}

/// One stream of output on its way through a [`Redactor`].
pub struct RedactStream {
    machine: Option<Arc<Machine>>,
    state: Option<StateID>,
    /// Bytes not yet released; the first has the position `first` in the stream.
    held: VecDeque<u8>,
    first: usize,
    /// What is to be masked, from start up to end, in order and apart. Several can be open: a later, longer
    /// match may still join them.
    covers: VecDeque<(usize, usize)>,
}

impl fmt::Debug for RedactStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedactStream").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl RedactStream {
    /// Takes more output; returns what is safe to show now.
    #[must_use = "the returned bytes are not returned again"]
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (Some(machine), Some(mut id)) = (self.machine.clone(), self.state) else { return bytes.to_vec() };
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.held.push_back(*byte);
            id = machine.automaton.next_state(Anchored::No, id, *byte);
            let State { tail, ended } = machine.state(id);
            let position = self.first + self.held.len();
            if ended > 0 {
                self.cover(position - ended, position);
            }
            self.release(position - tail, &mut shown);
        }
        self.state = Some(id);
        shown
    }

    /// Returns what can be shown although no more output is in sight. The beginning of a pattern stays
    /// held back; [`push`](Self::push) has released everything else already.
    #[must_use = "the returned bytes are not returned again"]
    pub fn flush(&mut self) -> Vec<u8> {
        self.push(&[])
    }

    /// Ends the stream and returns the rest. The beginning of a pattern, four bytes or more, is masked:
    /// it is a secret that was cut off. The stream can then be used for new output.
    #[must_use = "the returned bytes are not returned again"]
    pub fn finish(&mut self) -> Vec<u8> {
        let mut shown = Vec::new();
        let end = self.first + self.held.len();
        if let (Some(machine), Some(id)) = (&self.machine, self.state) {
            let tail = machine.state(id).tail;
            self.state = Some(machine.start);
            if tail >= TELLING_PREFIX {
                self.cover(end - tail, end);
            }
        }
        self.release(end, &mut shown);
        shown
    }

    /// Adds a match to what is masked. Matches that share a byte become one; two side by side stay two.
    fn cover(&mut self, mut start: usize, end: usize) {
        while let Some((from, _)) = self.covers.back().filter(|(_, to)| start < *to) {
            start = start.min(*from);
            self.covers.pop_back();
        }
        self.covers.push_back((start, end));
    }

    /// Releases everything before `until`, at which the earliest future match may start.
    fn release(&mut self, until: usize, shown: &mut Vec<u8>) {
        while let Some((from, to)) = self.covers.front().copied() {
            self.show(from.min(until), shown);
            if until < to {
                return;
            }
            self.held.drain(..to - self.first);
            self.first = to;
            shown.extend(MASK.as_bytes());
            self.covers.pop_front();
        }
        self.show(until, shown);
    }

    /// Passes bytes on as they are.
    fn show(&mut self, until: usize, shown: &mut Vec<u8>) {
        shown.extend(self.held.drain(..until.saturating_sub(self.first)));
        self.first = self.first.max(until);
    }
}
