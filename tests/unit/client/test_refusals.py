"""What a client refuses before anything is started, by the name of the field, option or job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heterotrain_client import (
    Client,
    ClientError,
    InvalidJobError,
    JobExistsError,
    JobNotFoundError,
    NothingThereError,
)
from heterotrain_client.cluster import _printed_lines
from heterotrain_client.functions import script_of
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.locks import held
from unit.cli.commands import manifest

SCALE = 2


def plain(steps: int, name: str = "a") -> None:
    import os

    print(os.sep, steps, name)


def uses_a_global() -> None:
    print(SCALE, [Path(each) for each in "ab"])


def has_a_default(path: Path = Path.home()) -> None:  # noqa: B008 - what is refused
    print(path)


class Holder:
    def train(self) -> None: ...


def closure() -> Callable[[], None]:
    scale = SCALE

    def train() -> None:
        print(scale)

    return train


@partial
def decorated() -> None: ...


async def waits() -> None: ...


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / "train.py").write_text("import heterotrain\n", "utf-8")
    return Client(folder=tmp_path)


def nested() -> Callable[[], None]:
    def train() -> None:
        class Net:
            width = 8
            half = width // 2

        print(
            Net.half,
            repr("""
        a"""),
        )

    return train


def test_a_function_becomes_a_script_that_calls_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"

    def printed(source: str) -> str:
        script.write_text(source, "utf-8")
        return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout

    assert printed(script_of(plain, {"steps": 3, "name": "b"})) == "/ 3 b\n"
    assert printed(script_of(nested(), {})) == "4 '\\n        a'\n"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "is a lambda; give a function that is defined by def"),
        (Holder().train, "is a method; give a script's path, or a function"),
        (Holder.train, "train is a method; give a function"),
        (closure(), "train is a closure over scale; pass them by func_args"),
        (decorated, "is a partial; give a script's path, or a function"),
        (waits, "waits is no plain function"),
        (print, "is a builtin_function_or_method"),
        (uses_a_global, "uses_a_global uses Path, SCALE from outside of it; import or define that within"),
        (has_a_default, "has_a_default uses Path from outside of it"),
        (3, "is a int; give a script's path"),
    ],
)
def test_what_a_worker_could_not_run_is_refused_by_name(function: Any, words: str, client: Client) -> None:
    with pytest.raises(InvalidJobError, match=words) as refused:
        client.run(function)
    assert refused.value.problems[0].path == "run"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"func_args: plain\(\): missing a required argument: 'steps'"),
        ({"steps": 1, "rate": 2}, "got an unexpected keyword argument 'rate'"),
        ({"steps": object()}, "func_args.steps: must be a literal"),
    ],
)
def test_arguments_of_a_function_are_checked(arguments: dict[str, Any], words: str, client: Client) -> None:
    with pytest.raises(InvalidJobError, match=words):
        client.run(plain, func_args=arguments)


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("tran.py", {}, "there is no such file; did you mean train.py?"),
        ("train.py", {"global_bach": 3}, r"global_bach: is no option of run\(\); did you mean global_batch\?"),
        ("train.py", {"epochs": 0}, "epochs: input should be greater than or equal to 1, found 0"),
        ("train.py", {"epochs": 1, "steps": 1}, "steps: is instead of epochs"),
        ("train.py", {"workers": "gpsu"}, "workers: must be CPU limits or GPUs.* did you mean gpu"),
        ("train.py", {"workers": [0.5, None]}, "workers: must be like 3"),
        ("train.py", {"policy": "Optimum"}, "policy: 'Optimum' is no policy.* did you mean Optimal"),
        ("train.py", {"resume": True}, "resume: the job has no spec.checkpoint.path"),
        ("train.py", {"image": "x"}, "image: is for"),
        ("train.py", {"name": "../train"}, r"name: must be a DNS-1035 label"),
    ],
)
def test_wrong_options_are_named(script: str, options: dict[str, Any], words: str, client: Client) -> None:
    with pytest.raises(InvalidJobError, match=words):
        client.run(script, **options)
    assert client.list() == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workerGroups": []}, "spec.workerGroups: "),
        ({"training": {"globalBatchSize": 1, "steps": 1}}, r"spec.training.globalBatchSize: "),
        ({"runPolicy": {"suspend": True}}, "spec.runPolicy.suspend: a suspended job does not run"),
    ],
)
def test_a_manifest_is_refused_as_the_command_line_refuses_it(
    change: dict[str, Any], words: str, client: Client
) -> None:
    with pytest.raises(InvalidJobError, match=words):
        client.submit(manifest(**change))
    assert client.list() == ()


def test_a_line_of_a_pod_that_does_not_end_comes_in_pieces() -> None:
    pieces = list(_printed_lines("w", [b"x" * 50_000] * 4, alone=False))
    assert (len(pieces), sum(each.count("x") for each in pieces)) == (2, 200_000)
    assert all(each.startswith("w | ") for each in pieces)


def test_what_is_not_there_is_said(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match=r"jobb.yaml: "):
        client.submit("jobb.yaml")
    with pytest.raises(InvalidJobError, match=r"there is no 'kubernets'; did you mean kubernetes?"):
        Client("kubernets")
    with pytest.raises(InvalidJobError, match=r"namespace: is not for the backend local"):
        Client(namespace="team")
    entry = runs.begin(tmp_path, "train", None)
    with pytest.raises(JobNotFoundError, match=r"there is no job 'trian' in .*; did you mean train?"):
        client.status("trian")
    with pytest.raises(InvalidJobError, match=r"until: there is no phase 'Complete'; there are Created"):
        client.wait("train", until="Complete")
    with pytest.raises(NothingThereError, match=r"have printed nothing"):
        next(client.logs("train"))
    with pytest.raises(NothingThereError, match=r"has left no figures"):
        client.report("train")
    with held(entry / runs.MARKER), pytest.raises(JobExistsError, match=r"job train runs already"):
        client.run("train.py")


def test_clients_that_share_a_folder_do_not_meddle(client: Client, tmp_path: Path) -> None:
    """One begins the job; an older run of it lives beside a newer one; it runs on another machine; a file is there."""
    older, newer = (runs.begin(tmp_path, "train", None) for _ in range(2))
    with held(older.parent / "changed"), pytest.raises(JobExistsError, match=r"is just being started or deleted"):
        client.run("train.py")
    with held(older / runs.MARKER):
        with pytest.raises(JobExistsError, match=r"job train runs already"):
            client.run("train.py")
        with pytest.raises(ClientError, match=r"is run by `heterotrain run`, not from Python"):
            client.delete("train")
    submitted = newer.with_name(f"{newer.name}-submitted")
    submitted.mkdir()
    (submitted / "process").write_text("1 moon", "ascii")
    with held(submitted / "output"), pytest.raises(ClientError, match=r"job train runs on moon, by process 1 there"):
        client.delete("train")
    assert older.exists()
    client.delete("train")
    assert not older.parent.exists()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".heterotrain").touch()
    (tmp_path / "sub" / "train.py").touch()
    with pytest.raises(ClientError, match=r"job train: .*\.heterotrain"):
        Client(folder=tmp_path / "sub").run("train.py")


def test_logs_are_followed_from_one_trial_to_the_next(client: Client, tmp_path: Path) -> None:
    entry = runs.begin(tmp_path, "train", None)

    def write(trial: str, text: str) -> None:
        log = runs.log_folder(entry, trial) / "train-cpu-0" / "log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(text)

    write("first", "a\n")
    with held(entry / runs.MARKER):
        lines = client.logs("train", follow=True, worker="cpu-0")
        assert next(lines) == "a"
        write("first", "b\n")
        write("second", "c\n")
        assert {next(lines), next(lines)} == {"b", "c"}
    assert list(lines) == []


def test_the_client_loads_no_torch_no_cluster_and_no_notebook() -> None:
    loaded = "import sys, heterotrain_client; heterotrain_client.Client(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"torch", "kopf", "kubernetes", "IPython", "matplotlib"} & set(done.stdout.split())
