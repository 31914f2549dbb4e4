# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Annotations and objects forged by another client, on a real API server, in each phase and state.

The values, and the text that may be shown, are those of tests/unit/forged.py. A task on foo changes
no object of another team, sends only the requests of its work, makes at most the agreed pods, shows
no control characters on a terminal, and blocks no other task.
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
from forged import EXPECTED, FIELDS, IDLE, KEYS, LABELS, PAYMENTS, RECIPES, UID, raw
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, manifest, role
from writes import Killed, intercept_writes, is_reparenting

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
SIZE, SURGE = 2, 1
SCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
#: Tasks at the same time: they wait for the cluster more than they work.
AT_ONCE = 3
#: Seconds for a task; a missing pod costs the progress_deadline.
SECONDS = 30
#: Bytes of this process's addresses.
MEMORY = 4 * 1024**3
DEFAULTS = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
PACE = {"progress_deadline": 8, "failure_grace": 3}


@dataclasses.dataclass(frozen=True)
class Phase:
    """Progress of a task at the moment of the forgery."""

    title: str
    kind: str = RC
    task: Json | None = None
    #: The task's client dies at the nth write that meets this condition.
    dies: tuple[t.Callable[[t.Any], bool], int] | None = None


def is_write(_what: t.Any) -> bool:
    return True


V2 = {"image": "myimage:v2"}
MIGRATE = {"module": "migrate_to_deployment", "state": "migrated"}
PHASES = {phase.title: phase for phase in (
    Phase("idle"),
    Phase("updating", task=V2, dies=(is_write, 5)),
    Phase("paused", task={**V2, "pause_at": "1"}),
    Phase("handing over", task=V2, dies=(is_reparenting, 2)),
    Phase("migrating", task=MIGRATE, dies=(is_reparenting, 2)),
    Phase("idle ReplicaSet", RS),
    Phase("updating ReplicaSet", RS, V2, (is_write, 5)),
    Phase("idle Deployment", DEPLOYMENT),
    Phase("paused Deployment", DEPLOYMENT, {**V2, "pause_at": "1"}),
    Phase("updating Deployment", DEPLOYMENT, V2, (is_write, 2)),
)}
TASKS: dict[str, Json] = {
    "updated": V2, "unchanged": {"image": "myimage:v1"}, "rolled back": {"state": "rolled_back"},
    "to revision": {"state": "rolled_back", "to_revision": 1}, "restarted": {"state": "restarted"},
    "migrated": MIGRATE,
}


def tasks_for(phase: Phase) -> list[str]:
    """Return the titles of the tasks that apply to a phase; half a migration only resumes."""
    if phase.title == "migrating":
        return ["migrated"]
    return [title for title in TASKS if phase.kind == RC or title != "migrated"]


class Harm(BaseException):
    """A request that is not sent, since the target is another client's object."""


