"""A torch store whose values count only if a worker that knows the job's secret wrote them.

Whoever reaches the leader's port can speak to its TCPStore, which does not authenticate its clients. So each key is
replaced by its HMAC, and each value carries an HMAC over itself and its key. A value that was written without the
secret, or moved from another key, is an error instead of an address to connect to. Values are no secrets: they are
addresses and counters.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

SECRET_LENGTH = 16
"""The fewest characters of a secret."""

_MAC = hashlib.sha256
_MAC_BYTES = _MAC().digest_size


class SealError(RuntimeError):
    """A value in the store was not written by a worker that knows the job's secret."""


class SealedStore(dist.Store):
    """The methods of a store that meeting and making groups need, over a store that anybody may reach."""

    def __init__(self, store: dist.Store, secret: str) -> None:
        """Raises ValueError if the secret is too short to be one."""
        super().__init__()
        if len(secret) < SECRET_LENGTH:
            raise ValueError(f"a secret of {len(secret)} characters is none; it takes {SECRET_LENGTH}")
        self._store = store
        derive = hmac.new(secret.encode(), digestmod=_MAC)
        self._key_secret, self._value_secret = (_derived(derive, purpose) for purpose in (b"key", b"value"))

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value, which may be bytes."""
        name = self._name(key)
        self._store.set(name, self._sealed(name, value))  # type: ignore[arg-type]  # bytes, though not in its types

    def get(self, key: str) -> bytes:
        """Wait for a value. Raises SealError if no worker of this job wrote it."""
        name = self._name(key)
        return self._opened(key, name, self._store.get(name))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Replace the value if it is the expected one; an empty expectation means that there is none yet.

        Raises SealError if no worker of this job wrote what is there.
        """
        name = self._name(key)
        expected = self._sealed(name, expected_value) if expected_value else b""
        found = self._store.compare_set(name, expected, self._sealed(name, desired_value))  # type: ignore[arg-type]
        return self._opened(key, name, found) if found else b""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there; their values are checked when they are read."""
        return self._store.check([self._name(key) for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        names = [self._name(key) for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def plain(self, name: str) -> dist.Store:
        """A part of the store below whose values are not sealed, so that anybody can replace them. It is for NCCL,
        whose threads read values at any time, also while the interpreter ends and cannot run Python any more."""
        return dist.PrefixStore(self._name(name), self._store)

    # --- inside ---------------------------------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return hmac.new(self._key_secret, key.encode(), _MAC).hexdigest()

    def _mac(self, name: str, value: bytes) -> bytes:
        return hmac.new(self._value_secret, name.encode() + value, _MAC).digest()

    def _sealed(self, name: str, value: str | bytes) -> bytes:
        plain = value.encode() if isinstance(value, str) else bytes(value)
        return self._mac(name, plain) + plain

    def _opened(self, key: str, name: str, sealed: bytes) -> bytes:
        mac, plain = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(name, plain)):
            raise SealError(f"{key} in the leader's store was not written by a worker of this job")
        return plain


def _derived(secret: hmac.HMAC, purpose: bytes) -> bytes:
    own = secret.copy()
    own.update(purpose)
    return own.digest()
