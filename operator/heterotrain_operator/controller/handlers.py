"""kopf's part: what is watched, what is kept of it, and what wakes a job's loop. A table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import kopf

from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import GatewayError
from heterotrain_operator.clusters.kube.objects.names import GROUP, LABEL_JOB, PLURAL, VERSION
from heterotrain_operator.clusters.kube.observe.pod_facts import pod_facts
from heterotrain_operator.clusters.kube.observe.watched import Key
from heterotrain_operator.controller.runtime import Runtime
from heterotrain_operator.controller.short_documents import PAGE_OBJECTS, Pages, Response
from heterotrain_operator.controller.watches import EndlessPauses

OURS = {LABEL_JOB: kopf.PRESENT}


RETRY_SECONDS = 5.0
"""Between attempts to start while the API server does not answer, or does not serve the resource yet."""

# Longer pauses than the last would leave the operator blind that long after the API server is back.
BACKOFF_SECONDS = (1.0, 2.0, 3.0, 5.0)

IDLE_SECONDS = 0.5
"""So long kopf keeps an object in memory once it was seen."""


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Connect, and begin to ask for the Lease."""
    configure(settings)
    runtime: Runtime = memo.runtime
    try:
        await runtime.start()
    except GatewayError as error:
        raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error


@kopf.on.login()
async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
    """The way of all the rest to the cluster, found again when its credentials are not accepted any more; its answers
    show how the watches fare."""
    with connect(Access()).api as client:
        found = client.configuration
    scheme, _space, token = (found.get_api_key_with_prefix("BearerToken") or "").partition(" ")
    info = kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
    )
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        trace_configs=[memo.runtime.watches.trace()],
        middlewares=[Pages()],
        response_class=Response,
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """End the rounds under way; the jobs train on."""
    await memo.runtime.stop()


@kopf.on.event(GROUP, VERSION, PLURAL)
async def job_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A job came, changed or went."""
    memo.runtime.controller.saw(event["object"], deleted=event["type"] == "DELETED")


@kopf.on.event("pods", labels=OURS)
async def pod_changed(
    event: kopf.RawEvent, labels: Mapping[str, str], namespace: str | None, memo: kopf.Memo, **_: Any
) -> None:
    """A worker's pod came, changed or went; one that went is in no index, and nobody else can say why."""
    body, key, runtime = event["object"], _job(namespace, labels), memo.runtime
    departed = None
    if event["type"] == "DELETED":
        runtime.pods.remove(body["metadata"]["uid"])
        departed = pod_facts(body, gone=True)
    else:
        runtime.pods.put(key, body["metadata"]["uid"], pod_facts(body))
    runtime.controller.woke(key, departed)


@kopf.on.event("configmaps", labels=OURS)
async def plan_changed(
    event: kopf.RawEvent, labels: Mapping[str, str], namespace: str | None, memo: kopf.Memo, **_: Any
) -> None:
    """A plan was written, by us or by somebody else, or deleted. Its version is enough to see that."""
    metadata, key, runtime = event["object"]["metadata"], _job(namespace, labels), memo.runtime
    if event["type"] == "DELETED":
        runtime.plans.remove(metadata["uid"])
    else:
        runtime.plans.put(key, metadata["uid"], metadata["resourceVersion"])
    runtime.controller.woke(key)


def _job(namespace: str | None, labels: Mapping[str, str]) -> Key:
    """The job that a pod or a plan belongs to; both kinds live in namespaces."""
    assert namespace is not None
    return namespace, labels[LABEL_JOB]


def configure(settings: kopf.OperatorSettings) -> None:
    """Timeouts that detect a dead connection, no rights but those to jobs, and nothing written by kopf itself."""
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.chunk_size = PAGE_OBJECTS
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = EndlessPauses(*BACKOFF_SECONDS)
    settings.scanning.disabled = True  # else namespaces and resource definitions are watched
    settings.watching.label_selectors["pods"] = LABEL_JOB
    settings.watching.label_selectors["configmaps"] = LABEL_JOB
    settings.posting.enabled = False
    settings.persistence.finalizer = f"{GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP, v1=False)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP, v1=False)