class Neighbours:
    """A namespace with other teams' objects, and tasks whose every request is inspected."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        namespace.allow(role("baton-migration"), "baton-migration")
        namespace.create("secrets",
                         {"metadata": {"name": "db"}, "stringData": {"password": "secret"}})
        for kind in (RC, RS, DEPLOYMENT):
            namespace.create_any(kind, named(PAYMENTS, kind, SIZE))
            namespace.create_any(kind, named(IDLE, kind, 0))
        namespace.call("POST", SCALERS.format(namespace.name),
                       {"metadata": {"name": PAYMENTS}, "spec": {
                           "minReplicas": 1, "maxReplicas": 3,
                           "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": PAYMENTS}}})
        eventually(lambda: len(namespace.pods()) == 3 * SIZE
                   and all(map(is_ready, namespace.pods())), "the neighbours' pods")
        self._number = itertools.count(1)

    def collection(self, kind: str) -> str:
        return (self.namespace.path("replicationcontrollers") if kind == RC
                else self.namespace.apps_path(f"{kind.lower()}s"))

    def get(self, kind: str, name: str) -> Json | None:
        try:
            return self.namespace.call("GET", f"{self.collection(kind)}/{name}")
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def annotate(self, kind: str, name: str, annotations: t.Mapping[str, str]) -> bool:
        """Return False where the API server rejects the annotations, or the object does not exist.
        """
        labels = {key: value for key, value in annotations.items() if key in LABELS}
        body = {"metadata": {"annotations": {key: annotations[key]
                                             for key in annotations.keys() - labels},
                             "labels": labels}}
        try:
            self.namespace.call("PATCH", f"{self.collection(kind)}/{name}", body,
                                "application/merge-patch+json")
        except ApiException as error:
            if error.status in (400, 404, 413, 422):
                return False
            raise
        return True

    def others(self) -> Json:
        """Return the digests of all objects apart from foo's, without status, which their
        controllers write.
        """
        paths = [*map(self.collection, (RC, RS, DEPLOYMENT)), self.namespace.path("pods"),
                 self.namespace.path("secrets"),
                 SCALERS.format(self.namespace.name)]
        items = [(path, item) for path in paths
                 for item in self.namespace.call("GET", path)["items"]]
        return {(path, item["metadata"]["name"]): identity.digest({
            key: {field: content
                  for field, content in value.items()
                  if field not in ("resourceVersion", "managedFields")}
            for key, value in item.items() if key in ("metadata", "spec", "data")})
            for path, item in items if item["metadata"]["name"].startswith((PAYMENTS, IDLE, "db"))}

    def begin(self, phase: Phase, name: str = "") -> str:
        """Create a controller for this cell, bring the controller to the phase, and return its
        name.
        """
        name = name or f"foo-{next(self._number)}x"
        kind = phase.kind
        self.namespace.create_any(kind, named(name, kind, SIZE))

        def is_there() -> bool:
            return (((self.get(kind, name) or {}).get("status") or {}).get("availableReplicas", 0)
                    == SIZE)

        eventually(is_there, f"pods of {name}")
        if phase.task:
            with contextlib.suppress(Killed):
                self.run({**phase.task, "name": name, "kind": kind}, dies=phase.dies)
        return name

    def fill(self, annotations: t.Mapping[str, str], kind: str, name: str) -> dict[str, str]:
        """The values with real uids, and with the cell's name for foo."""
        filled = {}
        for key, value in annotations.items():
            for target in (PAYMENTS, IDLE, "foo"):
                if UID.format(target) in value:
                    item = self.get(kind, name if target == "foo" else target)
                    value = value.replace(UID.format(target),
                                          item["metadata"]["uid"] if item else "x")
            filled[key] = name if value == "foo" else value.replace("foo:", f"{name}:")
        return filled

    def run(self, params: Json, check: bool = False,
            dies: tuple[t.Callable[[t.Any], bool], int] | None = None,
            messages: list[t.Any] | None = None, wrong: list[str] | None = None) -> Json:
        """Run a task in this process and append the faults of its requests to `wrong`. Raises
        RolloutError.
        """
        request = parse_request({"namespace": self.namespace.name, **PACE, **params})
        flow = choose(request)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.namespace.kubeconfig}, {}),
                                    request.namespace, flow.watches)
        self.look_at_requests(gateway, request.name, wrong if wrong is not None else [])
        if dies:
            which, number = dies
            count = itertools.count(1)

            def deadly(what: t.Any, write: t.Callable[[], bool]) -> bool:
                if which(what) and next(count) == number:
                    raise Killed
                return write()

            intercept_writes(gateway, deadly)
        say = (messages if messages is not None else []).append
        try:
            return (driver.simulate(flow, request, gateway) if check
                    else driver.run(flow, request, gateway, driver.Clock(), say))
        finally:
            gateway.close()

    def look_at_requests(self, gateway: KubernetesGateway, name: str, wrong: list[str]) -> None:
        """Note each unknown path, each write to another client's object, and each size beyond the
        agreement.

        These writes are not sent: a billion pods would end more than the test.
        """
        pool = gateway.http.connection.pool
        plain, prefix = pool.urlopen, gateway.http.connection.server
        leases = [identity.lease_name_without_kind(name),
                  *(identity.lease_name(kind, name) for kind in Kind)]

        def looked_at(method: str, url: str, body: t.Any = None, **options: t.Any) -> t.Any:
            parts = urllib.parse.urlsplit(url.removeprefix(prefix))
            if not EXPECTED.fullmatch(parts.path.replace(f"/namespaces/{self.namespace.name}",
                                                         "/namespaces/NS", 1)):
                wrong.append(f"{method} {url[:300]}")
            if method in ("PATCH", "PUT", "DELETE") and "dryRun" not in parts.query:
                last = parts.path.rpartition("/")[2]
                if not last.startswith((name, *leases)) and "/pods/" not in parts.path:
                    wrong.append(f"{method} {parts.path}")
            for path, value in written(method, body):
                if path == "/spec/replicas" and not 0 <= value <= SIZE:
                    wrong.append(f"{method} {parts.path}: the size {value}")
                if path == "/spec/template" and "evil" in json.dumps(value):
                    wrong.append(f"{method} {parts.path}: somebody else's template")
                if path == "/spec/strategy" and value.get("type") != "RollingUpdate":
                    wrong.append(f"{method} {parts.path}: {value}")
            if wrong and method != "GET":
                raise Harm(wrong[-1])
            return plain(method, url, body=body, **options)

        pool.urlopen = looked_at

    def try_task(self, params: Json, check: bool = False) -> list[str]:
        """Run a task that must be harmless, and describe each fault in a phrase."""
        wrong: list[str] = []
        messages: list[t.Any] = []
        began = time.monotonic()
        try:
            messages.append(self.run(params, check, messages=messages, wrong=wrong))
        except RolloutError as error:
            messages.append(error.as_result())
        except Harm:
            pass  # already in the list
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - began > SECONDS:
            wrong.append(f"took {time.monotonic() - began:.0f} s")
        return wrong + [fault for message in messages for fault in raw(message)]

    def try_info(self, kind: str, name: str | None = None) -> list[str]:
        """Run the info module for one controller, or for the whole namespace, and describe each
        fault.
        """
        params = {"kubeconfig": self.namespace.kubeconfig, "namespace": self.namespace.name,
                  "kind": kind}
        try:
            result = task.info({**params, "name": name, "pods": True})
        except Exception as error:
            return [f"info: {type(error).__name__}: {str(error)[:200]}"]
        names = [rollout["name"] for rollout in result["rollouts"]]
        missing = [] if (name or PAYMENTS) in names else [f"does not tell of {name or PAYMENTS}"]
        return [f"info: {fault}" for fault in (*missing, *raw(result))]

    def try_payments(self, kind: str) -> list[str]:
        """Plan the update of payments in check mode, as its owner, and describe each fault."""
        wrong: list[str] = []
        try:
            result = self.run({**V2, "name": PAYMENTS, "kind": kind}, check=True, wrong=wrong)
        except Exception as error:
            return [f"payments cannot be updated: {str(error)[:300]}"]
        return wrong + ([] if result["changed"] else ["payments is not updated"])


