"""How the members of an attempt make its groups together, once all of them know its number and its board."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from heterotrain.contract import Plan
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import GROUP_SECONDS, Generation
from heterotrain.groups.peering.board_store import BoardStore
from heterotrain.groups.sockets import SocketCutter
from heterotrain.peers import parse_ports, parse_text, parse_traits

DEVICE = "device"
"""What a member is known by, among its traits: the type of its device."""

Traits = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Maker:
    """What is the same for all attempts of one worker.

    `traits` are shown to all members, and `check_alike` gets the plan and everybody's, by rank, before groups are made;
    it may raise ValueError. `spare_port` is the port of this worker's own metrics server, `backend` that of
    `TrainingConfig`.
    """

    traits: Traits
    check_alike: Callable[[Plan, Sequence[Traits]], None]
    spare_port: int | None
    backend: str
    is_asked_to_stop: Callable[[], bool]

    def begin(self, plan: Plan, number: Number, rank: int, *, ahead: bool = False) -> Making:
        """Groups that are to be made, `ahead` of a switch or at once; nothing is done yet."""
        cutter = SocketCutter(self.spare_port, _hosts(plan))
        generation = Generation(plan, number, rank, cutter, is_asked_to_stop=self.is_asked_to_stop)
        return Making(self, plan, generation, cutter, "ahead/" if ahead else "")


class Making:
    """Groups of one attempt on their way."""

    def __init__(self, maker: Maker, plan: Plan, generation: Generation, cutter: SocketCutter, prefix: str) -> None:
        self.generation = generation
        self.traits: Sequence[Traits] = ()
        """Those of all members, by rank."""
        self._maker = maker
        self._plan = plan
        self._cutter = cutter
        self._prefix = prefix  # of keys: an attempt may form under the number that was meant for groups ahead

    def meet(self, store: BoardStore) -> None:
        """Wait until all members are there, as far as the store's patience goes, and compare traits. Raises
        RuntimeError, and ValueError as `check_alike`."""
        members = range(self.generation.world_size)
        store.set(f"{self._prefix}here/{self.generation.rank}", json.dumps(dict(self._maker.traits)))
        self.traits = [parse_traits(store.get(f"{self._prefix}here/{rank}")) for rank in members]
        self._maker.check_alike(self._plan, self.traits)

    def meet_and_make(self, store: BoardStore) -> None:
        """Do both. Raises as they do."""
        self.meet(store)
        self.make(store)

    def make(self, store: BoardStore) -> None:
        """Make the groups. Raises RuntimeError if that takes too long, or the store is closed; they are broken up
        then."""
        generation = self.generation
        # nccl reaches only GPUs; gloo serves a mixture, staging GPU buckets through pinned host memory by itself.
        over_nccl = {each.get(DEVICE) for each in self.traits} == {"cuda"} and self._maker.backend == "auto"
        try:
            beside = self._store_for_nccl(store) if over_nccl else None
            with self._cutter.watch() as ports:  # sockets are known as the generation's before this has ended
                generation.make_groups(store, self._prefix, beside)
            self._cutter.claim(self._everybodys_ports(store, ports))
        except BaseException as error:
            generation.break_up(str(error))
            raise

    def _everybodys_ports(self, store: BoardStore, own: Sequence[int]) -> set[int]:
        """At which the members' groups listen. Raises RuntimeError if a member is gone."""
        store.set(f"{self._prefix}ports/{self.generation.rank}", json.dumps(list(own)))
        members = range(self.generation.world_size)
        return {port for rank in members for port in parse_ports(store.get(f"{self._prefix}ports/{rank}"))}

    def _store_for_nccl(self, store: BoardStore) -> dist.Store:
        """One of torch's own, served by the first member: NCCL's threads read values at any time, also while the
        interpreter ends and cannot run Python any more."""
        host = self._plan.members[0].address.rpartition(":")[0].strip("[]")
        seconds = timedelta(seconds=GROUP_SECONDS)
        if self.generation.rank == 0:
            served = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=seconds)
            store.set(f"{self._prefix}nccl", str(served.port))
            return served
        port = parse_text(store.get(f"{self._prefix}nccl"), 5)
        if not (port.isascii() and port.isdigit()):
            raise ValueError(f"the first member offers no port for NCCL: {port}")
        return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=seconds)


def _hosts(plan: Plan) -> set[str]:
    """The addresses of all members; empty if one of them cannot be resolved."""
    found: set[str] = set()
    for member in plan.members:
        host = member.address.rpartition(":")[0].strip("[]")
        try:
            found |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
        except OSError:
            return set()
    return found
