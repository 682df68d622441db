//! Registries that want to fill the memory, to keep a call for ever, or to send it in circles.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use oci_spec::image::Arch;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::interval,
};

use super::*;
use crate::images::progress::Progress;

/// What a kernel keeps between two sockets, and what a client reads ahead, bytes: more than that
/// was taken by somebody.
const ON_THE_WAY_MAX: u64 = 16 << 20;

/// How it answers one path.
#[derive(Clone)]
struct Answer {
    head: String,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Whole(Vec<u8>),
    /// Goes on until nobody takes it.
    Endless,
    /// A byte now and then, for ever.
    Drips,
}

impl Answer {
    fn with(head: &str, body: Body) -> Self {
        Self {
            head: format!("HTTP/1.1 {head}\r\nConnection: close\r\n"),
            body,
        }
    }

    fn whole(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        let head = format!("200 OK\r\nContent-Length: {}", bytes.len());
        Self::with(&head, Body::Whole(bytes))
    }

    async fn send(&self, to: &mut TcpStream, sent: &AtomicU64) -> std::io::Result<()> {
        to.write_all(format!("{}\r\n", self.head).as_bytes())
            .await?;
        match &self.body {
            Body::Whole(bytes) => to.write_all(bytes).await,
            Body::Endless => loop {
                let more = to.write(&[b'{'; 8 << 10]).await?;
                sent.fetch_add(more as u64, Ordering::Relaxed);
            },
            Body::Drips => {
                let mut pause = interval(Duration::from_millis(5));
                loop {
                    pause.tick().await;
                    to.write_all(b"{").await?;
                }
            }
        }
    }
}