def named(name: str, kind: str, size: int) -> Json:
    """Return a controller whose pods no controller of another kind selects."""
    item = manifest(size, name=name)
    labels = {"app": name, "kind": kind}
    item["metadata"]["labels"] = item["spec"]["selector"] = labels
    item["spec"]["template"]["metadata"]["labels"] = labels
    return item


def is_ready(pod: Json) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in pod["status"].get("conditions", ()))


def written(method: str, body: t.Any) -> list[tuple[str, t.Any]]:
    """Return the fields set by a request, by path."""
    document = json.loads(body) if body else None
    if isinstance(document, list):
        return [(operation["path"], operation.get("value"))
                for operation in document if operation["op"] in ("add", "replace")]
    spec = document.get("spec") if isinstance(document, dict) and method == "POST" else None
    return ([(f"/spec/{field}", value) for field, value in spec.items()] if isinstance(spec, dict)
            else [])


@pytest.fixture
def neighbours(namespace):
    """Limit the memory to the needs of a task: a forged size must not exhaust the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    yield Neighbours(namespace)
    resource.setrlimit(resource.RLIMIT_AS, before)


def all_at_once(cells, work, at_once=AT_ONCE):
    """Run all cells in parallel and return the faults of each cell by its title."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as executor:
        futures = {title: executor.submit(work, *arguments) for title, *arguments in cells}
        return {title: faults for title, future in futures.items() if (faults := future.result())}


