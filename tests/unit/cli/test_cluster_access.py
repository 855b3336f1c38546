"""Finding a cluster as kubectl does, and what is said where that, or the asking, fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heterotrain_operator.cli import BAD_INPUT, NO_CLUSTER
from heterotrain_operator.cli.cluster.commands import COMMANDS
from heterotrain_operator.cli.main import main, program_name
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.cli.cluster_jobs import job_document
from unit.cli.conftest import Run

JOBS = "heterotrainingjobs"


@pytest.fixture
def api() -> ApiServer:
    """A cluster with two jobs in the namespace `team`, one in `other`, one in `default`."""
    api = ApiServer()
    for name, namespace in (("digits", "team"), ("words", "team"), ("sounds", "other"), ("games", "default")):
        api.restore(JOBS, job_document(name, namespace))
    return api


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what a test names leads to a cluster."""
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def names(text: str) -> list[str]:
    """The first column of a table."""
    return [line.split()[0] for line in text.splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "listed"),
    [
        ([], ["digits", "words"]),
        (["--namespace=other"], ["sounds"]),
        (["--context", "bare"], ["games"]),
        (["--context", "bare", "-n", "team"], ["digits", "words"]),
        (["-A"], ["default", "other", "team", "team"]),
    ],
    ids=" ".join,
)
def test_namespace_is_taken_as_kubectl_takes_it(
    arguments: list[str], listed: list[str], config: Path, heterotrain: Run
) -> None:
    assert names(heterotrain("status", "--kubeconfig", config, *arguments).out) == listed


@pytest.mark.parametrize("how", ["KUBECONFIG", "several", "home"])
def test_kubeconfig_is_found_as_kubectl_finds_it(
    how: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    if how == "home":
        (tmp_path / ".kube").mkdir()
        config.rename(tmp_path / ".kube" / "config")
    else:
        monkeypatch.setenv("KUBECONFIG", str(config) if how == "KUBECONFIG" else f"/nonexistent:{config}")
    assert names(heterotrain("status").out) == ["digits", "words"]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "no cluster is configured: ~/.kube/config does not exist; name a kubeconfig with --kubeconfig or KUBECON"),
        ({"KUBECONFIG": "/nonexistent"}, "KUBECONFIG names /nonexistent, which does not exist"),
        (
            {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"},
            "the account of this pod cannot be used",
        ),
    ],
)
def test_no_kubeconfig_at_all_is_said(
    environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    said = heterotrain("status")
    assert said.code == BAD_INPUT
    assert words in said.err


@pytest.mark.parametrize("text", ["", "[]", "a: b: c", "contexts: []", "apiVersion: v1\nkind: Config\n", "\x00"])
def test_broken_kubeconfig_is_named(text: str, tmp_path: Path, heterotrain: Run) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text, "utf-8")
    said = heterotrain("status", "--kubeconfig", broken)
    assert said.code == BAD_INPUT
    assert f"heterotrain status: the kubeconfig {broken} cannot be used: " in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kubeconfig", "/nonexistent"], "heterotrain status: --kubeconfig: there is no file /nonexistent\n"),
        (["--context", "moon"], "config.yaml has no context 'moon'; it has bare, here"),
        (["digits", "-A"], "name a job or ask for all namespaces, not both"),
    ],
)
def test_what_there_is_not_is_bad_input(arguments: list[str], words: str, config: Path, heterotrain: Run) -> None:
    said = heterotrain("status", "--kubeconfig", config, *arguments)
    assert said.code == BAD_INPUT
    assert words in said.err


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("gone", "cannot be reached: "),
        ("tls", "cannot be reached: "),
        ("broken", "could not list heterotrainingjobs.heterotrain.dev in namespace team: 503"),
        ("token", "does not accept the credentials (401 Unauthorized)"),
    ],
)
def test_cluster_that_gives_nothing_is_named(
    trouble: str, words: str, *, api: ApiServer, url: str, tmp_path: Path, heterotrain: Run
) -> None:
    api.broken = trouble == "broken"
    with serving(ApiServer()) as gone:
        pass
    where = {"gone": gone, "tls": url.replace("http:", "https:")}.get(trouble, url)
    token = {"token": "wrong"} if trouble == "token" else {}
    said = heterotrain("status", "--kubeconfig", kubeconfig(tmp_path / "c.yaml", where, namespace="team", **token))
    assert said.code == NO_CLUSTER
    assert words in said.err


@pytest.mark.parametrize("arguments", [["status"], ["status", "digits"], ["watch", "digits"], ["explain", "digits"]])
def test_missing_resource_says_how_to_install(
    arguments: list[str], api: ApiServer, config: Path, heterotrain: Run
) -> None:
    api.missing = {JOBS}
    said = heterotrain(*arguments, "--kubeconfig", config)
    assert said.code == NO_CLUSTER
    assert said.err.startswith(f"heterotrain {arguments[0]}: heterotrain is not installed on this cluster")
    assert "install it with: helm install heterotrain helm/heterotrain" in said.err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (f"{JOBS}: status", "you may not list heterotrainingjobs.heterotrain.dev in namespace team: "),
        (f"{JOBS}: status -A", "you may not list heterotrainingjobs.heterotrain.dev in all namespaces: "),
        ("configmaps: explain digits", "you may not get configmap digits-plan in namespace team: "),
        ("events: explain digits", "you may not list events in namespace team: "),
    ],
)
def test_refusal_names_verb_and_resource(
    asked: str, words: str, api: ApiServer, config: Path, heterotrain: Run
) -> None:
    resource, _, arguments = asked.partition(": ")
    api.forbidden = {resource}
    said = heterotrain(*arguments.split(), "--kubeconfig", config)
    assert said.code == NO_CLUSTER
    assert words in said.err
    assert f'User "ann" cannot {words.split()[3]} resource' in said.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "hidden", "words"),
    [
        ("digitz", False, "did you mean digits?"),
        ("sounds", False, "there is one in other (use -n)"),
        ("sounds", True, "it has digits, words"),
        ("zzz", False, "it has digits, words"),
    ],
)
def test_missing_job_is_answered_with_those_that_may_be_seen(
    command: str, name: str, hidden: bool, words: str, *, api: ApiServer, config: Path, heterotrain: Run
) -> None:
    api.forbidden = {f"{JOBS}:"} if hidden else set()
    said = heterotrain(command, name, "--kubeconfig", config)
    assert said.code == BAD_INPUT
    assert said.err == f"heterotrain {command}: there is no job '{name}' in namespace team; {words}\n"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/local/bin/heterotrain", "heterotrain"),
        ("/root/.krew/bin/kubectl-heterotrain", "kubectl heterotrain"),
        ("operator/heterotrain_operator/cli/main.py", "heterotrain"),
    ],
)
def test_program_is_named_as_it_was_called(path: str, name: str) -> None:
    assert program_name(path) == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--kubeconfig", "/nonexistent"], "kubectl heterotrain status: --kubeconfig: there is no file"),
        (["watch"], "usage: kubectl heterotrain watch"),
    ],
)
def test_plugin_speaks_of_itself_as_kubectl_does(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-heterotrain", *arguments])
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code
    assert code == BAD_INPUT
    assert words in capsys.readouterr().err


def test_reader_that_has_seen_enough_is_left_in_peace(config: Path) -> None:
    words = ["heterotrain_operator.cli.main", "status", "--kubeconfig", str(config), "-o", "yaml"]
    packages = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": packages}
    asked = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert asked.stdout is not None and asked.stderr is not None
    asked.stdout.close()
    with asked.stderr:
        assert asked.stderr.read() == ""
    assert asked.wait() == 128 + signal.SIGPIPE
