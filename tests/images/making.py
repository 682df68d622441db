"""Makes images of the machine's static busybox: tars, layouts, archives, and a registry."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import platform
import tarfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1002:app:/app:/bin/sh\n"


def tar(entries: list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info, data = entry if isinstance(entry, tuple) else (entry, b"")
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def directory(name: str, mode: int = 0o755, uid: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid = tarfile.DIRTYPE, mode, uid
    return info


def file(name: str, data: bytes | str, mode: int = 0o644, uid: int = 0):
    data = data.encode() if isinstance(data, str) else data
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid = len(data), mode, uid
    return info, data


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def base() -> bytes:
    """A root with a shell, a file to delete, and a user of its own."""
    tools = ["sh", "cat", "ls", "id", "echo", "stat", "env", "pwd", "sleep", "touch", "rm"]
    return tar([
        directory("bin"), directory("etc"), directory("root", 0o700),
        directory("tmp", 0o1777), directory("app", uid=1001), directory("data"),
        file("bin/busybox", BUSYBOX.read_bytes(), 0o755),
        *[link(f"bin/{name}", "busybox") for name in tools],
        file("etc/passwd", PASSWD), file("etc/group", "root:x:0:\napp:x:1002:\n"),
        file("data/old", "old\n"), file("data/kept", "kept\n"), file("marker", "base\n"),
    ])


def upper() -> bytes:
    """Deletes one file, changes another, adds a third."""
    return tar([
        directory("data"), file("data/.wh.old", ""), file("data/new", "new\n"),
        file("marker", "upper\n"),
    ])


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass
class Image:
    """An image by its layers, lowest first."""

    layers: list[bytes]
    settings: dict = field(default_factory=dict)

    @property
    def config(self) -> bytes:
        return json.dumps({
            "architecture": ARCHITECTURE, "os": "linux", "config": self.settings,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]},
        }).encode()

    def blobs(self) -> tuple[dict[str, bytes], bytes]:
        """All blobs by digest, and the manifest."""
        packed = [gzip.compress(layer, 1, mtime=0) for layer in self.layers]
        described = [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
             "digest": digest(blob), "size": len(blob)} for blob in packed
        ]
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": digest(self.config), "size": len(self.config)},
            "layers": described,
        }).encode()
        return {digest(blob): blob for blob in [*packed, self.config]}, manifest

    def write_layout(self, folder: Path) -> None:
        blobs, manifest = self.blobs()
        for name, blob in {**blobs, digest(manifest): manifest}.items():
            path = folder / "blobs/sha256" / name.removeprefix("sha256:")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(blob)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_text(json.dumps({
            "schemaVersion": 2,
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                           "digest": digest(manifest), "size": len(manifest)}],
        }))

    def docker_archive(self) -> bytes:
        """As `docker save` wrote it for years: a folder a layer, the description at the end."""
        names = [digest(layer).removeprefix("sha256:") for layer in self.layers]
        config = digest(self.config).removeprefix("sha256:") + ".json"
        entries: list = []
        for name, layer in zip(names, self.layers):
            entries += [directory(name), file(f"{name}/layer.tar", layer)]
        manifest = [{"Config": config, "RepoTags": ["app:1"],
                     "Layers": [f"{name}/layer.tar" for name in names]}]
        entries += [file(config, self.config), file("manifest.json", json.dumps(manifest))]
        return tar(entries)


class Registry:
    """One repository, `team/app:1`, as the distribution API serves it."""

    def __init__(self, image: Image, auth: str | None = None):
        self.blobs, self.manifest = image.blobs()
        self.auth = auth
        self.asked: list[str] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                registry.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def reference(self) -> str:
        return f"{self.address}/team/app:1"

    def answer(self, request) -> None:
        self.asked.append(request.path)
        if self.auth and request.headers.get("Authorization") != self.auth:
            return self.send(request, 401, b"{}", {"WWW-Authenticate": 'Basic realm="test"'})
        if request.path == "/v2/":
            return self.send(request, 200, b"{}", {})
        if request.path == "/v2/team/app/manifests/1":
            kind = "application/vnd.oci.image.manifest.v1+json"
            headers = {"Docker-Content-Digest": digest(self.manifest), "Content-Type": kind}
            return self.send(request, 200, self.manifest, headers)
        blob = self.blobs.get(request.path.removeprefix("/v2/team/app/blobs/"))
        if blob is None:
            body = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no such thing"}]}'
            return self.send(request, 404, body, {"Content-Type": "application/json"})
        return self.send(request, 200, blob, {"Content-Type": "application/octet-stream"})

    @staticmethod
    def send(request, status: int, body: bytes, headers: dict) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def __enter__(self) -> "Registry":
        self.thread.start()
        return self

    def __exit__(self, *_exc) -> None:
        self.server.shutdown()
        self.server.server_close()
