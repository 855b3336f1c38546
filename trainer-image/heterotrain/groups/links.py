"""The workers that plans have named, and the channels that are open to them; kept under the lock of whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.contract import Member, Plan
from heterotrain.groups.peering.channel import Channel


class Links:
    """Finds a worker's name, address and newest open channel by its UID."""

    def __init__(self, own: Member) -> None:
        self._members: dict[str, Member] = {own.uid: own}
        self._channels: dict[str, list[Channel]] = {}

    def know(self, plan: Plan) -> None:
        """These members can be reached from now on."""
        self._members |= {member.uid: member for member in plan.members}

    def member(self, uid: str) -> Member | None:
        """The worker with this UID, if any plan has named it."""
        return self._members.get(uid)

    def name(self, uid: str) -> str:
        """The name of a worker; its UID if no plan has named it."""
        member = self._members.get(uid)
        return uid if member is None else member.name

    def opened(self, channel: Channel) -> None:
        """A peer is connected by this channel, perhaps beside others that end soon."""
        self._channels.setdefault(channel.peer.uid, []).append(channel)

    def ended(self, channel: Channel) -> bool:
        """A channel that was open has ended. Returns whether it was the last one with its peer."""
        uid = channel.peer.uid
        left = [each for each in self._channels.get(uid, []) if each is not channel]
        if left:
            self._channels[uid] = left
            return False
        return self._channels.pop(uid, None) is not None

    def channel(self, uid: str) -> Channel | None:
        """The newest open channel with this peer, if there is one."""
        return next((each for each in reversed(self._channels.get(uid, [])) if each.is_open), None)

    def open_channels(self) -> Iterator[tuple[str, Channel]]:
        """The newest open channel of each peer that has one."""
        for uid in self._channels:
            channel = self.channel(uid)
            if channel is not None:
                yield uid, channel
