"""Jobs of a cluster from Python, on the tests' own API server; the page's own code is what is run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_client import (
    Client,
    ClusterError,
    InvalidJobError,
    Job,
    JobExistsError,
    JobFailedError,
    JobNotFoundError,
    NothingThereError,
    WaitTimeoutError,
)
from heterotrain_client.cluster import ClusterJobs
from heterotrain_operator.api import parse_manifest
from heterotrain_operator.clusters.kube.reading import Reader
from heterotrain_operator.clusters.kube.reading_errors import UnreachableError
from kube_server.api_server import ApiServer, StatusError
from kube_server.serving import kubeconfig, serving
from unit.cli.cluster_jobs import job_document, trained

PAGE = Path(__file__).parents[3] / "docs" / "python-client.md"
JOBS = "heterotrainingjobs"
DIGITS = (JOBS, "team", "digits")


@pytest.fixture
def api() -> ApiServer:
    return ApiServer()


@pytest.fixture
def config(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(ClusterJobs, "look_every_seconds", 0.01)
    monkeypatch.setattr("heterotrain_client.cluster.NEW_PODS_SECONDS", 0.05)
    monkeypatch.chdir(tmp_path)
    with serving(api) as url:
        path = kubeconfig(tmp_path / "config.yaml", url, namespace="team")
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield path


def new_job(**spec: Any) -> dict[str, Any]:
    """A job as somebody submits it."""
    job = job_document()
    return {**job, "metadata": {"name": "digits"}, "spec": {**job["spec"], **spec}}


def worker_pod(name: str, group: str) -> dict[str, Any]:
    labels = {"job-name": "digits", "job-role": "worker", "worker-group": group, "worker-index": "0"}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-of-{name}"}
    metadata |= {"labels": {f"heterotrain.dev/{key}": value for key, value in labels.items()}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "trainer"}]}}


def operate(api: ApiServer, over: threading.Event) -> None:
    """An operator: once the job is there it trains, and once its log was read it succeeds."""
    while DIGITS not in api.objects and not over.wait(0.01):
        pass
    job = trained()
    job.put(api)
    api.logs["digits-g0-0"] = "loss 1\nloss 0.5\n"
    api.restore("pods", worker_pod("digits-g0-0", "g0"))
    while not any("/log" in path for path, _ in api.asked) and not over.wait(0.01):
        pass
    api.change(JOBS, "digits", {"status": {"phase": "Succeeded"}}, "team")


@pytest.mark.usefixtures("config")
def test_the_page_s_code_follows_a_job_from_its_manifest_to_its_end(
    api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = next(each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "kubern" in each)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(new_job()), "utf-8")
    over = threading.Event()
    operator = threading.Thread(target=operate, args=(api, over))
    operator.start()
    try:
        exec(compile(code, str(PAGE), "exec"), {})  # the page is ours
    finally:
        over.set()
        operator.join()
    said = capsys.readouterr().out
    assert "digits in team: Running" in said
    assert "loss 1\nloss 0.5\n" in said
    assert "Why the batches are as they are" in said
    assert DIGITS not in api.objects


def _print(api: ApiServer, logs: dict[str, Iterator[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that trains, whose pods print pieces as they come; a log that raises breaks off."""
    trained().put(api)
    api.change(JOBS, "digits", {"status": {"phase": "Running"}}, "team")
    for name in logs:
        api.restore("pods", worker_pod(name, name[-2:]))

    def log(_: Reader, pod: dict[str, Any], **__: Any) -> Iterator[bytes]:
        return logs.pop(pod["metadata"]["name"])

    monkeypatch.setattr(Reader, "log", log)


def _endless(begun: list[str], ended: list[str]) -> Iterator[bytes]:
    begun.append("")
    try:
        while True:
            yield b"x" * 2**16
    finally:
        ended.append("")


def _breaking() -> Iterator[bytes]:
    yield b"last\n"
    raise UnreachableError("the log of digits-g1 broke off: reset")


