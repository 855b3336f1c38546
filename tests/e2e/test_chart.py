"""The charts as helm renders them: valid objects for every way to install, least rights, no value misunderstood."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import latest_version

from e2e.helm import CHART, CRDS_CHART, NAMESPACE, RELEASE, REPOSITORY, Document, helm, of_kind, render, rights
from heterotrain_operator.api.generate import crd

pytestmark = pytest.mark.e2e

FOREIGN = "monitoring.coreos.com/v1"
"""API of Prometheus Operator's resources, which Kubernetes' own schemas do not know."""

MONITORING = [
    f"monitoring.{part}.enabled=true" for part in ("podMonitor", "serviceMonitor", "prometheusRule", "dashboard")
]
INSTALLATIONS = {
    "as it is": [],
    "namespaced": ['watchNamespaces=["a","b"]', "crds.enabled=false"],
    "namespaced without nodes": ['watchNamespaces=["a"]', "rbac.nodes=false"],
    "three replicas": ["replicas=3", 'priorityClassName="system-cluster-critical"'],
    "placed": [
        'nodeSelector={"pool":"system"}',
        'tolerations=[{"key":"pool","operator":"Exists"}]',
        'affinity={"nodeAffinity":{}}',
        'podAnnotations={"a":"b"}',
        'podLabels={"c":"d"}',
        'imagePullSecrets=[{"name":"registry"}]',
        f'image.digest="sha256:{"0" * 64}"',
    ],
    "own account": ["serviceAccount.create=false", 'serviceAccount.name="mine"', "rbac.create=false"],
    "prometheus": ['rbac.prometheusSecrets=["prometheus-token"]', *MONITORING],
    "fenced": [
        'networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]',
        'networkPolicy.egress.extra=[{"to":[{"ipBlock":{"cidr":"192.0.2.7/32"}}],"ports":[{"port":3128}]}]',
    ],
    "fenced without egress": ["networkPolicy.egress.enabled=false", "networkPolicy.workers=false"],
    "unfenced": ["networkPolicy.enabled=false"],
    "spread": [
        "replicas=3",
        'antiAffinity="hard"',
        'topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]',
    ],
    "labelled": [
        'commonLabels={"team":"ml","app.kubernetes.io/name":"other"}',
        'podLabels={"app.kubernetes.io/instance":"other"}',
        'extraEnv=[{"name":"HTTPS_PROXY","value":"http://proxy:3128"}]',
    ],
    "guarded": [
        "admissionPolicy.enabled=true",
        'admissionPolicy.namespaceSelector={"matchLabels":{"team":"guest"}}',
    ],
    "any user": ["podSecurityContext.runAsUser=null", "podSecurityContext.runAsGroup=null"],
}


@pytest.mark.parametrize("chart", [CHART, CRDS_CHART], ids=lambda chart: chart.name)
def test_helm_finds_nothing_to_complain_about(chart: Path) -> None:
    run = helm("lint", "--strict", chart)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS.keys())
def test_every_object_is_valid_for_kubernetes(values: list[str]) -> None:
    for document in render(CHART, *values):
        if document["apiVersion"] != FOREIGN:
            kubernetes_validate.validate(document, latest_version(), strict=True)


@pytest.mark.parametrize("values", INSTALLATIONS.values(), ids=INSTALLATIONS.keys())
def test_no_two_objects_are_one(values: list[str]) -> None:
    documents = render(CHART, *values)
    names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(set(names)) == len(names)


def test_resource_is_what_the_models_say() -> None:
    for chart in (CHART, CRDS_CHART):
        (definition,) = of_kind(render(chart), "CustomResourceDefinition")
        assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert definition == crd.custom_resource_definition()


def test_resource_goes_with_the_release_if_asked() -> None:
    (definition,) = of_kind(render(CHART, "crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in definition["metadata"]


def test_second_installation_brings_nothing_that_belongs_to_the_cluster() -> None:
    values = ['watchNamespaces=["a"]', "rbac.nodes=false", "crds.enabled=false"]
    assert all("namespace" in document["metadata"] for document in render(CHART, *values))


def test_pods_pass_the_restricted_standard() -> None:
    documents = render(CHART)
    (deployment,) = of_kind(documents, "Deployment")
    for pod in (deployment["spec"]["template"]["spec"], of_kind(documents, "Pod")[0]["spec"]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(volume) <= {"name", "emptyDir"} for volume in pod.get("volumes", ()))
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    "podSelector": {
        "matchLabels": {
            "app.kubernetes.io/component": "operator",
            "app.kubernetes.io/instance": RELEASE,
            "app.kubernetes.io/name": "heterotrain",
        }
    },
}
"""The operator as a NetworkPolicyPeer."""


def test_operator_learns_where_it_is_and_what_to_watch() -> None:
    (deployment,) = of_kind(render(CHART, 'watchNamespaces=["a","b"]', 'logLevel="debug"'), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
    assert environment == {
        "HETEROTRAIN_NAMESPACES": "a,b",
        "HETEROTRAIN_LEASE": RELEASE,
        "HETEROTRAIN_LOG_LEVEL": "debug",
        "HETEROTRAIN_PROMETHEUS_ALLOW": "in-cluster",
        "HETEROTRAIN_METRICS_FROM": json.dumps([OPERATOR, {"namespaceSelector": {}}], separators=(",", ":")),
        "POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "POD_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
    }


def test_operator_asks_for_the_disk_that_its_logs_take_and_gets_no_more() -> None:
    (deployment,) = of_kind(render(CHART), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {kind: "ephemeral-storage" in container["resources"][kind] for kind in ("requests", "limits")} == {
        "requests": True,
        "limits": True,
    }


# --- rights ------------------------------------------------------------------------------------------------------


def documented(section: str) -> set[tuple[str, ...]]:
    """The rights in one section of docs/rbac.md, one per verb; names are spelled out as for this release."""
    text = (REPOSITORY / "docs" / "rbac.md").read_text(encoding="utf-8")
    part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = set()
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or cells[0] == "API group" or set(cells[0]) == {"-"}:
            continue
        group, resource, names, verbs, reason = cells
        assert reason, line
        names = {"": "", "those listed": "token,ca", "the release's": RELEASE}[names]
        found |= {(group, resource, names, verb) for verb in verbs.split(", ")}
    return found


SECRETS = 'rbac.prometheusSecrets=["token","ca"]'


def test_rights_everywhere_are_those_in_the_docs() -> None:
    roles = of_kind(render(CHART, "crds.userRoles=false", SECRETS), "ClusterRole")
    assert set(rights(roles)) == documented("Jobs and their parts") | documented("Nodes")


def test_rights_in_named_namespaces_are_those_in_the_docs() -> None:
    documents = render(CHART, "crds.userRoles=false", 'watchNamespaces=["a","b"]', SECRETS)
    roles = {role["metadata"]["namespace"]: role for role in of_kind(documents, "Role")}
    assert set(roles) == {"a", "b", NAMESPACE}
    assert set(rights([roles["a"]])) == set(rights([roles["b"]])) == documented("Jobs and their parts")
    assert set(rights([roles[NAMESPACE]])) == documented("The Lease")
    assert set(rights(of_kind(documents, "ClusterRole"))) == documented("Nodes")


@pytest.mark.parametrize("values", [[], ['watchNamespaces=["a"]']], ids=["cluster", "namespaced"])
def test_no_secret_can_be_read_unless_named(values: list[str]) -> None:
    documents = render(CHART, *values)
    roles = of_kind(documents, "ClusterRole") + of_kind(documents, "Role")
    assert [right for right in rights(roles) if right[1] == "secrets"] == [("", "secrets", "", "create")]


@pytest.mark.parametrize("value", ["networkPolicy.enabled=false", "networkPolicy.workers=false"])
def test_operator_that_makes_no_network_policies_has_no_right_to(value: str) -> None:
    documents = render(CHART, value)
    assert "networkpolicies" not in {right[1] for right in rights(of_kind(documents, "ClusterRole"))}
    (deployment,) = of_kind(documents, "Deployment")
    assert "HETEROTRAIN_METRICS_FROM" not in json.dumps(deployment)


def test_every_role_is_bound_to_the_operator_alone() -> None:
    documents = render(CHART, 'watchNamespaces=["a"]', "crds.userRoles=false")
    bindings = of_kind(documents, "RoleBinding") + of_kind(documents, "ClusterRoleBinding")
    bound = {(b["roleRef"]["kind"], b["roleRef"]["name"], b["metadata"].get("namespace")) for b in bindings}
    roles = of_kind(documents, "Role") + of_kind(documents, "ClusterRole")
    assert bound == {(role["kind"], role["metadata"]["name"], role["metadata"].get("namespace")) for role in roles}
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}]


def documented_for_users() -> set[tuple[str, str, str, str]]:
    """What docs/rbac.md says of users: roles, API group, resource, verb."""
    text = (REPOSITORY / "docs" / "rbac.md").read_text(encoding="utf-8").split("\n## Users\n")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "heterotrain.dev" in line]
    return {(roles, group, resource, verb) for roles, group, resource, verbs in rows for verb in verbs.split(", ")}


def test_users_rights_are_those_in_the_docs() -> None:
    names = {"heterotrain-view": "view", "heterotrain-edit": "edit, admin"}
    found = set()
    for role in of_kind(render(CRDS_CHART), "ClusterRole"):
        audience = names[role["metadata"]["name"]]
        for label in audience.split(", "):
            assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{label}"] == "true"
        found |= {(audience, group, resource, verb) for group, resource, _, verb in rights([role])}
    assert found == documented_for_users()


# --- what is optional --------------------------------------------------------------------------------------------


def test_disruption_budget_is_for_several_replicas_only() -> None:
    assert not of_kind(render(CHART), "PodDisruptionBudget")
    (budget,) = of_kind(render(CHART, "replicas=2"), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


ROLES = {"matchExpressions": [{"key": "heterotrain.dev/job-role", "operator": "In", "values": ["worker", "server"]}]}
"""Selects the pods of all jobs."""


def test_monitors_choose_what_the_operator_labels() -> None:
    documents = render(CHART, *MONITORING, 'monitoring.podMonitor.labels={"release":"prometheus"}')
    (pods,) = of_kind(documents, "PodMonitor")
    assert pods["spec"]["selector"] == ROLES
    assert pods["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
    assert pods["metadata"]["labels"]["release"] == "prometheus"
    (services,) = of_kind(documents, "ServiceMonitor")
    (service,) = of_kind(documents, "Service")
    assert services["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert services["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


def test_dashboard_and_rules_are_the_files_of_the_chart() -> None:
    documents = render(CHART, *MONITORING)
    dashboards = [d for d in of_kind(documents, "ConfigMap") if "grafana_dashboard" in d["metadata"]["labels"]]
    (dashboard,) = dashboards
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    file = CHART / "files" / "batch-convergence.json"
    assert json.loads(dashboard["data"][file.name]) == json.loads(file.read_text(encoding="utf-8"))
    (rules,) = of_kind(documents, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text(encoding="utf-8"))


def test_policy_over_jobs_is_for_the_namespaces_that_are_named() -> None:
    assert not of_kind(render(CHART), "ValidatingAdmissionPolicy")
    documents = render(CHART, *INSTALLATIONS["guarded"])
    (policy,) = of_kind(documents, "ValidatingAdmissionPolicy")
    rules = yaml.safe_load((CHART / "files" / "job-policy.yaml").read_text(encoding="utf-8"))
    assert rules.items() <= policy["spec"].items()
    (binding,) = of_kind(documents, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"team": "guest"}}},
    }


def policy_of(component: str, *values: str) -> Document:
    """The NetworkPolicy of the operator, or of its test."""
    (found,) = [
        policy
        for policy in of_kind(render(CHART, *values), "NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
    ]
    spec: Document = found["spec"]
    return spec


def test_operator_is_reached_by_probes_and_readers_of_metrics() -> None:
    probes, scrapes = policy_of("operator", *INSTALLATIONS["fenced"])["ingress"]
    assert "from" not in probes
    assert [port["port"] for port in probes["ports"]] == ["health"]
    assert [port["port"] for port in scrapes["ports"]] == ["metrics"]
    assert scrapes["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_operator_reaches_names_the_api_server_workers_and_what_is_named() -> None:
    names, api_server, workers, prometheus, extra = policy_of("operator", *INSTALLATIONS["fenced"])["egress"]
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert [port["port"] for port in api_server["ports"]] == [443, 6443, 8443]
    (peer,) = workers["to"]
    assert peer["podSelector"] == ROLES
    assert prometheus == {"to": [{"namespaceSelector": {}}]}
    assert extra["ports"] == [{"port": 3128}]


def test_fence_can_be_left_out_in_part_or_whole() -> None:
    assert policy_of("operator", *INSTALLATIONS["fenced without egress"])["policyTypes"] == ["Ingress"]
    assert not of_kind(render(CHART, *INSTALLATIONS["unfenced"]), "NetworkPolicy")


def pod_of(*values: str) -> Document:
    """The operator's pod."""
    (deployment,) = of_kind(render(CHART, *values), "Deployment")
    pod: Document = deployment["spec"]["template"]
    return pod


