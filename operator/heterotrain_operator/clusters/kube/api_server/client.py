"""A client of the API server on which no call waits for ever: what has no timeout of its own gets one."""

from __future__ import annotations

from typing import Any

from kubernetes.client import ApiClient

REQUEST_SECONDS = 5.0
"""Time limit of one request; the API server answers within milliseconds or is in trouble.

A holder of the Lease stops acting this many seconds before another may take the Lease, so that whatever it sent has
been answered by then.
"""


class PatientClient(ApiClient):
    """Bounds every request that its caller did not bound."""

    def call_api(self, *arguments: Any, **more: Any) -> Any:
        """As the library's, with a timeout."""
        more["_request_timeout"] = more.get("_request_timeout") or REQUEST_SECONDS
        return super().call_api(*arguments, **more)

    def close(self) -> None:
        """Close what is connected."""
        self.rest_client.close()
