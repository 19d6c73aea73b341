//! Certificates that expire and authorities that are replaced.

use std::fs;

use crate::partitions::Apart;

/// B25: a certificate expires while a tool runs, and everything is replaced, also the authority: the worker comes back
/// without being started again, and the run ends as its tool did.
#[tokio::test(flavor = "multi_thread")]
async fn b25_certificates_and_their_authority_are_replaced_while_a_tool_runs() {
    let mut apart = Apart::start().await;
    let renewed = "new connections of workers are encrypted with the new certificate";
    apart.site.installation.certify("alpha", true);
    apart.site.until_log(&apart.alpha.process, renewed).await;
    // The connection that was open needs no certificate any more; one that is made anew does.
    apart.network.heal();
    apart.until(|view| view["unresolved"] == true).await;

    apart.site.installation.replace_authority();
    let reached = "coordinators are reached with the new certificates";
    apart.site.until_log(&apart.worker.process, reached).await;
    apart.site.installation.certify("alpha", false);
    apart.until(|view| view["unresolved"] == false).await;
    assert_eq!(apart.alpha.process.log().matches(renewed).count(), 2);
    fs::write(&apart.go, "").unwrap();
    let view = apart.until(|view| view["run"]["status"] == "succeeded").await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(apart.site.installation.ledger().matches("started").count(), 1);
    apart.site.installation.check().unwrap();
}
