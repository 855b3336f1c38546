"""A checkpoint folder is one job's, and another one gets it once that job has ended, in order or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain.state import owner
from heterotrain.state.owner import OWNER, OwnedError, Ownership


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(owner, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(owner, "SILENCE_SECONDS", 0.5)


def test_another_job_is_refused_while_the_first_lives_and_gets_the_folder_after_its_end(tmp_path: Path) -> None:
    first, second, third = (Ownership(tmp_path / "job", uid) for uid in ("uid-1", "uid-2", "uid-3"))
    first.claim()
    with pytest.raises(OwnedError, match=r"belongs to the job of the UID uid-1, .* this one has the UID uid-2"):
        second.claim()
    successor = Ownership(tmp_path / "job", "uid-1")
    successor.claim()  # whoever leads the same job next is not kept out
    successor.lead(False)
    first.confirm()
    first.release()
    assert not (tmp_path / "job" / OWNER).exists()
    third.claim()
    third.release()


def test_a_job_that_gives_no_sign_of_life_loses_the_folder_and_writes_nothing_more(tmp_path: Path) -> None:
    first, second = Ownership(tmp_path, "uid-1"), Ownership(tmp_path, "uid-2")
    first.claim()
    first.lead(False)  # as if its leader were killed or stopped
    second.claim()
    with pytest.raises(OwnedError, match="taken over by the job of the UID uid-2, while this job, of the UID uid-1"):
        first.confirm()
    first.release()
    second.confirm()
    (tmp_path / OWNER).unlink()
    second.confirm()  # also if somebody has removed the file, as long as nobody else has taken the folder
    assert (tmp_path / OWNER).read_text() == "uid-2"
    second.release()
