"""A TCP proxy that breaks connections where a test wants them broken."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes each connection on and cuts it after `next(cuts)` bytes of the server's answer.

    When `cuts` runs out, connections live as long as they like.
    """

    def __init__(self, url: str, cuts):
        parts = urlsplit(url)
        self._upstream = (parts.hostname, parts.port)
        self._cuts = iter(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self.connections = 0
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # The proxy was closed.
            self.connections += 1
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as server:
            threading.Thread(target=self._copy, args=(client, server), daemon=True).start()
            self._copy(server, client, next(self._cuts, None))

    def _copy(self, source: socket.socket, sink: socket.socket, limit: int | None = None) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                if limit is not None and passed + len(data) >= limit:
                    sink.sendall(data[:limit - passed])
                    self.cut += 1
                    break
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass  # One side is gone, which ends the other.
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It was closed already.

    def __enter__(self) -> "CuttingProxy":
        return self

    def __exit__(self, *_exc) -> None:
        self._listener.close()