def values(share):
    """Return a choice of every nth forged value of each key, with a different offset in each phase.
    """
    every = [(key, value) for key, texts in sorted(KEYS.items()) for value in dict.fromkeys(texts)]
    return lambda shift: every[shift % share::share]


def looks(neighbours, phase, forged):
    """Check mode and the info module, with each of the values; nothing is changed by them. At the
    end the last values stay.
    """
    name = neighbours.begin(phase)
    kind, wrong = phase.kind, {}
    before = {item_name: neighbours.get(kind, item_name)
              for item_name in (name, *successors(neighbours, kind, name))}
    targets, titles = itertools.cycle(before), itertools.cycle(tasks_for(phase))
    for number, (key, value) in enumerate(forged):
        target, title = next(targets), next(titles)
        if not neighbours.annotate(kind, target, neighbours.fill({key: value}, kind, name)):
            continue
        faults = neighbours.try_task({"name": name, "kind": kind, **TASKS[title]}, check=True)
        faults += neighbours.try_info(kind, name) if phase.title != "migrating" else []
        if neighbours.get(kind, target)["spec"] != before[target]["spec"]:
            faults.append("check mode has changed something")
        if faults:
            wrong[f"{phase.title}, {title}, {'foo' if target == name else 'next'}, {key}: "
                  f"{value[:200]!r}"] = faults
        if number < len(forged) - 3:
            marks_before = (before[target]["metadata"].get("labels" if key in LABELS
                                                           else "annotations") or {})
            neighbours.annotate(kind, target, {key: marks_before.get(key)})
    return wrong


def successors(neighbours, kind, name):
    items = neighbours.namespace.call("GET", neighbours.collection(kind))["items"]
    return [item["metadata"]["name"]
            for item in items if item["metadata"]["name"].startswith(f"{name}-")]


@pytest.mark.full
def test_forged_annotation_causes_no_action(neighbours, share):
    """Check mode plans all of a task without a write: the cheapest way through many values."""
    before = neighbours.others()
    pick = values(share)
    cells = [(title, neighbours, phase, pick(7 * number))
             for number, (title, phase) in enumerate(PHASES.items())]

    wrong = all_at_once(cells, looks)
    for kind in (RC, RS, DEPLOYMENT):
        if faults := neighbours.try_info(kind) + neighbours.try_payments(kind):
            wrong[kind] = {f"at the end, {kind}": faults}

    assert neighbours.others() == before
    assert ({title: faults for of_phase in wrong.values() for title, faults in of_phase.items()}
            == {})


def obey(neighbours, phase, title, recipe):
    """Run a task for real, with annotations that agree with each other."""
    name = neighbours.begin(phase)
    kind, wrong = phase.kind, []
    for target, forged in RECIPES[recipe].items():
        if target == "foo":
            neighbours.annotate(kind, name, neighbours.fill(forged, kind, name))
    wrong += neighbours.try_task({"name": name, "kind": kind, **TASKS[title]})
    return wrong


OF_FOO = [recipe for recipe, marks_of in RECIPES.items() if list(marks_of) == ["foo"]]
OF_OTHERS = [recipe for recipe in RECIPES if recipe not in OF_FOO]


