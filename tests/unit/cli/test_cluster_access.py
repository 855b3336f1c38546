"""Finding a cluster as kubectl does, and what is said where that, or the asking, fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterotrain_operator.cli import BAD_INPUT, NO_CLUSTER
from heterotrain_operator.cli.cluster.commands import COMMANDS
from heterotrain_operator.cli.main import main, program_name
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.cli.cluster_jobs import job_document

JOBS = "heterotrainingjobs"


@pytest.fixture
def api() -> ApiServer:
    """A cluster with two jobs in the namespace `team`, one in `other`, one in `default`."""
    api = ApiServer()
    for name, namespace in (("digits", "team"), ("words", "team"), ("sounds", "other"), ("games", "default")):
        api.restore(JOBS, job_document(name, namespace))
    return api


@pytest.fixture
def url(api: ApiServer) -> Iterator[str]:
    with serving(api) as url:
        yield url


@pytest.fixture
def config(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig for that cluster; nothing else leads to one."""
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return kubeconfig(tmp_path / "config.yaml", url, namespace="team")


def names(text: str) -> list[str]:
    """The first column of a table."""
    return [line.split()[0] for line in text.splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "listed"),
    [
        ([], ["digits", "words"]),
        (["-n", "other"], ["sounds"]),
        (["--namespace=other"], ["sounds"]),
        (["--context", "bare"], ["games"]),
        (["--context", "bare", "-n", "team"], ["digits", "words"]),
        (["-A"], ["default", "other", "team", "team"]),
    ],
    ids=" ".join,
)
def test_namespace_is_taken_as_kubectl_takes_it(
    arguments: list[str], listed: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--kubeconfig", str(config), *arguments]) == 0
    assert names(capsys.readouterr().out) == listed


@pytest.mark.parametrize("how", ["KUBECONFIG", "several", "home"])
def test_kubeconfig_is_found_as_kubectl_finds_it(
    how: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if how == "home":
        (tmp_path / ".kube").mkdir()
        config.rename(tmp_path / ".kube" / "config")
    else:
        monkeypatch.setenv("KUBECONFIG", str(config) if how == "KUBECONFIG" else f"/nonexistent:{config}")
    assert main(["status"]) == 0
    assert names(capsys.readouterr().out) == ["digits", "words"]


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("", "no cluster is configured: ~/.kube/config does not exist; name a kubeconfig with --kubeconfig or KUBECON"),
        ("/nonexistent", "KUBECONFIG names /nonexistent, which does not exist"),
    ],
)
def test_no_kubeconfig_at_all_is_said(
    variable: str, words: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", variable)
    assert main(["status"]) == BAD_INPUT
    assert words in capsys.readouterr().err


def test_pod_without_an_account_is_named_as_the_cause(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert main(["status"]) == BAD_INPUT
    assert "the account of this pod cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "a: b: c", "contexts: []", "apiVersion: v1\nkind: Config\n", "\x00"])
def test_broken_kubeconfig_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(text, "utf-8")
    assert main(["status", "--kubeconfig", str(broken)]) == BAD_INPUT
    assert f"heterotrain status: the kubeconfig {broken} cannot be used: " in capsys.readouterr().err


def test_missing_kubeconfig_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", "/nonexistent"]) == BAD_INPUT
    assert capsys.readouterr().err == "heterotrain status: --kubeconfig: there is no file /nonexistent\n"


def test_unknown_context_is_answered_with_those_there_are(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", str(config), "--context", "moon"]) == BAD_INPUT
    assert f"--context: {config} has no context 'moon'; it has bare, here" in capsys.readouterr().err


def test_silent_cluster_is_unreachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ApiServer()) as url:
        gone = kubeconfig(tmp_path / "config.yaml", url, namespace="team")
    assert main(["status", "--kubeconfig", str(gone)]) == NO_CLUSTER
    said = capsys.readouterr().err
    assert f"the cluster at {url} cannot be reached: " in said
    assert said.endswith("Connection refused\n")


def test_cluster_that_speaks_no_tls_is_unreachable(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = kubeconfig(tmp_path / "config.yaml", url.replace("http:", "https:"), namespace="team")
    assert main(["status", "--kubeconfig", str(wrong)]) == NO_CLUSTER
    assert "cannot be reached: " in capsys.readouterr().err


def test_server_in_trouble_is_reported(api: ApiServer, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api.broken = True
    assert main(["status", "--kubeconfig", str(config)]) == NO_CLUSTER
    assert "could not list heterotrainingjobs.heterotrain.dev in namespace team: 503" in capsys.readouterr().err


def test_wrong_credentials_are_reported(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unauthorized = kubeconfig(tmp_path / "config.yaml", url, namespace="team", token="wrong")
    assert main(["status", "--kubeconfig", str(unauthorized)]) == NO_CLUSTER
    assert f"{url} does not accept the credentials (401 Unauthorized)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["status"], ["status", "digits"], ["watch", "digits"], ["explain", "digits"]])
def test_missing_resource_says_how_to_install(
    arguments: list[str], api: ApiServer, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.missing = {JOBS}
    assert main([*arguments, "--kubeconfig", str(config)]) == NO_CLUSTER
    said = capsys.readouterr().err
    assert said.startswith(f"heterotrain {arguments[0]}: heterotrain is not installed on this cluster")
    assert "install it with: helm install heterotrain helm/heterotrain" in said


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
    asked: str, words: str, api: ApiServer, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource, _, arguments = asked.partition(": ")
    api.forbidden = {resource}
    assert main([*arguments.split(), "--kubeconfig", str(config)]) == NO_CLUSTER
    said = capsys.readouterr().err
    assert words in said
    verb = words.split()[3]
    assert f'User "ann" cannot {verb} resource' in said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digitz", "there is no job 'digitz' in namespace team; did you mean digits?"),
        ("sounds", "there is no job 'sounds' in namespace team; there is one in other (use -n)"),
        ("zzz", "there is no job 'zzz' in namespace team; it has digits, words"),
    ],
)
def test_missing_job_is_answered_with_those_there_are(
    command: str, name: str, words: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, name, "--kubeconfig", str(config)]) == BAD_INPUT
    assert capsys.readouterr().err == f"heterotrain {command}: {words}\n"


def test_missing_job_is_reported_without_the_right_to_look_elsewhere(
    api: ApiServer, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.forbidden = {f"{JOBS}:"}
    assert main(["status", "sounds", "--kubeconfig", str(config)]) == BAD_INPUT
    assert "it has digits, words" in capsys.readouterr().err


def test_job_and_all_namespaces_exclude_each_other(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "digits", "-A", "--kubeconfig", str(config)]) == BAD_INPUT
    assert "name a job or ask for all namespaces, not both" in capsys.readouterr().err


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
        (["status", "--moon"], "usage: kubectl heterotrain"),
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
    command = [
        sys.executable,
        "-m",
        "heterotrain_operator.cli.main",
        "status",
        "--kubeconfig",
        str(config),
        "-o",
        "yaml",
    ]
    packages = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    asked = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": packages}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert asked.stdout is not None
    asked.stdout.close()
    assert asked.stderr is not None
    with asked.stderr:
        assert asked.stderr.read() == ""
    assert asked.wait() == 128 + signal.SIGPIPE


def test_clients_of_kubernetes_are_loaded_only_to_ask_a_cluster() -> None:
    program = (
        "import sys\n"
        "from heterotrain_operator.cli.main import main\n"
        "assert main(['validate', '/nonexistent/job.yaml']) == 2\n"
        "import heterotrain_operator.cli.cluster.explain, heterotrain_operator.cli.cluster.status\n"
        "import heterotrain_operator.cli.cluster.watch\n"
        "print([name for name in ('kopf', 'kubernetes', 'urllib3') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
