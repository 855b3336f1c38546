"""The operator's process: `python -m heterotrain_operator.main`, in a pod or beside a kubeconfig."""

from __future__ import annotations

import logging
import sys

import kopf

from heterotrain_operator import handlers
from heterotrain_operator.options import Options
from heterotrain_operator.runtime import Runtime

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
    assert handlers.start is not None  # imported for what it registers
    kopf.run(
        standalone=True,
        clusterwide=not options.watched,
        namespaces=options.watched,
        liveness_endpoint=f"http://0.0.0.0:{options.health_port}/healthz",
        memo=kopf.Memo(runtime=Runtime(options)),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
