"""Render the CustomResourceDefinition as a template of the chart `heterotrain-crds`: helm then installs the same one.

It is rendered as text: helm would turn whole numbers into floating-point ones if it read and wrote the data.
"""

from __future__ import annotations

import sys
from pathlib import Path

from heterotrain_operator.api.generate import crd, write_or_check

PATH = Path("helm/heterotrain/charts/heterotrain-crds/templates/heterotrainingjobs.yaml")
"""Path in the repository."""

_METADATA = "\nmetadata:\n"
_ANNOTATIONS = """\
{{- if .Values.keep }}
  annotations:
    helm.sh/resource-policy: keep
{{- end }}
"""


def render() -> str:
    """The template's text; the same for the same models."""
    text = crd.render()
    assert "{{" not in text, "the schema must not hold what helm would take for an action"
    head, metadata, rest = text.partition(_METADATA)
    assert metadata, "the definition has metadata at its top level"
    return head + metadata + _ANNOTATIONS + rest


if __name__ == "__main__":
    sys.exit(write_or_check(render, PATH, "Render the chart's template of the CustomResourceDefinition."))
