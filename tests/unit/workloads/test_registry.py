"""The workloads by name: each learns on its own data, mismatches are named, and each has a manifest that is valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from heterotrain.workloads import registry
from heterotrain_operator.api import load_manifest
from heterotrain_operator.cli.main import main
from heterotrain_operator.clusters.local.template import read_templates

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MANIFESTS = sorted((EXAMPLES / "workloads").glob("*.yaml"))

SMALL: dict[str, dict[str, Any]] = {
    "cnn": {"width": 8},
    "resnet18": {"width": 4},
    "resnet50": {"width": 4, "learning_rate": 0.005},
    "alexnet": {"width": 8},
    "vgg11": {"width": 4},
    "gpt": {"width": 32},
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and much slower beside other programs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("model", registry.MODELS)
def test_loss_falls_within_a_few_steps(model: str) -> None:
    torch.manual_seed(0)
    data = registry.load(registry.default_data(model), samples=12)
    workload = registry.build(model, data, **SMALL.get(model, {}))
    (inputs, targets) = next(iter(DataLoader(data.dataset, 12)))
    losses = []
    for _ in range(12):
        loss = workload.criterion(workload.model(inputs), targets)
        workload.optimizer.zero_grad()
        loss.backward()
        workload.optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ("resnet18", "tokens", "resnet18 trains on data in the form of Images, and these are Tokens"),
        ("gpt", "digits", "gpt trains on data in the form of Tokens, and these are Images"),
        ("linear", "points", "linear trains on data in the form of Numbers, and these are Sides"),
    ],
)
def test_model_that_does_not_go_with_the_data_is_refused(model: str, data: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.build(model, registry.load(data, samples=4))


def test_width_of_what_has_none_is_refused() -> None:
    with pytest.raises(ValueError, match="width: svm has none"):
        registry.build("svm", registry.load("points", samples=4), width=3)


def test_path_is_asked_for_only_where_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data text: needs a path"):
        registry.load("text")
    with pytest.raises(ValueError, match="data images: is made, not read; give no path"):
        registry.load("images", path=tmp_path)


def test_model_fits_a_text_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("To be, or not to be. " * 20)
    data = registry.load("text", path=path, samples=2)
    inputs, _ = next(iter(DataLoader(data.dataset, 9)))
    assert inputs.shape == (2, 64)
    assert registry.build("gpt", data, width=8).model(inputs).shape == (2, 64, 256)


@pytest.mark.parametrize(
    ("inputs", "targets", "form"),
    [
        (np.zeros((4, 1, 8, 8)), np.array([0, 2, 1, 2]), registry.Images(1, 8, 3)),
        (np.zeros((4, 5)), np.array([1.0, -1.0, 1.0, 1.0]), registry.Sides(5)),
        (np.zeros((4, 5)), np.array([1.0, 2.0, 1.0, 1.0]), registry.Numbers(5)),
    ],
)
def test_form_of_arrays_is_seen_in_them(
    inputs: np.ndarray, targets: np.ndarray, form: registry.Form, tmp_path: Path
) -> None:
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
    assert registry.load("arrays", path=tmp_path / "data.npz").form == form


def test_arrays_of_no_known_form_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", inputs=np.zeros((4, 2, 2)), targets=np.zeros(4))
    with pytest.raises(ValueError, match=r"data\.npz: inputs must be images .*, found \(4, 2, 2\)"):
        registry.load("arrays", path=tmp_path / "data.npz")


def test_every_workload_has_a_manifest() -> None:
    assert {path.stem for path in MANIFESTS} == set(registry.MODELS)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_is_valid_and_trains_its_model_here_and_in_a_cluster(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(path)]) == 0
    said = capsys.readouterr().out
    assert "is valid" in said
    assert "cannot run on this machine" not in said
    for template in read_templates(load_manifest(path)).values():
        assert template.command[:4] == ("python", "examples/train_workload.py", "--model", path.stem)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_meets_the_restricted_pod_security_standard(path: Path) -> None:
    for group in load_manifest(path).spec.worker_groups:
        pod = group.template["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
