"""Whatever an object or a file holds, the answer is a job or its problems, each short, and in little time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.api import (
    ManifestError,
    load_manifest,
    parse_manifest,
    parse_stored,
    to_core,
    training_config,
)
from heterotrain_operator.api.quantity import parse_quantity
from hostile import ODD_TEXT, VALUES, spoilt

Document = dict[str, Any]
Change = Callable[[dict[str, Any]], Document]
LIMITS = "spec.workerGroups[1].template.spec.containers[0].resources.limits"
GOOD: Document = yaml.safe_load((Path(__file__).parent / "good_manifest.yaml").read_text())


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("levels", [70, 5000])
def test_deeply_nested_template_is_a_problem_that_names_the_place(changed: Change, levels: int) -> None:
    where = "spec.workerGroups[0].template.spec.securityContext"
    for parse in (parse_manifest, parse_stored):
        with pytest.raises(ManifestError) as caught:
            parse(changed({where: nested(levels)}))
        (problem,) = caught.value.problems
        assert problem.path.startswith(f"{where}.a.a")
        assert problem.reason == "is nested more than 64 levels deep"
        assert len(str(problem)) < 200


GRACE = "spec.workerGroups[0].template.spec.terminationGracePeriodSeconds"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        *((GRACE, number, "") for number in (10**400, -(2**63) - 1, 2**63, float("nan"), float("-inf"))),
        ("spec.workerGroups[0].template.spec.containers", [None], "is required, found nothing"),
        ("spec.training.target", {"metric": "\ud800", "value": 1}, "holds half a character"),
        # As a number of Python's it would be infinite, and end a worker that takes it for its CPU limit.
        (LIMITS, {"cpu": "1e999"}, "must be at most 2**63 - 1"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_value_that_no_api_server_stores_is_a_problem(changed: Change, path: str, value: object, why: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(changed({path: value}))
    (problem,) = caught.value.problems
    assert problem.path.startswith(path)
    assert why in problem.reason


def test_few_lines_that_stand_for_a_billion_values_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    file = tmp_path / "job.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ManifestError, match="has more than 500000 values"):
        load_manifest(file)


@pytest.mark.parametrize("text", ["seed: " + "9" * 5000, "seed: 0x_", "seed: 0b_", "a: &a\n  b: *a", '"\\ud800": 1'])
def test_file_with_what_yaml_cannot_make_a_number_of_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError):
        load_manifest(file)


def judged(document: object) -> None:
    for parse in (parse_manifest, lambda found: parse_stored(found)[0]):
        try:
            job = parse(document)
        except ManifestError as error:
            assert error.problems
            assert all(len(str(problem).encode()) < 10_000 for problem in error.problems)
            continue
        core = to_core(job)
        assert all(training_config(job, group.name).to_json() for group in core.groups)


@given(spoilt(GOOD))
def test_any_document_is_a_job_or_has_problems(document: object) -> None:
    before = copy.deepcopy(document)
    judged(document)
    assert repr(document) == repr(before), "the document itself stays as it is"


@given(spoilt(GOOD["spec"]["workerGroups"][0]["template"]))
def test_any_template_is_one_to_start_or_has_problems(template: object) -> None:
    document = copy.deepcopy(GOOD)
    document["spec"]["workerGroups"][0]["template"] = template
    judged(document)


@given(
    st.text()
    | ODD_TEXT
    | st.sampled_from(["a: " + "[" * 3000, "!!python/object:x y", "? [a]\n: b", "<<: *x", "1: {2: 3}"])
)
def test_any_file_is_a_job_or_has_problems(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ManifestError):
        load_manifest(file)


@given(VALUES | st.from_regex(r"\A[+-]?[0-9.]{0,80}[eEnumkKMGTPE]?[+-]?[0-9i]{0,9}\Z"))
def test_any_quantity_is_a_number_that_is_not_negative_or_refused(value: object) -> None:
    try:
        number = parse_quantity(value)
    except ValueError as error:
        assert len(str(error).encode()) < 500
        return
    assert 0 <= number < 2**63
    assert 0 <= float(number) <= 2.0**63


def test_long_quantity_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="must be a quantity"):
        parse_quantity("9" * 10**6 + "x")  # a search from every digit on would take hours
