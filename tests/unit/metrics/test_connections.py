"""Connections to whoever is asked again and again are kept."""

from __future__ import annotations

import asyncio
import http.server
import threading

from heterotrain_operator.metrics.client import Client


def test_a_client_asks_again_over_the_same_connection() -> None:
    asked: list[tuple[str, int]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it so
            pass

    async def ask(port: int) -> None:
        async with Client() as client:
            for _ in range(3):
                await client.get(f"http://127.0.0.1:{port}/", owner="ours", seconds=10.0, max_bytes=100)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            asyncio.run(ask(server.server_port))
        finally:
            server.shutdown()
            thread.join()
    assert len(asked) == 3
    assert len(set(asked)) == 1
