//! Links that carry a byte in a second.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use forgeplane_testkit::installation::Proxy;

use crate::partitions::Apart;
use crate::support::{Site, options};

/// B24: a worker behind such a link is missed, keeps nobody else waiting, and ends its run when the link is better.
#[tokio::test(flavor = "multi_thread")]
async fn b24_a_worker_behind_a_crawling_link_is_missed_and_comes_back() {
    let mut apart = Apart::start().await;
    apart.network.crawl();
    apart.until(|view| view["unresolved"] == true).await;
    fs::write(&apart.go, "").unwrap();
    let _near = apart.site.worker("near", &[&apart.alpha]);
    let other = apart.site.preview(&apart.alpha, "second").await;
    apart.site.until_status(&apart.alpha, &other, "succeeded").await;
    assert_eq!(apart.site.run(&apart.alpha, &apart.run).await["run"]["status"], "running");
    apart.network.heal();
    let view = apart.until(|view| view["run"]["status"] == "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(apart.site.installation.ledger().matches("started").count(), 2);
    apart.site.installation.check().unwrap();
}

/// The memory of a process, KiB.
fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// B24: readers of a log who take a byte in a second have no copy of it each in the coordinator's memory.
#[tokio::test(flavor = "multi_thread")]
async fn b24_readers_that_crawl_do_not_fill_the_coordinators_memory() {
    const READERS: usize = 40;
    let tool = "[ \"$1\" = plan ] && head -c 20000000 /dev/zero | tr '\\0' 'x' | fold -w 100; exit 0";
    let (mut site, coordinators) = Site::start(options(false, &[]), tool, &["alpha"]);
    let alpha = &coordinators[0];
    let _worker = site.worker("w1", &[alpha]);
    site.app(alpha);
    let run = site.preview(alpha, "first").await;
    site.until_status(alpha, &run, "succeeded").await;
    let before = resident(alpha.process.pid());
    let network = Proxy::to(alpha.api.trim_start_matches("http://"));
    let token = fs::read_to_string(&site.admin).unwrap();
    let mut readers = Vec::new();
    network.crawl_back();
    for _ in 0..READERS {
        let mut reader = TcpStream::connect(network.address()).unwrap();
        let request = format!(
            "GET /api/v1/runs/{run}/log/stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        reader.write_all(request.as_bytes()).unwrap();
        readers.push(reader);
    }
    let mut first = [0; 1];
    for reader in &mut readers {
        reader.read_exact(&mut first).unwrap();
    }
    // Somebody who takes everything gets it meanwhile.
    let whole = site.installation.cli(alpha, &site.admin).args(["run", "logs", &run]).output().unwrap();
    assert!(whole.stdout.len() >= 20_000_000, "{} bytes", whole.stdout.len());
    let grown = resident(alpha.process.pid()).saturating_sub(before);
    assert!(grown < 200_000, "{READERS} readers of 20 MB made the coordinator grow by {grown} KiB");
}
