"""The real Prometheus as a process of the test, with TLS, a password, and whatever it shall scrape."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import trustme
import yaml

from e2e.programs import program
from e2e.waiting import wait_for
from heterotrain_operator.clusters.local.starting import Ports

USERNAME, PASSWORD = "heterotrain", "open sesame"
PASSWORD_HASH = "$2b$04$XzpLDy5nfvTQDEBACVsHUOPOYxFaxnzz4qUSWx62hiRy3MFXYAH96"  # bcrypt's
POLL_SECONDS = 0.1


class PrometheusServer:
    """Prometheus on a free port of this machine; it can be stopped and started again."""

    def __init__(self, folder: Path, scrape_configs: list[dict[str, Any]], rule_files: list[str]) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        self.ca_pem = authority.cert_pem.bytes().decode()
        address = f"127.0.0.1:{Ports().take()}"
        self.url = f"https://{address}"
        (folder / "prometheus.yaml").write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
                    "scrape_configs": scrape_configs,
                    "rule_files": rule_files,
                }
            )
        )
        (folder / "web.yaml").write_text(
            yaml.safe_dump(
                {
                    "tls_server_config": {"cert_file": "cert.pem", "key_file": "key.pem"},
                    "basic_auth_users": {USERNAME: PASSWORD_HASH},
                }
            )
        )
        self._log = folder / "log"
        self._command = [
            program("prometheus"),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--web.config.file={folder / 'web.yaml'}",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={folder / 'data'}",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        token = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=self.ca_pem)),
        )

    def start(self) -> None:
        """Return once it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self._ready, 60.0, "Prometheus to be ready", every=POLL_SECONDS)

    def stop(self) -> None:
        """Return once it is gone."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        path = f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with self._open(path) as response:
            found: list[dict[str, Any]] = json.load(response)["data"]["result"]
        return found

    def _open(self, path: str) -> Any:
        return self._opener.open(urllib.request.Request(self.url + path, headers=self._headers), timeout=5)

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            with self._open("/-/ready"):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False
