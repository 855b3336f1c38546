"""What a process needs around it that a container has of itself: an interpreter by its usual names, and ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from heterotrain_operator.clusters.local import starting as ports
from heterotrain_operator.clusters.local.starting import HOST, Ports, interpreter_path, is_free
from heterotrain_operator.clusters.local.starting import INTERPRETERS as NAMES


@pytest.mark.parametrize("name", NAMES)
def test_python_is_the_interpreter_that_runs_this(name: str, tmp_path: Path) -> None:
    found = shutil.which(name, path=interpreter_path(tmp_path))
    assert found is not None
    assert Path(found).resolve() == Path(sys.executable).resolve()


@pytest.mark.parametrize("name", NAMES)
def test_an_interpreter_of_another_name_is_found_as_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "odd folder"
    odd.mkdir()
    (odd / "snake").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(odd / "snake"))
    found = shutil.which(name, path=interpreter_path(tmp_path / "spare"))
    assert found == str(tmp_path / "spare" / name)
    said = subprocess.run([found, "-S", "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"


def test_ports_are_handed_out_once_and_below_those_of_outgoing_connections() -> None:
    pool = Ports()
    given = [pool.take() for _ in range(50)]
    assert len(set(given)) == 50
    lowest_outgoing = int(ports.EPHEMERAL_RANGE.read_text().split()[0])
    assert all(port >= ports.LOWEST_PORT for port in given)
    if lowest_outgoing > ports.LOWEST_PORT + ports.PORT_ATTEMPTS:
        assert all(port < lowest_outgoing for port in given)


def test_a_taken_port_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_the_path_of_the_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/mine")
    assert interpreter_path(tmp_path).split(os.pathsep)[-1] == "/mine"
