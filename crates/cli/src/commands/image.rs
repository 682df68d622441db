//! `outlive image …`

use std::{
    path::{Path, PathBuf},
    pin::Pin,
};

use bytes::Bytes;
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::{io::ReaderStream, task::TaskTracker};

use super::Context;
use crate::{
    args::{
        Format,
        image::{Image, ImageFormat},
    },
    bar::Bar,
    client::{Call, Upload},
    error::{Failure, Result},
    limits::UPLOAD_CHUNK_BYTES,
    output::{columns, fields, print, stdout_line, text, time},
};

const COLLECTION: &str = "/v1/images";

/// Runs a command of `image`.
pub async fn run(context: &Context, command: Image) -> Result<()> {
    match command {
        Image::Import { file, name, format } => import(context, &file, name, format).await,
        Image::Pull {
            reference,
            name,
            insecure,
            user,
            password,
        } => {
            let auth = match (user, password) {
                (Some(user), Some(password)) => Some((user, password)),
                _ => from_docker(&reference)?,
            };
            let mut body = json!({"reference": reference, "insecure": insecure});
            if let Some(name) = name {
                body["name"] = name.into();
            }
            if let Some((user, password)) = auth {
                body["username"] = user.into();
                body["password"] = password.into();
            }
            let bar = Bar::new(context.format);
            let call = Call::post("/v1/images/pull").body(&body);
            let image = context
                .client
                .follow(call, "image", |line| show(&bar, line))
                .await?;
            bar.end();
            print(context.format, &image, details)
        }
        Image::List => {
            let images = context.client.call(Call::get(COLLECTION)).await?;
            print(context.format, &images, list)
        }
        Image::Rm { name } => {
            let path = format!("{COLLECTION}/{}", checked(&name)?);
            let answer = context.client.call(Call::delete(&path)).await?;
            match context.format {
                Format::Table => stdout_line(&format!("Image {} removed", text(&answer["name"]))),
                format => print(format, &answer, text),
            }
        }
    }
}

async fn import(
    context: &Context,
    file: &Path,
    name: Option<String>,
    format: ImageFormat,
) -> Result<()> {
    let name = match name {
        Some(name) => name,
        None => name_of(file)?,
    };
    let (source, length) = open(file).await?;
    let bar = Bar::new(context.format);
    bar.step("Sending", length);
    let counting = bar.clone();
    let body = ReaderStream::with_capacity(source, UPLOAD_CHUNK_BYTES);
    let upload = Upload {
        path: COLLECTION,
        query: vec![("name", name), ("format", format.as_str().to_owned())],
        body: Box::pin(Counted {
            inner: body,
            bar: counting,
        }),
        length,
    };
    let image = context
        .client
        .upload(upload, "image", |line| show(&bar, line))
        .await?;
    bar.end();
    print(context.format, &image, details)
}

type Source = Pin<Box<dyn AsyncRead + Send>>;

/// The bytes to send, and how many there are, when that is known.
async fn open(file: &Path) -> Result<(Source, Option<u64>)> {
    if file == Path::new("-") {
        return Ok((Box::pin(tokio::io::stdin()), None));
    }
    let failed = |error| Failure::file("read", file, &error);
    let meta = tokio::fs::metadata(file).await.map_err(failed)?;
    if meta.is_dir() {
        return Ok((Box::pin(tar_of(file.to_owned())), None));
    }
    let opened = tokio::fs::File::open(file).await.map_err(failed)?;
    let length = meta.is_file().then_some(meta.len());
    Ok((Box::pin(opened), length))
}

/// A folder as a tar, made while it is read.
fn tar_of(folder: PathBuf) -> impl AsyncRead {
    let (writer, reader) = tokio::io::duplex(UPLOAD_CHUNK_BYTES);
    let task = TaskTracker::new().spawn(async move {
        let mut tar = tokio_tar::Builder::new(writer);
        tar.follow_symlinks(false);
        tar.append_dir_all("", &folder).await?;
        tar.finish().await
    });
    // A folder that can't be read ends the stream with its error, not with a short tar.
    reader.chain(Ending::Making(task))
}

/// The end of a tar that a task makes: nothing, or what went wrong.
enum Ending {
    Making(tokio::task::JoinHandle<std::io::Result<()>>),
    Told,
}

impl AsyncRead for Ending {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        _buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let Self::Making(task) = &mut *self else {
            return std::task::Poll::Ready(Ok(()));
        };
        let done = std::task::ready!(Pin::new(task).poll(cx));
        *self = Self::Told;
        std::task::Poll::Ready(done.unwrap_or_else(|error| Err(std::io::Error::other(error))))
    }
}

/// A body that moves a bar.
struct Counted<S> {
    inner: S,
    bar: Bar,
}

impl<S: Stream<Item = std::io::Result<Bytes>> + Unpin> Stream for Counted<S> {
    type Item = std::io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = std::task::ready!(Pin::new(&mut self.inner).poll_next(cx));
        if let Some(Ok(bytes)) = &next {
            self.bar.add(bytes.len() as u64);
        }
        std::task::Poll::Ready(next)
    }
}