@pytest.mark.parametrize("share",
                         [66, pytest.param(22, marks=pytest.mark.full),
                          pytest.param(1, marks=pytest.mark.long)])
def test_forged_annotations_of_foo_cause_no_action(neighbours, share):
    every = [(f"{phase.title}, {title}, {recipe}", neighbours, phase, title, recipe)
             for phase in PHASES.values() for title in tasks_for(phase) for recipe in OF_FOO]
    before = neighbours.others()

    wrong = all_at_once(every[::share], obey)

    assert neighbours.others() == before
    assert wrong == {}
    for kind in (RC, RS, DEPLOYMENT):
        assert neighbours.try_info(kind) + neighbours.try_payments(kind) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("recipe", OF_OTHERS)
def test_forged_successor_gets_no_pods_and_blocks_no_task(neighbours, recipe):
    """Forged annotations on an unrelated controller neither change that controller nor block foo's
    update.
    """
    name = neighbours.begin(PHASES["idle"], "foo")
    for target, forged in RECIPES[recipe].items():
        neighbours.annotate(RC, target if target != "foo" else name,
                            neighbours.fill(forged, RC, name))
    before = neighbours.others()

    wrong = {title: faults
             for title, params in TASKS.items() if title in ("rolled back", "updated", "unchanged")
             if (faults := neighbours.try_task({"name": name, **params}))}

    assert neighbours.others() == before and wrong == {}
    images = {container["image"]
              for container in neighbours.get(RC, name)["spec"]["template"]["spec"]["containers"]}
    assert images == {"myimage:v1"}, "updated, and back by the last of these tasks"


# Forgeries other than annotations


