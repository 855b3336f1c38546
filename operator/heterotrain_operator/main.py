"""The operator's process: `python -m heterotrain_operator.main`, in a pod or beside a kubeconfig."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Sequence
from dataclasses import replace

import kopf

from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.reading_errors import AccessError
from heterotrain_operator.controller import handlers
from heterotrain_operator.controller.options import Options
from heterotrain_operator.controller.runtime import Runtime
from heterotrain_operator.controller.watches import NothingToWatchError, watchable
from heterotrain_operator.garbage import seldom_collected

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main() -> int:
    """Run until a signal ends it. Returns the exit code."""
    try:
        options = Options.from_environment()
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(level=options.log_level, format=FORMAT)
    for chatty in ("kopf", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(options.log_level, logging.WARNING))
    _open_as_many_as_allowed()
    assert handlers.start is not None  # imported for what it registers
    try:
        watched = _watched(options.watched)
    except (AccessError, NothingToWatchError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with seldom_collected():
        kopf.run(
            standalone=True,
            clusterwide=not watched,
            namespaces=watched,
            memo=kopf.Memo(runtime=Runtime(replace(options, watched=watched))),
        )
    return 0


def _open_as_many_as_allowed() -> None:
    """Every worker that is read keeps a connection, and the usual limit is 1,024 files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _watched(namespaces: Sequence[str]) -> tuple[str, ...]:
    """Those that can be watched; none was named for all."""
    if not namespaces:
        return ()
    with connect(Access()).api as client:
        return watchable(Gateway(client, fence=lambda: None, wrote=lambda verb, kind: None), namespaces)


if __name__ == "__main__":
    sys.exit(main())
