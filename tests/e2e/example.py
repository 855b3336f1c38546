"""examples/digits-hetero.yaml as the tests run it: its three CPU limits, under the *restricted* standard."""

from __future__ import annotations

import yaml

from e2e.helm import REPOSITORY
from e2e.manifests import (
    CLAIM,
    IMAGE,
    MOUNTED,
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    SERIES,
    Document,
    digits,
    merged,
)

EXAMPLE = REPOSITORY / "examples" / "digits-hetero.yaml"


def unequal_digits(width: int, **spec: Document) -> Document:
    """The example with a model of another width; `spec` adds to its sections."""
    manifest: Document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    for each in manifest["spec"]["workerGroups"]:
        pod = each["template"]["spec"]
        pod["securityContext"] = RESTRICTED_POD
        extra = {"image": IMAGE, "command": digits(width), "env": [SERIES], "securityContext": RESTRICTED_CONTAINER}
        pod["containers"] = [pod["containers"][0] | extra]
    checkpoint = {"path": MOUNTED, "persistentVolumeClaim": CLAIM}
    # On a busy machine a worker may become slow by fault; nobody is to be replaced for it.
    return merged(manifest, {"spec": {"checkpoint": checkpoint, "stragglers": {"action": "Report"}, **spec}})
