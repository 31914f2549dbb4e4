# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test, on a real API server, annotations and objects that another client has forged.

A task must not change objects of other teams, send unexpected requests, create too many pods, print
control characters, or block other tasks. tests/unit/forged.py defines the forged values.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import resource
import time
import typing as t
import urllib.parse

import pytest
from forged import (
    EXPECTED_PATHS,
    FIELDS,
    IDLE,
    KEYS,
    LABELS,
    PAYMENTS,
    RECIPES,
    UID,
    output_problems,
)
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, is_ready, manifest, role_rules
from writes import Killed, any_write, intercept_writes, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import provenance
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    parse_request,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import parse
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import (
    Process,
    start_time,
)

Json = dict[str, t.Any]

RC, RS, DEPLOYMENT = "ReplicationController", "ReplicaSet", "Deployment"
SIZE = 2
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
PARALLEL_TASKS = 3
MAX_SECONDS = 30
#: Limit of the address space in bytes.
MAX_MEMORY = 4 * 1024**3
DEFAULTS = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
DEADLINES = {"progress_deadline": 8, "failure_grace": 3}


@dataclasses.dataclass(frozen=True)
class Phase:
    title: str
    kind: str = RC
    task: Json | None = None
    #: The task is killed before the nth write that matches a filter: the filter, and n.
    kill_at: tuple[t.Callable[[t.Any], bool], int] | None = None


UPDATE = {"image": "myimage:v2"}
MIGRATE = {"module": "migrate_to_deployment", "state": "migrated"}
PHASES = {phase.title: phase for phase in (
    Phase("idle"),
    Phase("updating", task=UPDATE, kill_at=(any_write, 5)),
    Phase("paused", task={**UPDATE, "pause_at": "1"}),
    Phase("handing over", task=UPDATE, kill_at=(is_reparenting, 2)),
    Phase("migrating", task=MIGRATE, kill_at=(is_reparenting, 2)),
    Phase("idle ReplicaSet", RS),
    Phase("updating ReplicaSet", RS, UPDATE, (any_write, 5)),
    Phase("idle Deployment", DEPLOYMENT),
    Phase("paused Deployment", DEPLOYMENT, {**UPDATE, "pause_at": "1"}),
    Phase("updating Deployment", DEPLOYMENT, UPDATE, (any_write, 2)),
)}
TASKS: dict[str, Json] = {
    "updated": UPDATE, "unchanged": {"image": "myimage:v1"},
    "rolled back": {"state": "rolled_back"},
    "to revision": {"state": "rolled_back", "to_revision": 1}, "restarted": {"state": "restarted"},
    "migrated": MIGRATE,
}


def task_titles(phase: Phase) -> list[str]:
    """Return the titles of the tasks in a phase. A killed migration can only be resumed."""
    if phase.title == "migrating":
        return ["migrated"]
    return [title for title in TASKS if phase.kind == RC or title != "migrated"]


class HarmfulRequest(BaseException):
    """A task tries to send a write that is a fault, or that follows one."""


