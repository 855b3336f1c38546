"""The peak that a worker reports is that of its steps under the active plan, and of nothing else."""

import subprocess

import pytest
import torch

from heterotrain import worker_metrics as table
from heterotrain.contract import Member, Plan
from heterotrain.job.farewell import is_out_of_memory
from heterotrain.reporting import resources
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.reporting.peak import READ_SECONDS, PeakMemory
from heterotrain.reporting.timing import StepTimes

MEBIBYTE = 1 << 20


def take(mebibytes: int) -> None:
    """Take memory and give it back, as a step does."""
    torch.ones(mebibytes * MEBIBYTE // 4)


def peak_mib(memory: PeakMemory) -> float:
    assert memory.peak is not None
    return memory.peak.memory_bytes / MEBIBYTE


def test_peak_is_that_of_measured_steps_since_the_plan_began() -> None:
    memory = PeakMemory()
    memory.begin(8)
    memory.step(8, 0.1, measured=True)
    quiet = peak_mib(memory)
    take(96)
    memory.step(8, 0.1, measured=False)  # a checkpoint's, say
    memory.step(8, 0.1, measured=True)
    assert peak_mib(memory) < quiet + 48
    take(96)
    memory.step(8, READ_SECONDS / 2, measured=True)
    memory.step(8, READ_SECONDS / 2, measured=True)
    assert peak_mib(memory) > quiet + 80, "the most of all steps counts, not the last one's"
    memory.begin(4)
    assert memory.peak is None
    memory.step(0, 0.1, measured=True)
    assert memory.peak is None, "a worker without samples reports nothing"
    memory.step(4, 0.1, measured=True)
    assert peak_mib(memory) < quiet + 48
    assert memory.peak is not None
    assert memory.peak.batch_size == 4


def test_memory_beside_steps_is_had_where_it_fits_and_counts_for_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1 << 40
    monkeypatch.setattr(resources, "memory_limit_bytes", lambda: limit)
    monkeypatch.setattr(resources, "children_memory_bytes", lambda: 10 * MEBIBYTE)
    memory = PeakMemory()
    memory.begin(8)
    assert not memory.hold(1), "nobody knows what steps need"
    take(96)
    memory.step(8, 0.1, measured=True)
    assert memory.peak is not None
    room = 0.95 * limit - memory.peak.memory_bytes - 10 * MEBIBYTE
    assert not memory.hold(int(room) + MEBIBYTE)
    assert memory.hold(int(room) - 48 * MEBIBYTE)
    before = memory.peak
    take(256)
    memory.step(8, 0.3, measured=True)
    take(256)
    memory.release()
    memory.step(8, 0.3, measured=True)
    memory.step(8, 0.3, measured=True)
    assert memory.peak.memory_bytes < before.memory_bytes + 96 * MEBIBYTE


def test_no_peak_is_reported_where_it_cannot_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "forget_peak", lambda: False)
    memory = PeakMemory()
    memory.begin(8)
    memory.step(8, 0.1, measured=True)
    assert memory.peak is None


def test_loader_processes_count() -> None:
    before = resources.children_memory_bytes()  # the tests may have processes of their own
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert 0 < resources.children_memory_bytes() - before < 64 * MEBIBYTE
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("micro_batch_size", "at_once"), [(0, 100), (40, 34)])
def test_peak_is_exported_with_the_samples_computed_at_once(micro_batch_size: int, at_once: int) -> None:
    metrics = WorkerMetrics("job", "job-cpu-0", "cpu", lambda: False)
    metrics.follow(Plan(3, 1, "step", (Member("job-cpu-0", "u", "", "cpu", 100, micro_batch_size),)), 0)
    metrics.committed(100, StepTimes(0.1, 0.0), 0.2, measured=True)
    values = {metric.name: metric.samples[0].value for metric in metrics.collect()}
    assert values[table.MEMORY_BATCH_SIZE.name] == at_once
    assert values[table.MEMORY_PEAK_BYTES.name] >= values[table.MEMORY_BYTES.name] * 0.5


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_failed_allocations_are_distinguished_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
