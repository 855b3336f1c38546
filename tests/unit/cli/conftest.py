"""What tests of commands share: a command that runs in this process, and a cluster that it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heterotrain_operator.cli.main import main
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def heterotrain(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with these arguments; of what was printed before nothing is in what it said."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        try:
            code: object = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def api() -> ApiServer:
    """A cluster in which nothing is."""
    return ApiServer()


@pytest.fixture
def url(api: ApiServer) -> Iterator[str]:
    with serving(api) as url:
        yield url


@pytest.fixture
def config(url: str, tmp_path: Path) -> Path:
    """A kubeconfig for that cluster, whose context is in the namespace `team`."""
    return kubeconfig(tmp_path / "config.yaml", url, namespace="team")