def test_replicas_keep_apart() -> None:
    assert "affinity" not in pod_of()["spec"]
    labels = OPERATOR["podSelector"]
    (soft,) = pod_of("replicas=2")["spec"]["affinity"]["podAntiAffinity"].values()
    assert soft[0]["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}
    spread = pod_of(*INSTALLATIONS["spread"])["spec"]
    assert list(spread["affinity"]["podAntiAffinity"]) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    (constraint,) = spread["topologySpreadConstraints"]
    assert constraint["labelSelector"] == labels
    assert "affinity" not in pod_of("replicas=2", 'antiAffinity=""')["spec"]
    own = 'affinity={"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[]}}'
    assert pod_of("replicas=2", own)["spec"]["affinity"] == json.loads(own.partition("=")[2])


def test_labels_of_all_objects_never_replace_what_finds_them() -> None:
    documents = [d for d in render(CHART, *INSTALLATIONS["labelled"]) if d["kind"] != "CustomResourceDefinition"]
    ours = [d for d in documents if not d["metadata"]["name"].startswith(("heterotrain-view", "heterotrain-edit"))]
    assert {d["metadata"]["labels"]["team"] for d in ours} == {"ml"}
    assert {d["metadata"]["labels"]["app.kubernetes.io/name"] for d in ours} == {"heterotrain"}
    (deployment,) = of_kind(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "ml"
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in environment


def test_user_can_be_left_to_the_cluster() -> None:
    documents = render(CHART, *INSTALLATIONS["any user"])
    for pod in (pod_of(*INSTALLATIONS["any user"])["spec"], of_kind(documents, "Pod")[0]["spec"]):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_readiness_is_another_question_than_liveness() -> None:
    (container,) = pod_of()["spec"]["containers"]
    asked = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_metrics_of_a_replica_that_is_not_ready_are_read_too() -> None:
    (service,) = of_kind(render(CHART), "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_image_can_be_named_by_its_digest() -> None:
    (container,) = pod_of(*INSTALLATIONS["placed"])["spec"]["containers"]
    assert container["image"] == f"heterotrain-operator@sha256:{'0' * 64}"


# --- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("replicas=-1", "replicas"),
        ('replicas="two"', "replicas"),
        ('logLevel="loud"', "logLevel"),
        ('watchNamespaces="a"', "watchNamespaces"),
        ('watchNamespaces=["A_b"]', "watchNamespaces"),
        ('watchNamespaces=["a","a"]', "watchNamespaces"),
        ('image.digest="latest"', "digest"),
        ('image.pullPolicy="Sometimes"', "pullPolicy"),
        ('image.tga="1"', "tga"),
        ('admissionPolicy.namespaceSelector={"labels":{}}', "labels"),
        ("rbac.prometheusCredentials=true", "prometheusCredentials"),
        ('monitoring.podMonitor.interval="often"', "interval"),
        ('networkPolicy.metricsFrom=[{"namespace":"monitoring"}]', "metricsFrom"),
        ('antiAffinity="firm"', "antiAffinity"),
        ('topologySpreadConstraints=[{"maxSkew":1}]', "topologySpreadConstraints"),
        ('extraEnv=[{"value":"b"}]', "extraEnv"),
        ('prometheusAllow=["http://prometheus"]', "prometheusAllow"),
        ('networkPolicy.egress.apiServerPorts=["https"]', "apiServerPorts"),
        ("crds.keep=1", "keep"),
        ("crds.kept=true", "kept"),
        ("replica=2", "replica"),
    ],
)
def test_bad_value_is_refused_by_its_name(value: str, named: str) -> None:
    run = helm("template", RELEASE, CHART, "--set-json", value)
    assert run.returncode != 0
    assert named in run.stderr