class SharedNamespace:
    """A namespace with objects of other teams. It inspects the requests of tasks for faults."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        namespace.allow(role_rules("baton-migration"), "baton-migration")
        namespace.create("secrets",
                         {"metadata": {"name": "db"}, "stringData": {"password": "secret"}})
        for kind in (RC, RS, DEPLOYMENT):
            namespace.create_controller(kind, controller_manifest(PAYMENTS, kind, SIZE))
            namespace.create_controller(kind, controller_manifest(IDLE, kind, 0))
        namespace.call("POST", AUTOSCALERS.format(namespace.name),
                       {"metadata": {"name": PAYMENTS}, "spec": {
                           "minReplicas": 1, "maxReplicas": 3,
                           "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": PAYMENTS}}})
        eventually(lambda: len(namespace.pods()) == 3 * SIZE
                   and all(map(is_ready, namespace.pods())), "the pods of other teams")
        self._number = itertools.count(1)

    def collection_path(self, kind: str) -> str:
        return (self.namespace.path("replicationcontrollers") if kind == RC
                else self.namespace.apps_path(f"{kind.lower()}s"))

    def get(self, kind: str, name: str) -> Json | None:
        try:
            return self.namespace.call("GET", f"{self.collection_path(kind)}/{name}")
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def annotate(self, kind: str, name: str, annotations: t.Mapping[str, str]) -> bool:
        """Set annotations and labels of an object. Return whether the API server has accepted them.
        """
        labels = {key: value for key, value in annotations.items() if key in LABELS}
        body = {"metadata": {"annotations": {key: annotations[key]
                                             for key in annotations.keys() - labels},
                             "labels": labels}}
        try:
            self.namespace.call("PATCH", f"{self.collection_path(kind)}/{name}", body,
                                "application/merge-patch+json")
        except ApiException as error:
            if error.status in (400, 404, 413, 422):
                return False
            raise
        return True

    def digests_of_other_objects(self) -> Json:
        paths = [*map(self.collection_path, (RC, RS, DEPLOYMENT)), self.namespace.path("pods"),
                 self.namespace.path("secrets"),
                 AUTOSCALERS.format(self.namespace.name)]
        items = [(path, item) for path in paths
                 for item in self.namespace.call("GET", path)["items"]]
        return {(path, item["metadata"]["name"]): identity.digest({
            key: {field: content
                  for field, content in value.items()
                  if field not in ("resourceVersion", "managedFields")}
            for key, value in item.items() if key in ("metadata", "spec", "data")})
            for path, item in items if item["metadata"]["name"].startswith((PAYMENTS, IDLE, "db"))}

    def create_in_phase(self, phase: Phase, name: str = "") -> str:
        name = name or f"foo-{next(self._number)}x"
        kind = phase.kind
        self.namespace.create_controller(kind, controller_manifest(name, kind, SIZE))

        def is_available() -> bool:
            return (((self.get(kind, name) or {}).get("status") or {}).get("availableReplicas", 0)
                    == SIZE)

        eventually(is_available, f"pods of {name}")
        if phase.task:
            with contextlib.suppress(Killed):
                self.run({**phase.task, "name": name, "kind": kind}, kill_at=phase.kill_at)
        return name

    def with_real_names(
        self, annotations: t.Mapping[str, str], kind: str, name: str
    ) -> dict[str, str]:
        """Replace the placeholders of uids, and the name foo."""
        real_annotations = {}
        for key, value in annotations.items():
            for target in (PAYMENTS, IDLE, "foo"):
                if UID.format(target) in value:
                    item = self.get(kind, name if target == "foo" else target)
                    value = value.replace(UID.format(target),
                                          item["metadata"]["uid"] if item else "x")
            real_annotations[key] = name if value == "foo" else value.replace("foo:", f"{name}:")
        return real_annotations

    def run(self, params: Json, check: bool = False,
            kill_at: tuple[t.Callable[[t.Any], bool], int] | None = None,
            outputs: list[t.Any] | None = None, faults_found: list[str] | None = None) -> Json:
        """Run a task in this process.

        Append the progress lines to `outputs`, and faults of the requests to `faults_found`.
        """
        request = parse_request({"namespace": self.namespace.name, **DEADLINES, **params})
        flow = choose(request)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.namespace.kubeconfig}, {}),
                                    request.namespace, flow.watched_kinds)
        self.inspect_requests(
            gateway, request.name, faults_found if faults_found is not None else []
        )
        if kill_at:
            matches, number = kill_at
            count = itertools.count(1)

            def kill(step: t.Any, write: t.Callable[[], bool]) -> bool:
                if matches(step) and next(count) == number:
                    raise Killed
                return write()

            intercept_writes(gateway, kill)
        print_line = (outputs if outputs is not None else []).append
        try:
            return (driver.simulate(flow, request, gateway) if check
                    else driver.run(flow, request, gateway, driver.Clock(), print_line))
        finally:
            gateway.close()

    def inspect_requests(
        self, gateway: KubernetesGateway, name: str, faults_found: list[str]
    ) -> None:
        """Append each fault in requests to `faults_found`. After the first fault, refuse writes."""
        pool = gateway.http.connection.pool
        original, prefix = pool.urlopen, gateway.http.connection.server
        lease_names = [identity.shared_lease_name(name),
                       *(identity.lease_name(kind, name) for kind in Kind)]

        def inspect(method: str, url: str, body: t.Any = None, **options: t.Any) -> t.Any:
            parts = urllib.parse.urlsplit(url.removeprefix(prefix))
            if not EXPECTED_PATHS.fullmatch(parts.path.replace(f"/namespaces/{self.namespace.name}",
                                                               "/namespaces/NS", 1)):
                faults_found.append(f"{method} {url[:300]}")
            if method in ("PATCH", "PUT", "DELETE") and "dryRun" not in parts.query:
                object_name = parts.path.rpartition("/")[2]
                if not object_name.startswith((name, *lease_names)) and "/pods/" not in parts.path:
                    faults_found.append(f"{method} {parts.path}")
            for path, value in written_fields(method, body):
                if path == "/spec/replicas" and not 0 <= value <= SIZE:
                    faults_found.append(f"{method} {parts.path}: the size {value}")
                if path == "/spec/template" and "evil" in json.dumps(value):
                    faults_found.append(f"{method} {parts.path}: the template of another client")
                if path == "/spec/strategy" and value.get("type") != "RollingUpdate":
                    faults_found.append(f"{method} {parts.path}: {value}")
            if faults_found and method != "GET":
                raise HarmfulRequest(faults_found[-1])
            return original(method, url, body=body, **options)

        pool.urlopen = inspect

    def task_faults(self, params: Json, check: bool = False) -> list[str]:
        faults_found: list[str] = []
        outputs: list[t.Any] = []
        started_at = time.monotonic()
        try:
            outputs.append(self.run(params, check, outputs=outputs, faults_found=faults_found))
        except RolloutError as error:
            outputs.append(error.as_result())
        except HarmfulRequest:
            pass  # in the list already
        except Exception as error:
            faults_found.append(f"{type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - started_at > MAX_SECONDS:
            faults_found.append(f"took {time.monotonic() - started_at:.0f} s")
        return faults_found + [fault for message in outputs for fault in output_problems(message)]

    def info_faults(self, kind: str, name: str | None = None) -> list[str]:
        params = {"kubeconfig": self.namespace.kubeconfig, "namespace": self.namespace.name,
                  "kind": kind}
        try:
            result = task.info({**params, "name": name, "pods": True})
        except Exception as error:
            return [f"info: {type(error).__name__}: {str(error)[:200]}"]
        names = [rollout["name"] for rollout in result["rollouts"]]
        missing = [] if (name or PAYMENTS) in names else [f"{name or PAYMENTS} is missing"]
        return [f"info: {fault}" for fault in (*missing, *output_problems(result))]

    def payments_faults(self, kind: str) -> list[str]:
        faults_found: list[str] = []
        try:
            result = self.run(
                {**UPDATE, "name": PAYMENTS, "kind": kind}, check=True, faults_found=faults_found
            )
        except Exception as error:
            return [f"payments cannot be updated: {str(error)[:300]}"]
        return faults_found + ([] if result["changed"] else ["payments is not updated"])


def controller_manifest(name: str, kind: str, size: int) -> Json:
    item = manifest(size, name=name)
    labels = {"app": name, "kind": kind}
    item["metadata"]["labels"] = item["spec"]["selector"] = labels
    item["spec"]["template"]["metadata"]["labels"] = labels
    return item


def written_fields(method: str, body: t.Any) -> list[tuple[str, t.Any]]:
    document = json.loads(body) if body else None
    if isinstance(document, list):
        return [(operation["path"], operation.get("value"))
                for operation in document if operation["op"] in ("add", "replace")]
    spec = document.get("spec") if isinstance(document, dict) and method == "POST" else None
    return ([(f"/spec/{field}", value) for field, value in spec.items()] if isinstance(spec, dict)
            else [])


@pytest.fixture
def shared_namespace(namespace):
    """Provide the namespace, and limit the memory that a forged size can exhaust."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, before[1]))
    yield SharedNamespace(namespace)
    resource.setrlimit(resource.RLIMIT_AS, before)


