//! A network between two processes that can be told to swallow what goes one way, or both.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Forwards connections from a port of its own to another one. Connections stay open while nothing passes: to both ends
/// it looks like a network that lost its way.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wires: Arc<Wires>,
}

#[derive(Debug)]
struct Wires {
    target: SocketAddr,
    requests: Way,
    answers: Way,
    open: Mutex<Vec<TcpStream>>,
}

/// What becomes of bytes that go one way.
#[derive(Debug, Default)]
struct Way {
    /// They are swallowed.
    lost: AtomicBool,
    /// One passes in a second.
    slow: AtomicBool,
}

impl Proxy {
    /// To this address, such as `127.0.0.1:8421`.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn to(target: &str) -> Self {
        Self::at("127.0.0.1:0", target)
    }

    /// From this address to that one.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn at(address: &str, target: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let wires = Arc::new(Wires {
            target: target.parse().unwrap(),
            requests: Way::default(),
            answers: Way::default(),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&wires);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepting.connect(client);
            }
        });
        Self { address, wires }
    }

    /// Where clients connect.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What clients send does not arrive any more.
    pub fn lose_requests(&self) {
        self.wires.requests.lost.store(true, Ordering::SeqCst);
    }

    /// What the server sends does not arrive any more.
    pub fn lose_answers(&self) {
        self.wires.answers.lost.store(true, Ordering::SeqCst);
    }

    /// From now on one byte arrives in a second, either way.
    pub fn crawl(&self) {
        self.wires.requests.slow.store(true, Ordering::SeqCst);
        self.crawl_back();
    }

    /// From now on one byte of what the server sends arrives in a second.
    pub fn crawl_back(&self) {
        self.wires.answers.slow.store(true, Ordering::SeqCst);
    }

    /// Everything arrives again, over new connections: bytes are missing from those that were open.
    pub fn heal(&self) {
        for stream in self.wires.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for way in [&self.wires.requests, &self.wires.answers] {
            way.lost.store(false, Ordering::SeqCst);
            way.slow.store(false, Ordering::SeqCst);
        }
    }
}

impl Wires {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.target) else { return };
        let streams = [&client, &server].map(|stream| stream.try_clone().unwrap());
        self.open.lock().unwrap().extend(streams);
        let (client_out, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        std::thread::spawn(move || carry(client, server_out, &there.requests));
        std::thread::spawn(move || carry(server, client_out, &back.answers));
    }
}

/// Carries bytes from one stream to the other until one ends; those that are swallowed are gone.
fn carry(mut from: TcpStream, mut to: TcpStream, way: &Way) {
    let mut buffer = [0; 16 * 1024];
    'open: while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..read];
        while !rest.is_empty() && !way.lost.load(Ordering::SeqCst) {
            let slow = way.slow.load(Ordering::SeqCst);
            let (now, later) = rest.split_at(if slow { 1 } else { rest.len() });
            if to.write_all(now).is_err() {
                break 'open;
            }
            if slow {
                std::thread::sleep(Duration::from_secs(1));
            }
            rest = later;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