@pytest.mark.usefixtures("config")
def test_logs_of_many_workers_are_followed_within_bounds(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    ended: list[str] = []
    _print(api, {f"digits-g0-{each:02}": _endless(begun, ended) for each in range(51)}, monkeypatch)
    client = Client("kubernetes")
    with pytest.raises(InvalidJobError, match=r"^worker: name one: job digits has 51 workers, and 50 logs at most"):
        next(client.logs("digits", follow=True))
    assert not begun
    followed = client.logs("digits", follow=True, worker="digits-g0-07")
    assert isinstance(followed, Generator)
    assert len(next(followed)) <= 2**18  # a line that does not end comes in pieces
    followed.close()  # as Ctrl-C does
    while not ended:
        time.sleep(0.01)
    assert len(begun) == 1


@pytest.mark.usefixtures("config")
def test_others_are_followed_where_a_log_breaks_off_and_to_the_end_of_a_job_that_is_deleted(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def goes_on() -> Iterator[bytes]:
        yield b"first\n"
        api.objects.pop(DIGITS)
        time.sleep(0.2)
        yield b"saved\n"
        over.wait()

    _print(api, {"digits-g0": goes_on(), "digits-g1": _breaking()}, monkeypatch)
    monkeypatch.setattr("heterotrain_client.cluster.LAST_SECONDS", 1.0)
    got = []
    with (
        pytest.warns(UserWarning, match=r"digits-g1 broke off: reset; the other workers' logs are followed on"),
        pytest.raises(ClusterError, match=r"the job is over, but a log of it has not ended in 1 s"),
    ):
        for line in Client("kubernetes").logs("digits", follow=True):
            got.append(line)
    over.set()
    assert sorted(got) == ["digits-g0 | first", "digits-g0 | saved", "digits-g1 | last"]


@pytest.mark.usefixtures("config")
def test_a_function_goes_along_in_the_command(api: ApiServer) -> None:
    def train(rate: float) -> None:
        print(rate)

    job = Client("kubernetes").run(
        train, workers="2x1.0,0.5", func_args={"rate": 0.5}, global_batch=64, steps=9, seed=1, image="me/it:1", name="t"
    )
    assert (job.name, job.namespace, job.phase) == ("t", "team", "Unseen")
    stored = api.objects[JOBS, "team", "t"]
    large, _small = parse_manifest(stored).spec.worker_groups
    container = large.template["spec"]["containers"][0]
    assert (large.replicas, container["image"], container["command"][:2]) == (2, "me/it:1", ["python", "-c"])
    assert container["command"][2].endswith("train(rate=0.5)\n")


@pytest.mark.usefixtures("config")
def test_what_a_cluster_does_not_have_or_do_is_said(api: ApiServer) -> None:
    client = Client("kubernetes")
    job = client.submit(new_job())
    assert isinstance(job, Job)
    with pytest.raises(JobExistsError, match=r"there is a job 'digits' in namespace team already"):
        client.submit(parse_manifest(new_job()))
    with pytest.raises(JobNotFoundError, match=r"no job 'digit' in namespace team; did you mean digits?"):
        client.status("digit")
    with pytest.raises(NothingThereError, match=r"job digits has no pods now"):
        next(client.logs("digits"))
    with pytest.raises(WaitTimeoutError, match=r"did not come to an end in 0.05 s; it is Unseen") as late:
        client.wait("digits", timeout=0.05)
    assert late.value.job.name == "digits"
    api.change(JOBS, "digits", {"status": {"phase": "Failed", "reason": "worker x left"}}, "team")
    with pytest.raises(JobFailedError, match=r"job digits has failed, not Succeeded: worker x left"):
        client.wait("digits")
    assert client.wait("digits", until={"Failed", "Suspended"}).phase == "Failed"
    with pytest.raises(InvalidJobError, match=r"metadata.namespace: is other, but this client's is team"):
        client.submit({**new_job(), "metadata": {"name": "d", "namespace": "other"}})
    with pytest.raises(InvalidJobError, match=r"spec.training.globalBatchSize: "):
        client.submit(new_job(training={"globalBatchSize": 0, "steps": 1}))
    with pytest.raises(InvalidJobError, match=r"compare: is for jobs on this machine alone"):
        client.run("train.py", compare=["Uniform"])

    def refuse(verb: str, plural: str, name: str) -> None:
        if verb == "create":
            raise StatusError(422, "Invalid", "spec: a quota of this cluster")

    api.refuse = refuse
    with pytest.raises(InvalidJobError, match=r"the cluster refuses the job: .*a quota of this cluster"):
        client.submit({**new_job(), "metadata": {"name": "e"}})


def test_no_way_to_a_cluster_is_said(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"context: .* has no context 'moon'; it has bare, here"):
        Client("kubernetes", context="moon")
    with pytest.raises(ClusterError, match=r"kubeconfig: there is no file nowhere"):
        Client("kubernetes", kubeconfig="nowhere")
    refused = kubeconfig(config, "http://127.0.0.1:9", namespace="team")
    with pytest.raises(ClusterError, match=r"the cluster at http://127.0.0.1:9 cannot be reached"):
        Client("kubernetes", kubeconfig=str(refused)).list()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no cluster is configured: .*; name a kubeconfig with kubeconfig or KUBEC"):
        Client("kubernetes")


@pytest.mark.usefixtures("config")
def test_a_waiting_client_bears_with_a_server_that_is_away(api: ApiServer) -> None:
    client = Client("kubernetes")
    client.submit(new_job())

    def comes_back() -> None:
        while not api.asked:
            time.sleep(0.001)
        api.broken = True
        time.sleep(0.1)
        api.change(JOBS, "digits", {"status": {"phase": "Succeeded"}}, "team")
        api.broken = False

    away = threading.Thread(target=comes_back)
    away.start()
    assert client.wait("digits", timeout=60).ended
    away.join()


@pytest.mark.usefixtures("config")
def test_jobs_show_themselves_in_notebooks_and_bear_a_newer_operator(api: ApiServer) -> None:
    job = trained().document
    job["status"] |= {"phase": "Running", "newer": 1, "workers": [*job["status"]["workers"], {"name": 3}]}
    api.restore(JOBS, job)
    (found,) = jobs = Client("kubernetes").list()
    assert found.status.step is not None
    assert len(found.status.workers) == 3
    for each in (found, jobs):
        shown = each._repr_mimebundle_()
        assert "digits" in shown["text/plain"]
        assert shown["text/html"].startswith("<pre")
