"""Check from inside the cluster that the resource is served and the operator answers; exit code 1 names what does not.

`helm test` runs it with the operator's image. The pod's account needs no rights: every account may ask what is served.
"""

import json
import ssl
import sys
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RESOURCES = "https://kubernetes.default.svc/apis/heterotrain.dev/v1alpha1"
TIMEOUT_SECONDS = 10.0


def served_resources() -> set[str]:
    """Names of the resources in the operator's API group, as the API server lists them."""
    token = (ACCOUNT / "token").read_text(encoding="utf-8")
    request = urllib.request.Request(RESOURCES, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
        return {resource["name"] for resource in json.load(answer)["resources"]}


def main(healthz: str) -> str | None:
    """What is wrong; None if nothing is."""
    try:
        if "heterotrainingjobs" not in served_resources():
            return f"{RESOURCES} lists no heterotrainingjobs"
    except OSError as error:
        return f"{RESOURCES}: {error}"
    try:
        with urllib.request.urlopen(healthz, timeout=TIMEOUT_SECONDS):
            return None
    except OSError as error:
        return f"{healthz}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
