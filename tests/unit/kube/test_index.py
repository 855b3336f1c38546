"""What the watches show, by job."""

from __future__ import annotations

from heterotrain_operator.clusters.kube.observe.index import Index

A, B = ("team-a", "a"), ("team-a", "b")


def test_objects_are_found_by_their_job_as_they_were_put_last() -> None:
    index = Index[str]()
    index.put(A, "1", "old")
    index.put(A, "2", "other")
    index.put(A, "1", "new")
    assert sorted(index.of(A)) == ["new", "other"]
    assert index.of(B) == []


def test_object_that_becomes_another_jobs_is_only_that_ones() -> None:
    index = Index[str]()
    index.put(A, "1", "pod")
    index.put(B, "1", "pod")
    assert (index.of(A), index.of(B)) == ([], ["pod"])


def test_object_that_is_gone_is_nobodys_however_often_that_is_reported() -> None:
    index = Index[str]()
    index.put(A, "1", "pod")
    for _ in range(2):
        index.remove("1")
    assert index.of(A) == []
