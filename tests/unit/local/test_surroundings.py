"""What a process needs around it that a container has of itself: an interpreter by its usual names, ports, a CPU."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from heterotrain_operator.clusters.local import starting
from heterotrain_operator.clusters.local.pod import place
from heterotrain_operator.clusters.local.starting import HOST, INTERPRETERS, Ports, interpreter_path, is_free


@pytest.mark.parametrize("name", INTERPRETERS)
def test_python_is_the_interpreter_that_runs_this_whatever_it_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/mine")
    path = interpreter_path(tmp_path)
    assert path.split(os.pathsep)[-1] == "/mine", "the path of the user stays"
    found = shutil.which(name, path=path)
    assert found is not None
    assert Path(found).resolve() == Path(sys.executable).resolve()

    odd = tmp_path / "odd folder"
    odd.mkdir()
    (odd / "snake").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(odd / "snake"))
    found = shutil.which(name, path=interpreter_path(tmp_path / "spare"))
    assert found == str(tmp_path / "spare" / name)
    said = subprocess.run([found, "-S", "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"


def test_ports_are_free_handed_out_once_and_below_those_of_outgoing_connections() -> None:
    pool = Ports()
    given = [pool.take() for _ in range(50)]
    assert len(set(given)) == 50
    lowest_outgoing = int(starting.EPHEMERAL_RANGE.read_text().split()[0])
    assert all(port >= starting.LOWEST_PORT for port in given)
    if lowest_outgoing > starting.LOWEST_PORT + starting.PORT_ATTEMPTS:
        assert all(port < lowest_outgoing for port in given)
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


@pytest.mark.parametrize(
    ("limits", "cpus", "placed"),
    [
        ({"small": 0.25, "large": 1.0, "medium": 0.5}, [0, 1], {"large": 0, "medium": 1, "small": 1}),
        ({"b": 0.5, "a": 0.5, "c": 0.5}, [3, 7], {"a": 3, "b": 3, "c": 7}),
        ({"a": None, "b": 0.5}, [0, 1], {}),
        ({"a": 1.5}, [0, 1], {}),
        ({"a": 0.8, "b": 0.8, "c": 0.3}, [0, 1], {}),
    ],
    ids=["largest first", "equal ones by name", "no limit", "more than a core", "too many"],
)
def test_workers_share_a_cpu_only_if_their_limits_fit_on_it(
    limits: dict[str, float | None], cpus: list[int], placed: dict[str, int]
) -> None:
    assert place(limits, cpus) == placed