/// A registry that answers as it is told.
struct Registry {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

impl Registry {
    async fn new(answers: impl Fn(&str, &str) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, sent) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::<AtomicU64>::default(),
        );
        let mut serving = JoinSet::new();
        let (asks, sends) = (Arc::clone(&asked), Arc::clone(&sent));
        let named = address.clone();
        serving.spawn(async move {
            let mut calls = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let path = path(&mut stream).await;
                let answer = answers(&named, &path);
                asks.lock().unwrap().push(path);
                let sends = Arc::clone(&sends);
                calls.spawn(async move {
                    if answer.send(&mut stream, &sends).await.is_err() {
                        // Nobody takes any more of it.
                    }
                });
            }
        });
        Self {
            address,
            asked,
            sent,
            _serving: serving,
        }
    }

    fn remote(&self, patience: Patience) -> Remote {
        let asked = PullImage {
            reference: format!("{}/team/app:1", self.address),
            ..PullImage::default()
        };
        Remote::with_patience(&asked, patience).unwrap()
    }

    /// Pulls the whole image.
    async fn pull(&self, patience: Patience) -> Result<(), ImageError> {
        let draft = tempfile::tempdir().unwrap();
        let (progress, _stages) = Progress::new();
        let mut remote = self.remote(patience);
        let manifest = remote.manifest().await?;
        let cancel = CancellationToken::new();
        remote
            .layers(&manifest, |_| true, draft.path(), &progress, &cancel)
            .await?;
        Ok(())
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn path(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.unwrap();
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').nth(1).unwrap().to_owned()
}

/// An image of one layer: what is asked for, in this order, and what is answered.
fn image() -> Vec<(String, Vec<u8>)> {
    let layer = vec![7; 1 << 20];
    let config = json!({
        "architecture": Arch::default(), "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": [Digest::of(&layer)] },
    });
    let config = config.to_string().into_bytes();
    let described = |kind: &str, bytes: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": Digest::of(bytes), "size": bytes.len(),
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "config": described("config.v1+json", &config),
        "layers": [described("layer.v1.tar", &layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let index = json!({ "schemaVersion": 2, "manifests": [
        described("manifest.v1+json", &manifest),
    ]});
    let digest = Digest::of(&manifest);
    vec![
        ("/manifests/1".to_owned(), index.to_string().into_bytes()),
        (format!("/manifests/{digest}"), manifest),
        (format!("/blobs/{}", Digest::of(&config)), config),
        (format!("/blobs/{}", Digest::of(&layer)), layer),
    ]
}

/// A registry that serves the image but for the one path, which it answers in its own way.
async fn but_for(spoilt: &str, answer: Answer) -> Registry {
    let (spoilt, image) = (spoilt.to_owned(), image());
    Registry::new(move |_, path| {
        if path.contains(&spoilt) {
            return answer.clone();
        }
        let found = image.iter().find(|(end, _)| path.ends_with(end));
        found.map_or_else(
            || Answer::with("404 Not Found", Body::Whole(Vec::new())),
            |(_, bytes)| Answer::whole(bytes.clone()),
        )
    })
    .await
}

fn paths() -> Vec<String> {
    image().into_iter().map(|(path, _)| path).collect()
}

#[tokio::test]
async fn an_image_is_pulled_through_its_index() {
    let registry = but_for("nothing", Answer::whole("")).await;
    registry.pull(Patience::default()).await.unwrap();
    assert_eq!(registry.asked(), paths().len());
}

/// A manifest of 300 MB took 600 MB of the server's memory; a token or a complaint would have, too.
#[tokio::test]
async fn an_answer_without_end_is_not_read_into_memory() {
    for head in ["200 OK", "404 Not Found", "503 Service Unavailable"] {
        for path in paths() {
            let registry = but_for(&path, Answer::with(head, Body::Endless)).await;
            let refused = registry.pull(Patience::default()).await.unwrap_err();
            let story = format!("{head} {path}: {refused}");
            match (&refused, head) {
                (ImageError::TooLarge { max, .. }, "200 OK") => {
                    assert_eq!(*max, IMAGE_JSON_BYTES_MAX, "{story}");
                }
                (ImageError::Registry { passing, .. }, _) => {
                    assert_eq!(*passing, head.starts_with("503"), "{story}");
                }
                _ => panic!("{story}"),
            }
            let sent = registry.sent.load(Ordering::Relaxed);
            assert!(
                sent < IMAGE_JSON_BYTES_MAX + ON_THE_WAY_MAX,
                "{story}: {sent}"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_that_announces_too_much_is_not_read_at_all() {
    for path in &paths()[..2] {
        let head = "200 OK\r\nContent-Length: 300000000";
        let registry = but_for(path, Answer::with(head, Body::Drips)).await;
        let refused = registry.pull(Patience::default()).await.unwrap_err();
        assert!(matches!(refused, ImageError::TooLarge { .. }), "{refused}");
    }
}

fn asks_for_a_token(address: &str) -> Answer {
    let head = format!(
        "401 Unauthorized\r\nContent-Length: 0\r\n\
         WWW-Authenticate: Bearer realm=\"http://{address}/token\",service=\"test\""
    );
    Answer::with(&head, Body::Whole(Vec::new()))
}

#[tokio::test]
async fn a_token_without_end_or_of_drops_is_given_up() {
    let short = Patience {
        answer: Duration::from_millis(300),
        ..Patience::default()
    };
    for (body, patience) in [(Body::Endless, Patience::default()), (Body::Drips, short)] {
        let registry = Registry::new(move |address, path| {
            if path.starts_with("/token") {
                return Answer::with("200 OK", body.clone());
            }
            asks_for_a_token(address)
        })
        .await;
        let refused = registry.pull(patience).await.unwrap_err();
        let told = matches!(
            refused,
            ImageError::TooLarge { .. } | ImageError::Registry { passing: true, .. }
        );
        assert!(told, "{refused}");
        assert!(registry.sent.load(Ordering::Relaxed) < ON_THE_WAY_MAX);
    }
}

#[tokio::test]
async fn a_registry_that_is_content_with_no_token_is_asked_twice() {
    let registry = Registry::new(|address, path| {
        if path.starts_with("/token") {
            return Answer::whole(r#"{"access_token": "t"}"#);
        }
        asks_for_a_token(address)
    })
    .await;
    let refused = registry.pull(Patience::default()).await.unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");
    assert_eq!(registry.asked(), 3);
}

/// Each byte came in time, so that the call, and one of the few places for imports, was never
/// free again.
#[tokio::test]
async fn an_answer_of_drops_is_given_up() {
    for path in paths() {
        let registry = but_for(&path, Answer::with("200 OK", Body::Drips)).await;
        let patience = if path.contains("/manifests/") {
            Patience {
                answer: Duration::from_millis(300),
                ..Patience::default()
            }
        } else {
            Patience {
                silence: Duration::from_millis(300),
                ..Patience::default()
            }
        };
        let refused = registry.pull(patience).await.unwrap_err();
        // The configuration is shorter than what drips until then.
        let told = matches!(refused, ImageError::Registry { .. });
        assert!(told, "{path}: {refused}");
    }
}

#[tokio::test]
async fn a_registry_that_sends_in_circles_is_left() {
    for path in paths() {
        let image = image();
        let circle = path.clone();
        let registry = Registry::new(move |address, path| {
            if path.contains(&circle) {
                let head = format!(
                    "307 Temporary Redirect\r\nContent-Length: 0\r\n\
                     Location: http://{address}{path}x"
                );
                return Answer::with(&head, Body::Whole(Vec::new()));
            }
            let found = image.iter().find(|(end, _)| path.ends_with(end));
            found.map_or_else(
                || Answer::whole(""),
                |(_, bytes)| Answer::whole(bytes.clone()),
            )
        })
        .await;
        let refused = registry.pull(Patience::default()).await.unwrap_err();
        let told = matches!(refused, ImageError::Registry { passing: false, .. });
        assert!(told, "{path}: {refused}");
        assert!(registry.asked() < 20, "{path}: {}", registry.asked());
    }
}

#[test]
fn only_this_machine_is_asked_without_tls() {
    for near in [
        "localhost",
        "localhost:5000",
        "127.0.0.1:5000",
        "[::1]:5000",
    ] {
        assert!(is_loopback(near), "{near}");
    }
    for far in [
        "docker.io",
        "localhost.example",
        "10.0.0.1:5000",
        "[fe80::1]:5000",
    ] {
        assert!(!is_loopback(far), "{far}");
    }
}
