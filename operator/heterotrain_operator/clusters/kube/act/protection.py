"""A job's secret and NetworkPolicy, which must be there before its pods."""

from __future__ import annotations

import secrets

from heterotrain import contract
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.api_server.gateway import ConflictError, Gateway
from heterotrain_operator.clusters.kube.objects.owned import NameTakenError, check_owner
from heterotrain_operator.clusters.kube.objects.protection import Document, Peers, build_policy, build_secret


class Protection:
    """Makes sure that a job has its Secret and its NetworkPolicy. For use by many threads."""

    def __init__(self, gateway: Gateway, metrics_from: Peers | None) -> None:
        """`metrics_from` are NetworkPolicyPeers that may read workers' metrics; None: no policies are made."""
        self._gateway = gateway
        self._metrics_from = metrics_from

    def provide(self, job: HeteroTrainingJob, uid: str) -> None:
        """Before the job's pods are created, which need the secret; `uid` is the job's.

        Raises NameTakenError if the policy's name is taken, GatewayError if the API server refuses or fails.
        """
        self._provide_secret(job, uid)
        if self._metrics_from is not None:
            self._provide_policy(build_policy(job, uid, self._metrics_from), job, uid)

    def _provide_secret(self, job: HeteroTrainingJob, uid: str) -> None:
        # A Secret that is there is this job's, for its name has the UID in it; so no Secret has to be read.
        try:
            self._gateway.create(build_secret(job, uid, secrets.token_hex(contract.SECRET_BYTES)))
        except ConflictError as error:
            if not error.exists:  # a quota that others change at the same time answers with a conflict, too
                raise

    def _provide_policy(self, policy: Document, job: HeteroTrainingJob, uid: str) -> None:
        metadata = policy["metadata"]
        found = self._gateway.read("NetworkPolicy", metadata["namespace"], metadata["name"])
        try:
            if found is not None:
                check_owner(found, job.metadata.name, uid)
        except NameTakenError as error:
            if not error.earlier:  # the policy of an earlier job is the same, and may be taken over
                raise
        self._gateway.apply(policy)