def run_in_parallel(cases, work, workers=PARALLEL_TASKS):
    """Return the faults of work(*arguments) by title."""
    with concurrent.futures.ThreadPoolExecutor(workers) as executor:
        futures = {title: executor.submit(work, *arguments) for title, *arguments in cases}
        return {title: faults for title, future in futures.items() if (faults := future.result())}


def value_selector(stride):
    """Return a function that selects every `stride`-th (key, value), beginning at an offset."""
    all_values = [
        (key, value) for key, texts in sorted(KEYS.items()) for value in dict.fromkeys(texts)
    ]
    return lambda offset: all_values[offset % stride::stride]


def check_values(shared_namespace, phase, forged):
    """Write one forged value after another, and run check mode and the info module with each."""
    name = shared_namespace.create_in_phase(phase)
    kind, faults_found = phase.kind, {}
    items_before = {item_name: shared_namespace.get(kind, item_name)
                    for item_name in (name, *successors(shared_namespace, kind, name))}
    targets, titles = itertools.cycle(items_before), itertools.cycle(task_titles(phase))
    for number, (key, value) in enumerate(forged):
        target, title = next(targets), next(titles)
        if not shared_namespace.annotate(
            kind, target, shared_namespace.with_real_names({key: value}, kind, name)
        ):
            continue
        faults = shared_namespace.task_faults({"name": name, "kind": kind, **TASKS[title]},
                                              check=True)
        faults += shared_namespace.info_faults(kind, name) if phase.title != "migrating" else []
        if shared_namespace.get(kind, target)["spec"] != items_before[target]["spec"]:
            faults.append("check mode has changed the spec")
        if faults:
            target_role = "foo" if target == name else "successor"
            faults_found[f"{phase.title}, {title}, {target_role}, {key}: {value[:200]!r}"] = faults
        # The last three values remain for the checks at the end of the test.
        if number < len(forged) - 3:
            values_before = (items_before[target]["metadata"].get("labels" if key in LABELS
                                                                  else "annotations") or {})
            shared_namespace.annotate(kind, target, {key: values_before.get(key)})
    return faults_found