@pytest.mark.sample
@pytest.mark.parametrize("kind", [RC, RS])
@pytest.mark.parametrize("has_marks", [False, True])
def test_successor_of_another_client_is_not_rolled_out(
        neighbours, kind, has_marks):
    """Name, label and annotations are public and all match; only the template is the attacker's."""
    name = neighbours.begin(PHASES["idle" if kind == RC else "idle ReplicaSet"])
    primary = neighbours.get(kind, name)
    request = parse_request({"name": name, "namespace": neighbours.namespace.name, "kind": kind,
                             **V2})
    place, label = expected_successor(request, parse(request.kind, primary))
    item = named(place, kind, 0)
    labels = {**primary["metadata"]["labels"], object_meta.DEPLOYMENT_LABEL: label}
    item["spec"]["template"] = {"metadata": {"labels": labels},
                                "spec": {"containers": [{"name": "web", "image": "evil:v1"}]}}
    item["spec"]["selector"] = labels
    if has_marks:
        item["metadata"]["annotations"] = {
            object_meta.PARTNER: name, object_meta.PARTNER_UID: primary["metadata"]["uid"],
            object_meta.DESIRED: str(SIZE), object_meta.ORIGINAL: str(SIZE),
            object_meta.LAST_ROLLOUT: json.dumps({"outcome": "updating", "from": {}, "to": {},
                                                  "request": request.fingerprint})}
    neighbours.namespace.create_any(kind, item)

    wrong = neighbours.try_task({"name": name, "kind": kind, **V2})

    assert wrong == []
    assert not any("evil" in pod["spec"]["containers"][0]["image"]
                   for pod in neighbours.namespace.pods())
    assert (neighbours.get(kind, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            in ("myimage:v1", "myimage:v2"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("phase", ["idle", "idle ReplicaSet", "idle Deployment"])
def test_forged_record_of_the_stored_template_blocks_no_update(
        neighbours, phase):
    """The record is computed from public data."""
    kind = PHASES[phase].kind
    name = neighbours.begin(PHASES[phase])
    request = parse_request({"name": name, "namespace": neighbours.namespace.name, "kind": kind,
                             **V2})
    key = object_meta.HASH_LABEL if kind == DEPLOYMENT else request.label_key
    became = provenance.result(request.fingerprint, parse(request.kind, neighbours.get(kind, name)),
                               key)
    record = {"outcome": "updated", "from": {}, "to": {}, "request": became}
    neighbours.annotate(kind, name, {object_meta.LAST_ROLLOUT: json.dumps(record)})

    assert neighbours.try_task({"name": name, "kind": kind, **V2}) == []
    assert (neighbours.get(kind, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            == "myimage:v2")


def test_fleet_ignores_a_partner_outside_its_selection(neighbours):
    """A controller matched by the selector claims to be the successor of an unrelated controller.
    """
    name = neighbours.begin(PHASES["idle"])
    record = next(text for text in KEYS[object_meta.LAST_ROLLOUT] if "updating" in text)
    neighbours.annotate(RC, name,
                        neighbours.fill({object_meta.PARTNER: PAYMENTS,
                                         object_meta.LAST_ROLLOUT: record}, RC, name))
    params = {**DEFAULTS, "kubeconfig": neighbours.namespace.kubeconfig,
              "namespace": neighbours.namespace.name, "name": None,
              "label_selectors": [f"app={name}"], **V2}
    before = neighbours.others()

    try:
        result = task.update(params)
    except RolloutError as error:
        result = error.as_result()

    assert neighbours.others() == before
    assert ([entry["name"] for entry in result.get("results", ())] in ([], [name])
            and raw(result) == [])


MINE = Process.of_new_task()
#: Leases without a living holder.
HELD = {
    "for 68 years": ({"leaseDurationSeconds": 2**31 - 1}, ""),
    "by process 1": ({}, f"{MINE.machine}/1/{start_time('1')}/0123abcd"),
    "by a process that is none": ({}, f"{MINE.machine}/\x00/1/0123abcd"),
    "by a path": ({}, f"{MINE.machine}/../../etc/1/0123abcd"),
    "by a number": ({}, f"{MINE.machine}/{'9' * 5000}/1/0123abcd"),
    "in the future": ({"renewTime": "9999-12-31T23:59:59.999999Z",
                       "acquireTime": "9999-12-31T23:59:59.999999Z"}, ""),
    "by an escape sequence": ({"holderIdentity": "\x1b]0;owned\x07\u202e\u009b"}, "\x1b[2J"),
    "by a novel": ({"holderIdentity": "x" * 100_000}, "x" * 100_000),
}


@pytest.mark.full
@pytest.mark.fake_nodes("updates that take a few seconds beyond the time of a Lease")
def test_forged_lease_blocks_at_most_for_the_normal_duration(neighbours):
    """At most for the 15 s of a killed task's Lease, and some time to observe."""
    names = {title: neighbours.begin(PHASES["idle"]) for title in HELD}
    for title, (spec, holder) in HELD.items():
        name = identity.lease_name(RC, names[title])
        whole = {"holderIdentity": "somebody", "leaseDurationSeconds": 15,
                 "renewTime": "1970-01-01T00:00:00.000000Z", **spec}
        body = {"metadata": {"name": name, "annotations": {object_meta.HOLDER: holder}},
                "spec": whole}
        neighbours.namespace.call("POST", LEASES.format(neighbours.namespace.name), body)

    def wait(title):
        wrong = neighbours.try_task({"name": names[title], "kind": RC, **V2})
        if (neighbours.get(RC, names[title])["spec"]["template"]["spec"]["containers"][0]["image"]
                != "myimage:v2"):
            wrong.append("is not updated")
        return wrong

    assert all_at_once([(title, title) for title in HELD], wait, len(HELD)) == {}


def revision(namespace, name, number, data, labels, **metadata):
    body = {"metadata": {"name": name, "labels": labels, **metadata}, "revision": number,
            "data": data}
    return namespace.call("POST", namespace.apps_path("controllerrevisions"), body)


def test_forged_revision_is_not_rolled_out(neighbours):
    """The revision has the uid and number of a stored revision, and a foreign owner or none."""
    name = neighbours.begin(PHASES["idle"])
    neighbours.run({"name": name, **V2})
    item = neighbours.get(RC, name)
    labels = {object_meta.HISTORY: item["metadata"]["uid"]}
    evil = {"metadata": {"labels": {"app": name, "kind": RC}},
            "spec": {"containers": [{"name": "web", "image": "evil:v1"}]}}
    strange = [{"template": text}
               for text in ("[]", '{"spec": {"containers": ["web"]}}', '{"spec": []}', "[" * 10_000,
                            "null",
                            '{"spec": {"containers": [{"image": "x"}]}}',
                            '{"metadata": [], "spec": {}}')]
    for number, data in enumerate([{"template": json.dumps(evil)}, *strange, {"template": 1}, {},
                                   {"other": []}]):
        revision(neighbours.namespace, f"mine-{number}", 1 + number % 2, data, labels)
    before = neighbours.others()

    wrong = neighbours.try_task({"name": name, **TASKS["to revision"]})
    wrong += neighbours.try_info(RC)

    assert neighbours.others() == before and wrong == []
    assert (neighbours.get(RC, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            in ("myimage:v1", "myimage:v2"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("check", [True, False])
def test_forged_migration_gets_no_pods(neighbours, check):
    """The stored record of a migration decides which ReplicaSet gets whose pods."""
    wrong, before = {}, neighbours.others()
    for title, change in {
        "of another template": {"manifest": manifest(SIZE, "evil:v1")},
        "of nothing": {"manifest": {}},
        "of a text": {"manifest": "x"},
        "without a hash": {"hash": None}, "of a number": {"hash": 10**9},
        "to a path": {"hash": "../../secrets/db"}, "to payments": {"hash": "x", "uid": "x"},
        "of a list": {"hash": ["x"]},
    }.items():
        name = neighbours.begin(PHASES["idle"])
        item = neighbours.get(RC, name)
        data = {"hash": "0123456789", "uid": item["metadata"]["uid"], "manifest": item, **change}
        with contextlib.suppress(ApiException):
            revision(neighbours.namespace, identity.successor_name(name, "migration"), 1, data, {})
        if faults := neighbours.try_task({"name": name, **TASKS["migrated"]}, check):
            wrong[title] = faults

    assert neighbours.others() == before and wrong == {}


@pytest.mark.full
def test_forged_autoscaler_limits_are_not_restored(neighbours):
    wrong = {}
    path = SCALERS.format(neighbours.namespace.name)
    for text in ('{"behavior": null, "minReplicas": 1000}',
                 '{"behavior": {"scaleUp": {"selectPolicy": "x"}}, "minReplicas": 1}',
                 '{"behavior": null, "minReplicas": {}}', "[]", "[" * 10_000,
                 '{"behavior": null, "minReplicas": -1}'):
        name = neighbours.begin(PHASES["idle"])
        neighbours.namespace.call("POST", path, {
            "metadata": {"name": name, "annotations": {object_meta.FROZEN: text}},
            "spec": {"minReplicas": 1, "maxReplicas": 3,
                     "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": name}}})
        faults = neighbours.try_task({"name": name, **V2})
        scaler = neighbours.namespace.call("GET", f"{path}/{name}")["spec"]
        if scaler["minReplicas"] > 3:
            faults.append(f"minReplicas is {scaler['minReplicas']}")
        if faults:
            wrong[text[:60]] = faults

    assert wrong == {}


#: All short texts together, and a text too long for every message.
SHORT = " ".join(text for text in FIELDS["Event"]["message"] if len(text) < 200)
ENDLESS = "Failed to pull image taint no match for platform " * 2_000


def tell(neighbours, pod, reason, message):
    """Create an Event like the kubelet's, as another client."""
    about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
             "namespace": neighbours.namespace.name,
             "fieldPath": "spec.containers{web}"}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    neighbours.namespace.create("events", {
        "metadata": {"generateName": "forged-"}, "involvedObject": about, "reason": reason,
        "message": message, "type": "Warning",
        "count": 2**31 - 1, "firstTimestamp": now, "lastTimestamp": now})


def show(neighbours, pod, is_ready=False, **state):
    """Write the status of a pod as a kubelet reports the container; the container chooses the
    message.
    """
    status = {"name": "web", "image": "x", "imageID": "", "ready": is_ready, "restartCount": 3,
              **state}
    ready = {"type": "Ready", "status": "True" if is_ready else "False"}
    namespace = neighbours.namespace
    namespace.call("PATCH", namespace.path("pods", pod["metadata"]["name"]) + "/status",
                   {"status": {"containerStatuses": [status], "conditions": [ready]}},
                   "application/strategic-merge-patch+json")


def crashes(neighbours, pod, message):
    end = {"exitCode": 1, "reason": "Error", "message": message}
    show(neighbours, pod, state={"waiting": {"reason": "CrashLoopBackOff", "message": message}},
         lastState={"terminated": end})


#: Forged reports on new pods that never become ready: the tag of their image, and the action on
#: each pod.
SAID = {
    f"{title}, {'endless' if text is ENDLESS else 'short'}": (tag, functools.partial(say, text))
    for text in (SHORT, ENDLESS) for title, tag, say in (
        ("pulls", "absent",
         lambda text, neighbours, pod: tell(neighbours, pod, "Failed",
                                            f'Failed to pull image "x": {text}')),
        ("probes", "unready",
         lambda text, neighbours, pod: tell(neighbours, pod, "Unhealthy",
                                            f"Readiness probe failed: {text}")),
        ("ends", "unready", lambda text, neighbours, pod: crashes(neighbours, pod, text)),
        ("waits", "unready",
         lambda text, neighbours, pod: show(neighbours, pod,
                                            state={"waiting": {"reason": "CreateContainerError",
                                                               "message": text}})),
    )}


def roll_while(neighbours, tag, act, **params):
    """Run a task while another client acts on each new pod; return the name and the faults."""
    name = neighbours.begin(PHASES["idle"])
    done = set()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        future = executor.submit(neighbours.try_task,
                                 {"name": name, "image": f"myimage:v2-{tag}", **params})
        while not future.done():
            for pod in neighbours.namespace.pods():
                is_new = (pod["spec"]["containers"][0]["image"].endswith(tag)
                          and pod["metadata"]["name"].startswith(f"{name}-"))
                if (is_new and pod["status"].get("containerStatuses")
                        and pod["metadata"]["name"] not in done):
                    done.add(pod["metadata"]["name"])
                    act(neighbours, pod)
            time.sleep(0.1)
    assert done, "somebody has done it"
    return name, future.result()


@pytest.mark.full
@pytest.mark.fake_nodes("pods that run and never become ready")
def test_forged_pod_status_is_shown_as_text(neighbours):
    wrong = all_at_once([(title, tag, say) for title, (tag, say) in SAID.items()],
                        lambda tag, say: roll_while(neighbours, tag, say)[1], len(SAID))

    assert wrong == {}


@pytest.mark.fake_nodes("pods that run and never become ready")
def test_forged_pod_status_fails_no_healthy_rollout(neighbours):
    """The pods are about to start when an Event announces a permanent failure."""
    def start(neighbours, pod):
        show(neighbours, pod, state={"waiting": {"reason": "ContainerCreating"}})
        tell(neighbours, pod, "Failed", 'Failed to pull image "x": not found')
        time.sleep(4)
        show(neighbours, pod, is_ready=True,
             state={"running": {"startedAt": "2026-11-21T10:00:00Z"}})

    name, wrong = roll_while(neighbours, "unready", start, failure_grace=1, progress_deadline=30)

    assert wrong == []
    assert (neighbours.get(RC, name)["spec"]["template"]["spec"]["containers"][0]["image"]
            == "myimage:v2-unready")
