"""Workers that end, until all start again or the job has failed."""

from __future__ import annotations

from unit.core.traces import World


def events(world: World) -> list[str]:
    return [event.reason for event in world.decisions[-1].events]


def restart_fully(world: World) -> None:
    """Past the delay, until the next generation's plan."""
    world.tick(61)
    world.tick()


def failure(world: World) -> tuple[str, str]:
    """Reason and message of the condition Failed, which must be true."""
    failed = next(condition for condition in world.decisions[-1].conditions if condition.type == "Failed")
    assert failed.status
    return failed.reason, failed.message


def start_and_end(world: World, *ends: tuple[int, str]) -> None:
    """Workers are created, and end with these codes and words before there is a plan."""
    world.tick()
    for worker, (code, message) in zip(world.workers.values(), ends, strict=False):
        worker.end(code, message=message)