def successors(shared_namespace, kind, name):
    items = shared_namespace.namespace.call("GET", shared_namespace.collection_path(kind))["items"]
    return [item["metadata"]["name"]
            for item in items if item["metadata"]["name"].startswith(f"{name}-")]


@pytest.mark.parametrize("stride", [pytest.param(120, marks=pytest.mark.full),
                                    pytest.param(8, marks=pytest.mark.long)])
def test_single_forged_value_causes_no_harm(shared_namespace, stride):
    before = shared_namespace.digests_of_other_objects()
    select_values = value_selector(stride)
    # With different offsets, the phases test different values.
    cases = [(title, shared_namespace, phase, select_values(7 * number))
             for number, (title, phase) in enumerate(PHASES.items())]

    faults_found = run_in_parallel(cases, check_values)
    for kind in (RC, RS, DEPLOYMENT):
        if faults := shared_namespace.info_faults(kind) + shared_namespace.payments_faults(kind):
            faults_found[kind] = {f"at the end, {kind}": faults}

    assert shared_namespace.digests_of_other_objects() == before
    assert {
        title: faults
        for faults_by_title in faults_found.values()
        for title, faults in faults_by_title.items()
    } == {}


def run_recipe(shared_namespace, phase, title, recipe):
    name = shared_namespace.create_in_phase(phase)
    kind, faults_found = phase.kind, []
    for target, forged in RECIPES[recipe].items():
        if target == "foo":
            shared_namespace.annotate(
                kind, name, shared_namespace.with_real_names(forged, kind, name)
            )
    faults_found += shared_namespace.task_faults({"name": name, "kind": kind, **TASKS[title]})
    return faults_found


RECIPES_FOR_FOO = [
    recipe
    for recipe, annotations_by_target in RECIPES.items()
    if list(annotations_by_target) == ["foo"]
]
OTHER_RECIPES = [recipe for recipe in RECIPES if recipe not in RECIPES_FOR_FOO]


@pytest.mark.parametrize(("first", "stride"),
                         [(0, 66), pytest.param(0, 22, marks=pytest.mark.full),
                          *(pytest.param(first, 8, marks=pytest.mark.long)
                            for first in range(8))])
