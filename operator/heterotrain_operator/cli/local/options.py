"""What the user asks of `heterotrain run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.api import HeteroTrainingJob, load_manifest, parse_manifest
from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.script_job import ScriptJob, document_of, manifest_text


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks of a run of a manifest, or of `script` alone."""

    manifest: Path
    compare: tuple[str, ...] = ()
    rounds: int = 1
    as_json: bool = False
    out: Path | None = None
    resume: bool = False
    fresh: bool = False
    policy: str | None = None
    ceiling: bool = False
    schedule: Path | None = None
    logs: str = script_output.LEADER
    script: ScriptJob | None = None

    @property
    def is_compared(self) -> bool:
        """Whether several trials are compared; each of them starts from the beginning."""
        return bool(self.compare) or self.rounds > 1

    def load(self) -> HeteroTrainingJob:
        """The job. Raises ManifestError with all that is wrong with it."""
        if self.script is not None:
            return parse_manifest(document_of(self.script))
        return load_manifest(self.manifest)

    def manifest_text(self) -> str:
        """The manifest, for the report."""
        if self.script is not None:
            return manifest_text(document_of(self.script))
        return self.manifest.read_text(encoding="utf-8")

    def words_to_resume(self) -> list[str]:
        """The command that resumes the run after it was interrupted."""
        words = ["heterotrain", "run", str(self.manifest), "--resume"]
        if self.policy:
            words += ["--policy", self.policy]
        if self.schedule:
            words += ["--schedule", str(self.schedule)]
        return words
