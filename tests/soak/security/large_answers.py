"""Large answers: a proxy announces a console whose answers are compressed bombs and documents of empty lists."""

from __future__ import annotations

import gzip
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

from bench.rawclient import WRITE, RawClient
from bmqtwist.limits import PROXY_ANSWER_BYTES_MAX
from soak.security.target import Target, rounds
from soak.spread import proxy_of_a_proxy

DOCUMENT = b'{"clients":[' + b"[]," * (PROXY_ANSWER_BYTES_MAX // 3 - 10) + b"[]]}"
BOMB = gzip.compress(b'{"clients":[' + b"[]," * (5 << 20) + b"[]]}")


class _Answers(BaseHTTPRequestHandler):
    numbers = count()

    def do_GET(self) -> None:
        compressed = next(self.numbers) % 2 == 0
        body = BOMB if compressed else DOCUMENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def run(target: Target, seconds: float) -> dict[str, Any]:
    """Inspect the clients, as an operator does, once per second; return the number of answers of the proxy's console."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="bmq-proxy-") as name:
        proxy = proxy_of_a_proxy(Path(name), "p1", target.broker)
        proxy.config.broker["appConfig"]["bmqtwist"] = {"http": {
            "port": target.proxy_port, "url": f"http://127.0.0.1:{server.server_address[1]}"}}
        proxy.config.write()
        proxy.domain("g")
        try:
            proxy.start()
            client = RawClient(proxy.port)
            client.open("bmq://g/proxied", 0, WRITE)
            answered = sum(b'"p1"' in target.request("/api/v1/clients") for _ in rounds(seconds, 1.0))
            client.close()
        finally:
            proxy.close()
            server.shutdown()
    asked = next(_Answers.numbers)
    missing = [] if asked else ["the console of the proxy is not asked"]
    return {"answers": asked, "documents": answered, "violations": missing}
