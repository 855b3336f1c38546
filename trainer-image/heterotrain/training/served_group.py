"""The group of a process of an asynchronous job, which meets nobody: what members would say goes to the server."""

from __future__ import annotations

from typing import Protocol

from heterotrain.training.group import Group


class Link(Protocol):
    """What connects this process with the job: a worker's line to the server, or the server's port."""

    @property
    def serves(self) -> bool:
        """Whether this process is the server."""
        ...

    @property
    def in_collective(self) -> bool:
        """Whether this process only waits for others."""
        ...

    def job_is_over(self) -> None:
        """The job's last update is applied."""
        ...

    def end_job(self) -> None:
        """This worker's script has ended the job: have the server end it, and wait until it has."""
        ...

    def close(self) -> None:
        """This process's part has ended."""
        ...


class ServedGroup(Group):
    """A group without a generation; `link` is set once it is there."""

    link: Link | None = None

    @property
    def in_collective(self) -> bool:
        """Whether this process only waits for others."""
        return self.link is not None and self.link.in_collective

    @property
    def ends_by_itself(self) -> bool:
        """Whether a script that ends the job ends it by that: the server's does."""
        return self.link is not None and self.link.serves

    def make_ready(self) -> None:
        """Nothing sums gradients over workers here."""

    def take_changes(self) -> bool:
        """Raises RuntimeError if the script has changed what is trained: the server and each worker come to an epoch at
        different times, and until all had, they would not know what the others send."""
        if self._subject.take_changes():
            raise RuntimeError(
                "the script froze parameters, made some trainable, or added some to the optimizer between two epochs, "
                "which training.mode: ASP does not support; do it before the loop, or use mode: BSP"
            )
        return False

    def job_is_over(self) -> None:
        """The job's last update is applied."""
        if self.link is not None:
            self.link.job_is_over()

    def give_up(self, why: str) -> None:
        """The script has ended the job, and has no batch under way any more."""
        if self.link is not None:
            self.link.end_job()

    def leave_early(self, why: str) -> None:
        """This process leaves before the end; what it holds is given to others."""
        if self.link is not None:
            self.link.close()

    def leave(self) -> None:
        """The training is over: leave for good."""
        if self.link is not None:
            self.link.close()
        super().leave()