/// Shows a line of the server.
fn show(bar: &Bar, line: &Value) {
    let total = line["bytes_total"].as_u64();
    match line["step"].as_str() {
        Some("pulling") => bar.step("Pulling", total),
        Some("unpacking") => bar.step("Unpacking", None),
        _ => return,
    }
    bar.at(line);
}

/// A name for an image of this file: `debian-13.tar.zst` is `debian-13`.
fn name_of(file: &Path) -> Result<String> {
    let unnamed = || Failure::usage("give the image a name: --name NAME");
    if file == Path::new("-") {
        return Err(unnamed());
    }
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(unnamed)?;
    let mut stem = name;
    for ending in [".gz", ".zst", ".tgz", ".tar"] {
        stem = stem.strip_suffix(ending).unwrap_or(stem);
    }
    Ok(stem.to_lowercase())
}

/// A name in a path; what can't be one would lead elsewhere.
fn checked(name: &str) -> Result<&str> {
    let fine = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':' | b'/'));
    if fine && !name.is_empty() && !name.split('/').any(|part| part.is_empty() || part == "..") {
        Ok(name)
    } else {
        Err(Failure::usage(format!(
            "`{}` is no name of an image",
            crate::event::escaped(name)
        )))
    }
}

/// User and password for a reference's registry, where docker keeps them.
fn from_docker(reference: &str) -> Result<Option<(String, String)>> {
    let folder = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")));
    let Some(path) = folder.map(|folder| folder.join("config.json")) else {
        return Ok(None);
    };
    if !path.is_file() {
        return Ok(None);
    }
    let read: Value = serde_saphyr::from_str(&crate::config::read_bounded(&path)?)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    auth_of(&read, reference).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
}

fn auth_of(
    config: &Value,
    reference: &str,
) -> std::result::Result<Option<(String, String)>, String> {
    let registry = match reference.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    };
    let names: &[&str] = if registry == "docker.io" {
        &[
            "https://index.docker.io/v1/",
            "docker.io",
            "index.docker.io",
        ]
    } else {
        &[registry]
    };
    for name in names {
        let Some(coded) = config["auths"][*name]["auth"].as_str() else {
            continue;
        };
        let plain = base64_simd::STANDARD
            .decode_to_vec(coded)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| format!("the entry of {name} is unreadable"))?;
        let (user, password) = plain
            .split_once(':')
            .ok_or_else(|| format!("the entry of {name} is unreadable"))?;
        return Ok(Some((user.to_owned(), password.to_owned())));
    }
    Ok(None)
}

fn list(answer: &Value) -> String {
    let images = answer["images"].as_array();
    let rows: Vec<[String; 6]> = images
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|image| {
            [
                text(&image["name"]),
                text(&image["digest"]).chars().take(19).collect(),
                text(&image["layers"]),
                size(&image["size_bytes"]),
                text(&image["sandboxes"]),
                time(&image["created_at"]),
            ]
        })
        .collect();
    columns(
        ["NAME", "DIGEST", "LAYERS", "SIZE", "SANDBOXES", "CREATED"],
        &rows,
    )
}

fn details(image: &Value) -> String {
    let left_out = image["left_out"].as_array().map(Vec::as_slice);
    let left_out: Vec<String> = left_out.unwrap_or_default().iter().map(text).collect();
    fields(&[
        ("name", text(&image["name"])),
        ("digest", text(&image["digest"])),
        ("layers", text(&image["layers"])),
        ("size", size(&image["size_bytes"])),
        ("source", text(&image["source"])),
        ("left out", left_out.join("; ")),
    ])
}

fn size(bytes: &Value) -> String {
    match bytes.as_u64() {
        None | Some(0) => String::new(),
        Some(bytes) => indicatif::HumanBytes(bytes).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_after_its_file() {
        for (file, name) in [
            ("/tmp/Debian-13.tar.zst", "debian-13"),
            ("rootfs.tar", "rootfs"),
            ("layout", "layout"),
        ] {
            assert_eq!(name_of(Path::new(file)).unwrap(), name);
        }
        name_of(Path::new("-")).unwrap_err();
    }

    #[test]
    fn dockers_keys_are_found_by_registry() {
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmE6Yg=="},
            "127.0.0.1:5000": {"auth": "bWU6c2VjcmV0"},
            "broken.example": {"auth": "%"},
        }});
        let found = |reference| auth_of(&config, reference);
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(found("busybox").unwrap(), pair("hub", "a:b"));
        assert_eq!(found("127.0.0.1:5000/a:1").unwrap(), pair("me", "secret"));
        assert_eq!(found("other.example/a").unwrap(), None);
        found("broken.example/a").unwrap_err();
    }

    #[test]
    fn no_name_leads_to_another_path() {
        assert_eq!(checked("127.0.0.1:5000/a:1").unwrap(), "127.0.0.1:5000/a:1");
        for name in ["", "../keys", "a/../b", "a?b", "a#b", "a//b", "a%2e"] {
            checked(name).unwrap_err();
        }
    }
}
