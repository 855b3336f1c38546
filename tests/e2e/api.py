"""Read the cluster as plain documents, cheaply: tests look often, and a kubectl process per look costs the machine
more than the job that is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from kubernetes import client, config
from urllib3.exceptions import HTTPError

Document = dict[str, Any]

JOBS = "/apis/heterotrain.dev/v1alpha1"
CORE = "/api/v1"

REQUEST_SECONDS = 15.0
WATCH_SECONDS = 30


class ApiError(Exception):
    """The API server refused or did not answer; `status` is its HTTP status, None if there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """GET requests to the API server that KUBECONFIG names."""

    def __init__(self) -> None:
        self._client: client.ApiClient = config.new_client_from_config()

    @property
    def server(self) -> str:
        """Its address."""
        return str(self._client.configuration.host)

    def text(self, path: str, **query: object) -> str:
        """The body of an answer. Raises ApiError."""
        response = self._request(path, query, REQUEST_SECONDS)
        text: str = response.read().decode()
        return text

    def get(self, path: str, **query: object) -> Document:
        """An object or a list. Raises ApiError."""
        document: Document = json.loads(self.text(path, **query))
        return document

    def find(self, path: str) -> Document | None:
        """An object; None if there is none. Raises ApiError for any other reason."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: object) -> list[Document]:
        """The objects of a list. Raises ApiError."""
        items: list[Document] = self.get(path, **query)["items"]
        return items

    def watch(self, path: str, version: str, **query: object) -> Iterator[Document]:
        """Events of objects after a resource version, for WATCH_SECONDS. Raises ApiError if the connection breaks."""
        bounds = {"watch": 1, "timeoutSeconds": WATCH_SECONDS, "resourceVersion": version}
        response = self._request(path, query | bounds, 2.0 * WATCH_SECONDS)
        try:
            for line in response:
                event: Document = json.loads(line)
                yield event
        except (HTTPError, ValueError) as error:
            raise ApiError(f"watching {path}: {error}") from error

    def _request(self, path: str, query: dict[str, object], seconds: float) -> Any:
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = dict(self._client.default_headers)
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
        try:
            response = self._client.rest_client.pool_manager.request(
                "GET", url, headers=headers, timeout=seconds, preload_content=False, retries=False
            )
            if response.status >= 400:
                raise ApiError(f"GET {path}: {response.read().decode()[:500]}", response.status)
        except HTTPError as error:
            raise ApiError(f"GET {path}: {error}") from error
        return response
