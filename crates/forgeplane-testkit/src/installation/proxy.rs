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
    /// What clients send is swallowed.
    deaf: AtomicBool,
    /// What the server sends is swallowed.
    mute: AtomicBool,
    /// One byte passes in a second.
    slow: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
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
            deaf: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            slow: AtomicBool::new(false),
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
        self.wires.deaf.store(true, Ordering::SeqCst);
    }

    /// What the server sends does not arrive any more.
    pub fn lose_answers(&self) {
        self.wires.mute.store(true, Ordering::SeqCst);
    }

    /// From now on one byte arrives in a second, either way.
    pub fn crawl(&self) {
        self.wires.slow.store(true, Ordering::SeqCst);
    }

    /// Everything arrives again, over new connections: bytes are missing from those that were open.
    pub fn heal(&self) {
        for stream in self.wires.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.wires.deaf.store(false, Ordering::SeqCst);
        self.wires.mute.store(false, Ordering::SeqCst);
        self.wires.slow.store(false, Ordering::SeqCst);
    }
}

impl Wires {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.target) else { return };
        let streams = [&client, &server].map(|stream| stream.try_clone().unwrap());
        self.open.lock().unwrap().extend(streams);
        let (client_out, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (there, back) = (Arc::clone(self), Arc::clone(self));
        std::thread::spawn(move || carry(client, server_out, &there, &there.deaf));
        std::thread::spawn(move || carry(server, client_out, &back, &back.mute));
    }
}

/// Carries bytes from one stream to the other until one ends; those that are swallowed are gone.
fn carry(mut from: TcpStream, mut to: TcpStream, wires: &Wires, swallows: &AtomicBool) {
    let mut buffer = [0; 16 * 1024];
    'open: while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut rest = &buffer[..read];
        while !rest.is_empty() && !swallows.load(Ordering::SeqCst) {
            let slow = wires.slow.load(Ordering::SeqCst);
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
