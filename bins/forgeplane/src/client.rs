//! The HTTP client.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::Global;
use crate::failure::Failure;

/// How long a stream that was lost is asked for again: longer than a coordinator takes to be started again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(500);

/// A client of one coordinator with one token.
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: SecretString,
}

/// What problem+json carries.
#[derive(serde::Deserialize)]
struct Problem {
    code: String,
    detail: String,
    #[serde(default)]
    field: Option<String>,
    #[serde(default)]
    way_out: Option<String>,
}

impl Client {
    /// Finds URL and token: arguments and environment first, then the local `forgeplane dev`.
    pub fn connect(global: &Global) -> Result<Self, Failure> {
        let base = match &global.url {
            Some(url) => url.clone(),
            None => read(&global.data_dir.join("url")).map_err(|_| {
                Failure::not_reachable(
                    "no_url",
                    format!("no URL was given and no `forgeplane dev` runs on {}", global.data_dir.display()),
                )
                .way_out("start `forgeplane dev`, or give --url (FORGEPLANE_URL)")
            })?,
        };
        if !base.starts_with("http://") {
            return Err(Failure::local("invalid_url", format!("`{base}` is not an http:// URL")));
        }
        Ok(Self {
            http: reqwest::Client::new(),
            base: base.trim_end_matches('/').to_owned(),
            token: token(global)?,
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}/api/v1{path}", self.base))
            .bearer_auth(self.token.expose_secret())
    }

    /// Reads JSON.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, Failure> {
        json(self.send(self.request(Method::GET, path).query(query)).await?).await
    }

    /// Reads bytes.
    pub async fn bytes(&self, path: &str, query: &[(&str, String)]) -> Result<Vec<u8>, Failure> {
        let response = self.send(self.request(Method::GET, path).query(query)).await?;
        Ok(response.bytes().await.map_err(|e| self.unreachable(&e))?.to_vec())
    }

    /// Sends JSON, reads JSON.
    pub async fn post<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Failure> {
        json(self.send(self.request(Method::POST, path).json(body)).await?).await
    }

    /// Sends JSON under an idempotency key, reads JSON.
    pub async fn post_once<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: Option<&str>,
    ) -> Result<T, Failure> {
        let mut request = self.request(Method::POST, path).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        json(self.send(request).await?).await
    }

    /// Replaces by JSON, reads JSON.
    pub async fn put<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Failure> {
        json(self.send(self.request(Method::PUT, path).json(body)).await?).await
    }

    /// Sends a multipart form, reads JSON.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        form: reqwest::multipart::Form,
    ) -> Result<T, Failure> {
        json(self.send(self.request(Method::POST, path).multipart(form)).await?).await
    }

    /// Follows a server-sent event stream from where it left off, over lost connections, until `on_event`
    /// says that it has seen enough.
    pub async fn follow(
        &self,
        path: &str,
        query: &[(&str, String)],
        mut on_event: impl FnMut(&str, &str) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut last_id = String::new();
        // Absent: no stream was there yet, so that it may be the wrong place to ask.
        let mut heard: Option<Instant> = None;
        loop {
            let mut request = self.request(Method::GET, path).query(query);
            if !last_id.is_empty() {
                request = request.header("Last-Event-ID", &last_id);
            }
            match self.send(request).await {
                Ok(response) => {
                    let heard = heard.get_or_insert_with(Instant::now);
                    if hand_on(response, &mut last_id, heard, &mut on_event).await? {
                        return Ok(());
                    }
                }
                // A coordinator that is started again.
                Err(failure) if heard.is_some() && failure.is_passing() => {}
                Err(failure) => return Err(failure),
            }
            if heard.is_some_and(|at| at.elapsed() > PATIENCE) {
                return Err(Failure::not_reachable(
                    "stream_lost",
                    format!("{} has not continued the stream for {} s", self.base, PATIENCE.as_secs()),
                ));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        let problem = serde_json::from_str::<Problem>(&text).unwrap_or_else(|_| Problem {
            code: format!("http_{}", status.as_u16()),
            detail: format!("{} answered {status}", self.base),
            field: None,
            way_out: None,
        });
        let message = match problem.field {
            Some(field) => format!("{} (field `{field}`)", problem.detail),
            None => problem.detail,
        };
        Err(if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            Failure::not_reachable(problem.code, message)
        } else {
            Failure::refused(problem.code, message, problem.way_out)
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Failure::not_reachable("not_reachable", format!("{} cannot be reached: {cause}", self.base))
            .way_out("check that the coordinator runs and that --url is right")
    }
}

async fn json<T: DeserializeOwned>(response: Response) -> Result<T, Failure> {
    let text = response.text().await.map_err(|e| Failure::not_reachable("answer_lost", e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| {
        Failure::not_reachable("answer_unreadable", format!("the coordinator's answer cannot be read: {e}"))
    })
}

/// Hands on what a stream brings until it is lost; `true`: enough was seen.
async fn hand_on(
    response: Response,
    last_id: &mut String,
    heard: &mut Instant,
    on_event: &mut impl FnMut(&str, &str) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let (mut stream, mut buffer) = (response.bytes_stream(), Vec::new());
    while let Some(Ok(bytes)) = stream.next().await {
        *heard = Instant::now();
        buffer.extend_from_slice(&bytes);
        while let Some(end) = buffer.windows(2).position(|w| w == b"\n\n") {
            let block: Vec<u8> = buffer.drain(..end + 2).collect();
            let (id, event, data) = parse_event(&String::from_utf8_lossy(&block));
            if let Some(id) = id {
                *last_id = id;
            }
            if !data.is_empty() && on_event(&event, &data)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn parse_event(block: &str) -> (Option<String>, String, String) {
    let (mut id, mut event, mut data) = (None, "message".to_owned(), Vec::new());
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = Some(value.to_owned()),
            "event" => event = value.to_owned(),
            "data" => data.push(value.to_owned()),
            _ => {}
        }
    }
    (id, event, data.join("\n"))
}

fn token(global: &Global) -> Result<SecretString, Failure> {
    if let (None, Some(value)) = (&global.user, std::env::var_os("FORGEPLANE_TOKEN")) {
        return Ok(SecretString::from(value.to_string_lossy().trim().to_owned()));
    }
    let file = match (&global.user, &global.token_file) {
        (None, Some(file)) => file.clone(),
        (user, _) => {
            let user = user.as_deref().unwrap_or("operator");
            if !user.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                return Err(Failure::local(
                    "invalid_user",
                    format!("`{user}` is not a user of `forgeplane dev`"),
                ));
            }
            global.data_dir.join("tokens").join(format!("{user}.token"))
        }
    };
    read(&file).map(SecretString::from).map_err(|e| {
        Failure::local("no_token", format!("no API token: {}: {e}", file.display()))
            .way_out("set FORGEPLANE_TOKEN or --token-file; for a local `forgeplane dev`, --as admin, operator or approver")
    })
}

fn read(file: &std::path::Path) -> std::io::Result<String> {
    std::fs::read_to_string(file).map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_block_is_read_line_by_line() {
        let (id, event, data) = parse_event("id: 42\nevent: log\ndata: {\"a\":1}\n: comment\n\n");
        assert_eq!((id.as_deref(), event.as_str(), data.as_str()), (Some("42"), "log", "{\"a\":1}"));
    }
}