def test_combinations_of_forged_annotations_cause_no_harm(shared_namespace, first, stride):
    all_cases = [
        (f"{phase.title}, {title}, {recipe}", shared_namespace, phase, title, recipe)
        for phase in PHASES.values()
        for title in task_titles(phase)
        for recipe in RECIPES_FOR_FOO
    ]
    before = shared_namespace.digests_of_other_objects()

    faults_found = run_in_parallel(all_cases[first::stride], run_recipe)

    assert shared_namespace.digests_of_other_objects() == before
    assert faults_found == {}
    for kind in (RC, RS, DEPLOYMENT):
        assert shared_namespace.info_faults(kind) + shared_namespace.payments_faults(kind) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("recipe", OTHER_RECIPES)
def test_forged_successor_gets_no_pods_and_blocks_no_task(shared_namespace, recipe):
    name = shared_namespace.create_in_phase(PHASES["idle"], "foo")
    for target, forged in RECIPES[recipe].items():
        shared_namespace.annotate(RC, target if target != "foo" else name,
                                  shared_namespace.with_real_names(forged, RC, name))
    before = shared_namespace.digests_of_other_objects()

    faults_found = {
        title: faults
        for title, params in TASKS.items()
        if title in ("rolled back", "updated", "unchanged")
        if (faults := shared_namespace.task_faults({"name": name, **params}))
    }

    assert shared_namespace.digests_of_other_objects() == before and faults_found == {}
    images = {
        container["image"]
        for container in shared_namespace.get(RC, name)["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"myimage:v1"}, "after the last task, foo must have its first image"


# Other forged objects


@pytest.mark.full
@pytest.mark.parametrize("kind", [RC, RS])
@pytest.mark.parametrize("has_annotations", [False, True])
def test_successor_of_another_client_is_not_rolled_out(
        shared_namespace, kind, has_annotations):
    name = shared_namespace.create_in_phase(PHASES["idle" if kind == RC else "idle ReplicaSet"])
    primary = shared_namespace.get(kind, name)
    request = parse_request(
        {"name": name, "namespace": shared_namespace.namespace.name, "kind": kind, **UPDATE}
    )
    successor_name, label = expected_successor(request, parse(request.kind, primary))
    item = controller_manifest(successor_name, kind, 0)
    labels = {**primary["metadata"]["labels"], object_meta.DEPLOYMENT_LABEL: label}
    item["spec"]["template"] = {"metadata": {"labels": labels},
                                "spec": {"containers": [{"name": "web", "image": "evil:v1"}]}}
    item["spec"]["selector"] = labels
    if has_annotations:
        item["metadata"]["annotations"] = {
            object_meta.PARTNER: name, object_meta.PARTNER_UID: primary["metadata"]["uid"],
            object_meta.DESIRED: str(SIZE), object_meta.ORIGINAL: str(SIZE),
            object_meta.LAST_ROLLOUT: json.dumps({"outcome": "updating", "from": {}, "to": {},
                                                  "request": request.fingerprint})}
    shared_namespace.namespace.create_controller(kind, item)

    faults_found = shared_namespace.task_faults({"name": name, "kind": kind, **UPDATE})

    assert faults_found == []
    assert not any("evil" in pod["spec"]["containers"][0]["image"]
                   for pod in shared_namespace.namespace.pods())
    assert (shared_namespace.get(kind, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            in ("myimage:v1", "myimage:v2"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("phase", ["idle", "idle ReplicaSet", "idle Deployment"])
def test_forged_record_of_the_stored_template_blocks_no_update(
        shared_namespace, phase):
    kind = PHASES[phase].kind
    name = shared_namespace.create_in_phase(PHASES[phase])
    request = parse_request(
        {"name": name, "namespace": shared_namespace.namespace.name, "kind": kind, **UPDATE}
    )
    key = object_meta.HASH_LABEL if kind == DEPLOYMENT else request.label_key
    fingerprint_and_digest = provenance.record_entry(
        request.fingerprint, parse(request.kind, shared_namespace.get(kind, name)), key
    )
    record = {"outcome": "updated", "from": {}, "to": {}, "request": fingerprint_and_digest}
    shared_namespace.annotate(kind, name, {object_meta.LAST_ROLLOUT: json.dumps(record)})

    assert shared_namespace.task_faults({"name": name, "kind": kind, **UPDATE}) == []
    assert (shared_namespace.get(kind, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            == "myimage:v2")


@pytest.mark.full
def test_fleet_ignores_a_partner_outside_its_selection(shared_namespace):
    name = shared_namespace.create_in_phase(PHASES["idle"])
    record = next(text for text in KEYS[object_meta.LAST_ROLLOUT] if "updating" in text)
    shared_namespace.annotate(
        RC,
        name,
        shared_namespace.with_real_names(
            {object_meta.PARTNER: PAYMENTS, object_meta.LAST_ROLLOUT: record}, RC, name
        ),
    )
    params = {**DEFAULTS, "kubeconfig": shared_namespace.namespace.kubeconfig,
              "namespace": shared_namespace.namespace.name, "name": None,
              "label_selectors": [f"app={name}"], **UPDATE}
    before = shared_namespace.digests_of_other_objects()

    try:
        result = task.update(params)
    except RolloutError as error:
        result = error.as_result()

    assert shared_namespace.digests_of_other_objects() == before
    assert ([entry["name"] for entry in result.get("results", ())] in ([], [name])
            and output_problems(result) == [])


OWN_PROCESS = Process.of_new_task()
FORGED_LEASES = {
    "duration of 68 years": ({"leaseDurationSeconds": 2**31 - 1}, ""),
    "held by process 1": ({}, f"{OWN_PROCESS.machine}/1/{start_time('1')}/0123abcd"),
    "held by an invalid process id": ({}, f"{OWN_PROCESS.machine}/\x00/1/0123abcd"),
    "held by a path": ({}, f"{OWN_PROCESS.machine}/../../etc/1/0123abcd"),
    "held by a long number": ({}, f"{OWN_PROCESS.machine}/{'9' * 5000}/1/0123abcd"),
    "renewed in the future": ({"renewTime": "9999-12-31T23:59:59.999999Z",
                               "acquireTime": "9999-12-31T23:59:59.999999Z"}, ""),
    "held by an escape sequence": ({"holderIdentity": "\x1b]0;owned\x07\u202e\u009b"}, "\x1b[2J"),
    "held by a long text": ({"holderIdentity": "x" * 100_000}, "x" * 100_000),
}


@pytest.mark.full
@pytest.mark.fake_nodes("updates that take only a few seconds more than the duration of a Lease")
def test_forged_lease_blocks_a_task_only_for_the_normal_duration(shared_namespace):
    names = {title: shared_namespace.create_in_phase(PHASES["idle"]) for title in FORGED_LEASES}
    for title, (spec, holder) in FORGED_LEASES.items():
        name = identity.lease_name(RC, names[title])
        lease_spec = {"holderIdentity": "another", "leaseDurationSeconds": 15,
                      "renewTime": "1970-01-01T00:00:00.000000Z", **spec}
        body = {"metadata": {"name": name, "annotations": {object_meta.HOLDER: holder}},
                "spec": lease_spec}
        shared_namespace.namespace.call(
            "POST", LEASES.format(shared_namespace.namespace.name), body
        )

    def update(title):
        faults_found = shared_namespace.task_faults({"name": names[title], "kind": RC, **UPDATE})
        if (
            shared_namespace.get(RC, names[title])["spec"]["template"]["spec"]["containers"][0][
                "image"
            ]
            != "myimage:v2"
        ):
            faults_found.append("is not updated")
        return faults_found

    assert (
        run_in_parallel([(title, title) for title in FORGED_LEASES], update, len(FORGED_LEASES))
        == {}
    )


def create_revision(namespace, name, number, data, labels):
    body = {"metadata": {"name": name, "labels": labels}, "revision": number,
            "data": data}
    return namespace.call("POST", namespace.apps_path("controllerrevisions"), body)


@pytest.mark.full
def test_forged_revision_is_not_rolled_out(shared_namespace):
    name = shared_namespace.create_in_phase(PHASES["idle"])
    shared_namespace.run({"name": name, **UPDATE})
    item = shared_namespace.get(RC, name)
    labels = {object_meta.HISTORY: item["metadata"]["uid"]}
    evil = {"metadata": {"labels": {"app": name, "kind": RC}},
            "spec": {"containers": [{"name": "web", "image": "evil:v1"}]}}
    invalid_templates = [
        {"template": text}
        for text in (
            "[]",
            '{"spec": {"containers": ["web"]}}',
            '{"spec": []}',
            "[" * 10_000,
            "null",
            '{"spec": {"containers": [{"image": "x"}]}}',
            '{"metadata": [], "spec": {}}',
        )
    ]
    for number, data in enumerate(
        [{"template": json.dumps(evil)}, *invalid_templates, {"template": 1}, {}, {"other": []}]
    ):
        create_revision(shared_namespace.namespace, f"mine-{number}", 1 + number % 2, data, labels)
    before = shared_namespace.digests_of_other_objects()

    faults_found = shared_namespace.task_faults({"name": name, **TASKS["to revision"]})
    faults_found += shared_namespace.info_faults(RC)

    assert shared_namespace.digests_of_other_objects() == before and faults_found == []
    assert (shared_namespace.get(RC, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            in ("myimage:v1", "myimage:v2"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("check", [True, False])
def test_forged_migration_gets_no_pods(shared_namespace, check):
    faults_found, before = {}, shared_namespace.digests_of_other_objects()
    for title, change in {
        "another template": {"manifest": manifest(SIZE, "evil:v1")},
        "empty manifest": {"manifest": {}},
        "manifest is a string": {"manifest": "x"},
        "no hash": {"hash": None},
        "hash is a number": {"hash": 10**9},
        "hash is a path": {"hash": "../../secrets/db"},
        "uid of another object": {"hash": "x", "uid": "x"},
        "hash is a list": {"hash": ["x"]},
    }.items():
        name = shared_namespace.create_in_phase(PHASES["idle"])
        item = shared_namespace.get(RC, name)
        data = {"hash": "0123456789", "uid": item["metadata"]["uid"], "manifest": item, **change}
        with contextlib.suppress(ApiException):
            create_revision(
                shared_namespace.namespace, identity.successor_name(name, "migration"), 1, data, {}
            )
        if faults := shared_namespace.task_faults({"name": name, **TASKS["migrated"]}, check):
            faults_found[title] = faults

    assert shared_namespace.digests_of_other_objects() == before and faults_found == {}


@pytest.mark.full
def test_forged_autoscaler_limits_are_not_restored(shared_namespace):
    faults_found = {}
    path = AUTOSCALERS.format(shared_namespace.namespace.name)
    for text in ('{"behavior": null, "minReplicas": 1000}',
                 '{"behavior": {"scaleUp": {"selectPolicy": "x"}}, "minReplicas": 1}',
                 '{"behavior": null, "minReplicas": {}}', "[]", "[" * 10_000,
                 '{"behavior": null, "minReplicas": -1}'):
        name = shared_namespace.create_in_phase(PHASES["idle"])
        shared_namespace.namespace.call("POST", path, {
            "metadata": {"name": name, "annotations": {object_meta.FROZEN: text}},
            "spec": {"minReplicas": 1, "maxReplicas": 3,
                     "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": name}}})
        faults = shared_namespace.task_faults({"name": name, **UPDATE})
        autoscaler = shared_namespace.namespace.call("GET", f"{path}/{name}")["spec"]
        if autoscaler["minReplicas"] > 3:
            faults.append(f"minReplicas is {autoscaler['minReplicas']}")
        if faults:
            faults_found[text[:60]] = faults

    assert faults_found == {}


#: The short forged texts joined, and a text that is too long for a message.
SHORT_TEXT = " ".join(text for text in FIELDS["Event"]["message"] if len(text) < 200)
LONG_TEXT = "Failed to pull image taint no match for platform " * 2_000


def create_event(shared_namespace, pod, reason, message):
    pod_reference = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
                     "namespace": shared_namespace.namespace.name,
                     "fieldPath": "spec.containers{web}"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    shared_namespace.namespace.create("events", {
        "metadata": {"generateName": "forged-"}, "involvedObject": pod_reference, "reason": reason,
        "message": message, "type": "Warning",
        "count": 2**31 - 1, "firstTimestamp": now, "lastTimestamp": now})


def set_container_status(shared_namespace, pod, is_ready=False, **state):
    status = {"name": "web", "image": "x", "imageID": "", "ready": is_ready, "restartCount": 3,
              **state}
    ready = {"type": "Ready", "status": "True" if is_ready else "False"}
    namespace = shared_namespace.namespace
    namespace.call("PATCH", namespace.path("pods", pod["metadata"]["name"]) + "/status",
                   {"status": {"containerStatuses": [status], "conditions": [ready]}},
                   "application/strategic-merge-patch+json")


def report_crash(shared_namespace, pod, message):
    terminated = {"exitCode": 1, "reason": "Error", "message": message}
    set_container_status(
        shared_namespace,
        pod,
        state={"waiting": {"reason": "CrashLoopBackOff", "message": message}},
        lastState={"terminated": terminated},
    )


#: Forged reports about pods that never become ready, by title: (tag of the image, function).
FORGED_REPORTS = {
    f"{title}, {'long' if text is LONG_TEXT else 'short'}": (tag, functools.partial(report, text))
    for text in (SHORT_TEXT, LONG_TEXT)
    for title, tag, report in (
        (
            "image pull",
            "absent",
            lambda text, shared_namespace, pod: create_event(
                shared_namespace, pod, "Failed", f'Failed to pull image "x": {text}'
            ),
        ),
        (
            "probe",
            "unready",
            lambda text, shared_namespace, pod: create_event(
                shared_namespace, pod, "Unhealthy", f"Readiness probe failed: {text}"
            ),
        ),
        (
            "crash",
            "unready",
            lambda text, shared_namespace, pod: report_crash(shared_namespace, pod, text),
        ),
        (
            "waiting",
            "unready",
            lambda text, shared_namespace, pod: set_container_status(
                shared_namespace,
                pod,
                state={"waiting": {"reason": "CreateContainerError", "message": text}},
            ),
        ),
    )
}


def update_during(shared_namespace, tag, action, **params):
    """Run a task while another client acts once on each new pod.

    Return the name of the controller, and the faults.
    """
    name = shared_namespace.create_in_phase(PHASES["idle"])
    changed_pods = set()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        future = executor.submit(shared_namespace.task_faults,
                                 {"name": name, "image": f"myimage:v2-{tag}", **params})
        while not future.done():
            for pod in shared_namespace.namespace.pods():
                is_new = (pod["spec"]["containers"][0]["image"].endswith(tag)
                          and pod["metadata"]["name"].startswith(f"{name}-"))
                if (is_new and pod["status"].get("containerStatuses")
                        and pod["metadata"]["name"] not in changed_pods):
                    changed_pods.add(pod["metadata"]["name"])
                    action(shared_namespace, pod)
            time.sleep(0.1)
    assert changed_pods, "no new pod was changed"
    return name, future.result()


@pytest.mark.full
@pytest.mark.fake_nodes("pods that run and never become ready")
def test_forged_pod_status_is_shown_as_text(shared_namespace):
    faults_found = run_in_parallel(
        [(title, tag, report) for title, (tag, report) in FORGED_REPORTS.items()],
        lambda tag, report: update_during(shared_namespace, tag, report)[1],
        len(FORGED_REPORTS),
    )

    assert faults_found == {}


@pytest.mark.fake_nodes("pods that run and never become ready")
def test_forged_pod_status_does_not_fail_a_healthy_rollout(shared_namespace):
    """An Event reports a permanent failure before the pods become ready."""
    def start_with_forged_event(shared_namespace, pod):
        set_container_status(
            shared_namespace, pod, state={"waiting": {"reason": "ContainerCreating"}}
        )
        create_event(shared_namespace, pod, "Failed", 'Failed to pull image "x": not found')
        time.sleep(4)
        set_container_status(shared_namespace, pod, is_ready=True,
                             state={"running": {"startedAt": "2026-11-21T10:00:00Z"}})

    name, faults_found = update_during(
        shared_namespace, "unready", start_with_forged_event, failure_grace=1, progress_deadline=30
    )

    assert faults_found == []
    assert (shared_namespace.get(RC, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            == "myimage:v2-unready")
