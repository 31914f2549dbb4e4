# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The only file that talks HTTP: requests with bounded retries, the three writes, and one watch on the controllers.

What the API server refuses is told apart here and never leaves this file: a write whose assumption does not hold returns
False (the driver looks again and plans again), everything else becomes a RolloutError. Sources for the rules: the API
conventions (Retry-After, 410, bookmarks), client-go's reflector (watch from the list's resourceVersion).
"""

from __future__ import annotations

import collections
import collections.abc
import concurrent.futures
import contextlib
import email.utils
import json
import queue
import random
import re
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..flows.deployment.simulated import SimulatedDeployments
from ..flows.migration.simulated import SimulatedMigration
from ..flows.stepped.simulated import SimulatedCluster, patched
from ..model import identity
from ..model.errors import RolloutError
from ..model.kinds import ROLLED, Kind
from ..model.observed import Controller, Pod, parse
from ..model.request import Request
from ..model.steps import AUTOSCALER, Create, Delete, HandOver, Patch, Write, keys, put
from .connection import Connection

Json = dict[str, t.Any]

#: Seconds to connect and to wait for an answer.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 10.0, 35.0
#: Seconds between two tries of a request; half of each is chance. About 25 s in all before a request is given up.
BACKOFF = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0)
#: The same as long as the server has never answered: then it is rather a wrong address than a restart.
FIRST_BACKOFF = BACKOFF[:3]
#: Seconds after which a request is not tried again, where each try waits long for its answer.
PATIENCE = 60.0
#: Seconds after an outage in which a refusal may mean that the API server is not yet ready: it answers before it has read
#: the Roles and the ServiceAccounts.
STARTING = 30.0
#: The longest Retry-After that is obeyed, in seconds.
LONGEST_RETRY_AFTER = 30.0
#: Seconds a watch lasts before it is opened again; a connection that is silent for longer than that is dead.
WATCH_SECONDS = 60
#: Seconds without an event after which the controllers are listed anew.
RELIST_SECONDS = 10
#: The same for pods and Events that are not watched.
LIST_AGAIN_SECONDS = 5
#: Objects of one page of a list.
PAGE = 500
#: Pods are handed over on that many connections at most; each is worth its handshake for so many pods.
HAND_OVER_CONNECTIONS, PODS_PER_CONNECTION = 16, 25
#: Seconds between two looks whether a long write may go on.
TURN = 0.2
#: Of a log, at most.
LOG_LINES, LOG_BYTES = 5, 4096

_JSON = "application/json"
_JSON_PATCH = "application/json-patch+json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_ONE_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: Unknown fields are an error there, as kubectl has it.
_DRY_RUN = "dryRun=All&fieldValidation=Strict"
_WITHOUT_LOCK = "see docs/permissions.md; lock=false works without Leases where no other task can be at work"
_RETRIED = {408, 429, 500, 502, 503, 504}
#: Where the API server has the kinds that an update depends on.
GROUPS = {"services": "/api/v1", "resourcequotas": "/api/v1", "nodes": "/api/v1", "poddisruptionbudgets": "/apis/policy/v1",
          "horizontalpodautoscalers": "/apis/autoscaling/v2", "controllerrevisions": "/apis/apps/v1", "pods": "/api/v1",
          **{kind.resource: f"/apis/{kind.api_version}" if kind.group else "/api/v1" for kind in Kind}}


class Gateway(t.Protocol):
    """What the driver needs of a cluster; KubernetesGateway is a real one, SimulatedGateway serves check mode."""

    def controllers(self) -> collections.abc.Mapping[str, Controller]:
        """The controllers of the request's kind in the namespace by name, as last heard of."""

    def replica_sets(self) -> collections.abc.Mapping[str, Controller]:
        """The ReplicaSets of the namespace by name, where the kind has its pods by them."""

    def look_up(self, name: str) -> None:
        """Make sure what is known of one controller is no older than this call."""

    def wait(self, seconds: float) -> t.Any:
        """Return when something may have changed, or after that time."""

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold any more."""

    def stored_template(self, request: Request, primary: Controller) -> Json:
        """The wanted template as the API server would store it, by a dry run."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Those of a controller's pods that are not ready, or were restarted."""

    def warnings(self) -> list[Json]:
        """What the cluster warns of in the namespace: Events."""

    def find(self, kind: str, name: str) -> Json | None:
        """An object of any kind, as it is now."""

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """All pods with those labels that have neither ended nor are about to, as they are now."""

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        """Let pods change their controller, and return how many have; it ends early where may_go_on() says no."""

    def refuse_hand_over(self, controller: Controller) -> None:
        """Raise RolloutError where a dry run tells that its pods may not get another controller."""

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """The last lines of a container's log; none where they cannot be had."""

    def rules(self) -> list[Json] | None:
        """What the user may do in the namespace; None when the server cannot tell all of it."""

    def objects(self, resource: str) -> list[Json] | None:
        """The first page of the objects of that kind in the namespace (nodes: of all); None where they may not be seen."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """The ControllerRevisions that keep what the controllers with these uids were; None where they may not be seen."""

    def record(self, event: Json) -> bool:
        """Create an Event; False when that is not possible, whatever the reason."""

    def lease(self, name: str) -> Json | None:
        """A Lease of the namespace."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace the version that it names; None when somebody was faster."""

    def drop_lease(self, lease: Json) -> None:
        """Delete that version of a Lease if that is possible at once."""

    def server_time(self) -> float:
        """Seconds since 1970 by the API server's clock, as far as it has told."""

    def why_absent(self, name: str) -> str:
        """What explains that there is no controller of that name: a Deployment that has it, a namespace that is not there."""


class _Refused(Exception):
    """An answer that is no success: status and the server's own Status object."""

    def __init__(self, method: str, path: str, status: int, body: bytes) -> None:
        try:
            answer = json.loads(body)
            self.details = answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}
        except ValueError:
            self.details = {}
        self.status = status
        self.request = f"{method} {path.partition('?')[0]}"
        self.reason = self.details.get("message") or body[:256].decode(errors="replace").strip() or f"status {status}"
        super().__init__(self.reason)

    def is_stale(self, write: Write) -> bool:
        """The object is not what the write assumed: a failed test, another uid, a name that is taken, or gone.

        422 is both a failed test and a manifest that makes no sense, or that somebody's policy denies; only the latter name
        causes, but for a webhook.
        """
        if self.status == 422:
            is_told = (self.details.get("details") or {}).get("causes") or "denied the request" in self.reason
            return isinstance(write, Patch) and not is_told
        return self.status == 409 or (self.status == 404 and not isinstance(write, Create))


class _AnswerLost(Exception):
    """A write was sent, and nobody knows whether it landed."""


class KubernetesGateway:
    """A real API server, seen through one namespace. Several threads may use it, of which one calls wait()."""

    def __init__(self, connection: Connection, namespace: str, kind: Kind = Kind.REPLICATION_CONTROLLER,
                 watches_pods: bool = True) -> None:
        """watches_pods: whether what explains a wait (pods, Events) is watched, or else listed again from time to time."""
        self._connection = connection
        self._namespace = namespace
        self.kind = kind
        self._path = kind.collection(namespace)
        self._watches_pods = watches_pods
        self._lock = threading.Lock()
        self._items: dict[str, Json] = {}
        #: The same, read once for each version.
        self._controllers: dict[str, Controller] = {}
        self._watch: _Watch | None = None
        self._pods: dict[str, _Followed] = {}
        self._warnings: _Followed | None = None
        self._has_answered = False
        self._unreachable_at = -STARTING
        self._base = f"/api/v1/namespaces/{namespace}"
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        #: Seconds that the API server's clock is ahead of this machine's.
        self._clock_difference = 0.0
        #: Requests sent, by method; for benchmarks and tests.
        self.requests: collections.Counter[str] = collections.Counter()
        #: A Deployment has its pods by these: the same for another kind.
        self._sets: KubernetesGateway | None = None
        if kind is Kind.DEPLOYMENT:
            self._sets = KubernetesGateway(connection, namespace, Kind.REPLICA_SET)
            self._sets.requests = self.requests

    def note_outage(self) -> None:
        """The API server could not be reached just now."""
        self._unreachable_at = time.monotonic()

    def close(self) -> None:
        for each in (self._watch, self._warnings, *self._pods.values()):
            if each:
                each.stop()
        if self._sets:
            self._sets.close()

    def controllers(self) -> dict[str, Controller]:
        if self._watch is None:
            self._list()
            self._watch = _Watch(self._connection, self._path, {}, self._resource_version)
            if self._sets:
                self._sets.controllers()  # before threads ask for them
        with self._lock:
            return dict(self._controllers)

    def replica_sets(self) -> dict[str, Controller]:
        return self._sets.controllers() if self._sets else {}

    def set_items(self) -> list[Json]:
        """The ReplicaSets as the API server shows them."""
        return self._sets.items() if self._sets else []

    def names(self, label_selectors: t.Sequence[str]) -> list[str]:
        """The names of the controllers that match all of those label selectors. Raises RolloutError."""
        query = {"labelSelector": ",".join(label_selectors)}
        try:
            return [item["metadata"]["name"] for item in self._pages(self._path, query, only_metadata=True)[0]]
        except _Refused as refused:
            raise self._error(refused, "") from refused

    def items(self) -> list[Json]:
        """The controllers as the API server shows them."""
        self.controllers()
        return list(self._items.values())

    def look_up(self, name: str) -> None:
        try:
            self._keep(self._send("GET", f"{self._path}/{name}"))
        except _Refused as refused:
            if refused.status != 404:
                raise self._error(refused, name) from refused
            self._forget(name)

    def wait(self, seconds: float) -> set[str] | None:
        """The names of what was heard of and of its partners; None when that may be anything."""
        watch = t.cast(_Watch, self._watch)
        heard: set[str] | None = set()
        watch.start(self)
        if time.monotonic() - self._listed_at > RELIST_SECONDS:
            # Nothing has come for a while. Perhaps nothing happens; perhaps something in between swallows the watch.
            known = self._versions()
            self._list()
            if self._versions() != known:
                heard = None
                watch.stop()
                watch = self._watch = _Watch(self._connection, self._path, {}, self._resource_version)
                watch.start(self)
        for event in watch.events(seconds):
            self._listed_at = time.monotonic()
            if event["type"] == "ERROR":
                # 410: the resourceVersion is too old. Whatever it is, the list says what there is now.
                self._list()
                watch.restart(self._resource_version)
                heard = None
                continue
            metadata = event["object"]["metadata"]
            if event["type"] == "DELETED":
                self._forget(metadata["name"], metadata["uid"])
            elif not self._keep(event["object"]):
                continue
            if heard is not None:
                heard |= {metadata["name"], (metadata.get("annotations") or {}).get(identity.PARTNER, "")}
        if self._sets:
            sets = self._sets.wait(0)
            heard = heard | self._owners(sets) if heard is not None and sets is not None else None
        return heard

    def _owners(self, sets: set[str]) -> set[str]:
        """The names of the Deployments of those ReplicaSets."""
        there = self.replica_sets()
        return {there[name].owner.partition("/")[2] for name in sets if name in there}

    def write(self, write: Write) -> bool:
        if write.kind != self.kind:
            return self._write_elsewhere(write)
        try:
            answer = self._send_write(self._path, write)
        except _Refused as refused:
            if not refused.is_stale(write):
                raise self._error(refused, write.name, write=write) from refused
            self.look_up(write.name)
            return False
        except _AnswerLost:
            return self._landed(write)
        if isinstance(write, Delete) and answer.get("kind") == "Status":
            self._forget(write.name)
        else:
            self._keep(answer)
        return True

    def _write_elsewhere(self, write: Patch | Create | Delete) -> bool:
        """A write of another kind than the controllers', which nobody watches."""
        try:
            self._send_write(self._collection(f"{write.kind.lower()}s"), write)
        except _Refused as refused:
            if not refused.is_stale(write):
                hint = "see docs/permissions.md" + (", or add autoscaler=ignore to the task" if write.kind == AUTOSCALER else "")
                raise self._error(refused, "", f"the {write.kind} {write.name} cannot be changed", hint) from refused
            return False
        except _AnswerLost:
            now = self.find(write.kind, write.name)
            return (now is None) == isinstance(write, Delete) and (now is None or not isinstance(write, Patch)
                                                                   or _has_landed(now, write))
        return True

    def _send_write(self, path: str, write: Patch | Create | Delete) -> Json:
        """Send it to the collection of its kind, and return the answer."""
        if isinstance(write, Create):
            return self._send("POST", path, write.manifest)
        if isinstance(write, Patch):
            return self._send("PATCH", f"{path}/{write.name}", list(write.operations), _JSON_PATCH)
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": write.preconditions}
        return self._send("DELETE", f"{path}/{write.name}", options)

    def find(self, kind: str, name: str) -> Json | None:
        """An object of any kind that is written, as it is now. Raises RolloutError."""
        try:
            return self._send("GET", f"{self._collection(f'{kind.lower()}s')}/{name}")
        except _Refused as refused:
            if refused.status == 404:
                return None
            raise self._error(refused, "") from refused

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """As above; those that a controller counts (FilterActivePods of the controller manager). Raises RolloutError."""
        query = {"labelSelector": _labels(selector), "fieldSelector": "status.phase!=Failed,status.phase!=Succeeded"}
        try:
            items = self._pages(f"{self._base}/pods", query, only_metadata=True)[0]
        except _Refused as refused:
            raise self._error(refused, "") from refused
        return tuple(Pod.from_api(it["metadata"]) for it in items if "deletionTimestamp" not in it["metadata"])

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        """As above, on as many connections as are worth their handshakes. Raises RolloutError."""
        todo, landed, has_to_end = collections.deque(write.patches()), [], threading.Event()

        def work() -> None:
            with contextlib.suppress(IndexError):  # none is left
                while not has_to_end.is_set():
                    landed.append(self._changes_owner(todo.popleft()))

        workers = min(HAND_OVER_CONNECTIONS, -(-len(todo) // PODS_PER_CONNECTION))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            working = {pool.submit(work) for _worker in range(workers)}
            try:
                while (left := concurrent.futures.wait(working, TURN, concurrent.futures.FIRST_EXCEPTION)).not_done:
                    if any(each.exception() for each in left.done) or not may_go_on():
                        break
            finally:
                has_to_end.set()
        for each in working:
            each.result()
        return sum(landed)

    def _changes_owner(self, patch: Patch) -> bool:
        """Patch a pod; False where it is gone or not as assumed, or the answer was lost: the next list tells."""
        try:
            self._patch_pod(patch, is_write=True)
        except _AnswerLost:
            return False
        except _Refused as refused:
            if refused.is_stale(patch):
                return False
            raise self._not_handed_over(refused, patch, "the same task, run again, goes on with the other pods") from refused
        return True

    def refuse_hand_over(self, controller: Controller) -> None:
        """As above, with the first pod that is listed: what a Role, an admission plugin or a policy has against it.

        An owner that does not exist stands for the next one. What a dry run cannot tell (a webhook that takes none, a pod that has
        just gone) is no reason to refuse.
        """
        query = urlencode({"labelSelector": _labels(controller.selector), "limit": 1})
        with contextlib.suppress(_Refused):
            items = self._send("GET", f"{self._base}/pods?{query}", accept=_METADATA).get("items") or []
            pods = tuple(pod for pod in (Pod.from_api(it["metadata"]) for it in items) if pod.owner == controller.uid)
            nobody = {**controller.reference, "uid": "00000000-0000-0000-0000-000000000000", "blockOwnerDeletion": True}
            for patch in HandOver(pods, controller.uid, nobody, {}).patches():
                try:
                    self._patch_pod(patch, is_write=False)
                except _Refused as refused:
                    if refused.status == 403 or refused.status == 422 and not refused.is_stale(patch):
                        raise self._not_handed_over(refused, patch, "nothing was changed") from refused

    def _patch_pod(self, patch: Patch, is_write: bool) -> None:
        path = f"{self._base}/pods/{patch.name}" + ("" if is_write else "?dryRun=All")
        self._send("PATCH", path, list(patch.operations), _JSON_PATCH, is_write=is_write, accept=_ONE_METADATA)

    def _not_handed_over(self, refused: _Refused, patch: Patch, state: str) -> RolloutError:
        if refused.status == 401 or refused.status in _RETRIED:
            return self._error(refused, "")
        return RolloutError(f"the pod {patch.name} may not get another controller ({refused.status})",
                            where=f"namespace {self._namespace}", why=refused.reason,
                            next_command=f"see docs/permissions.md, where the cluster demands more for that; {state}")

    def stored_template(self, request: Request, primary: Controller) -> Json:
        path = self._path
        try:
            if request.template is not None:
                patch = {"spec": {"template": request.template}}
                answer = self._send("PATCH", f"{path}/{primary.name}?{_DRY_RUN}", patch,
                                    "application/strategic-merge-patch+json", is_write=False)
            elif self.kind is Kind.DEPLOYMENT:
                answer = self._send("PATCH", f"{path}/{primary.name}?{_DRY_RUN}",
                                    [put("/spec/template", t.cast(Json, request.definition)["spec"]["template"])],
                                    _JSON_PATCH, is_write=False)
            else:
                definition = t.cast(Json, request.definition)
                kept = {field: definition["metadata"].get(field) or {} for field in ("labels", "annotations")}
                metadata = {"generateName": f"{primary.name[:200]}-", **kept}
                manifest = {"apiVersion": self.kind.api_version, "kind": self.kind, "metadata": metadata,
                            "spec": {**definition["spec"], "replicas": 0}}
                answer = self._send("POST", f"{path}?{_DRY_RUN}", manifest, is_write=False)
        except _Refused as refused:
            raise self._error(refused, request.name, "the wanted template is refused") from refused
        return answer["spec"]["template"]

    def troubled_pods(self, controller: Controller) -> list[Json]:
        selector = _labels(controller.selector)
        if selector not in self._pods:
            self._pods[selector] = _Followed(self, "pods", {"labelSelector": selector}, _is_troubled, self._watches_pods)
        return [pod for pod in self._pods[selector].items()
                if any(ref.get("uid") == controller.uid for ref in pod["metadata"].get("ownerReferences", ()))]

    def pods(self, controller: Controller) -> list[Json]:
        """The controller's own pods, at most PAGE of them; none where they may not be listed."""
        query = urlencode({"labelSelector": _labels(controller.selector), "limit": PAGE})
        try:
            items = self._send("GET", f"{self._base}/pods?{query}").get("items") or []
        except _Refused:
            return []
        return [pod for pod in items
                if any(ref.get("uid") == controller.uid for ref in pod["metadata"].get("ownerReferences", ()))]

    def warnings(self) -> list[Json]:
        if self._warnings is None:
            self._warnings = _Followed(self, "events", {"fieldSelector": "type=Warning"}, lambda event: True, self._watches_pods)
        return self._warnings.items()

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        query = urlencode({"container": container, "previous": str(previous).lower(), "tailLines": LOG_LINES,
                           "limitBytes": LOG_BYTES})
        try:
            status, _headers, data = self._once("GET", f"{self._base}/pods/{pod}/log?{query}", None, _JSON, "*/*")
        except (_Unreachable, RolloutError):
            return []  # it would only explain; not being allowed to see it is no reason to hide the error itself
        return data.decode(errors="replace").splitlines() if status == 200 else []

    def rules(self) -> list[Json] | None:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": self._namespace}}
        try:
            status = self._send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, is_write=False)["status"]
        except _Refused:
            return None
        return None if status.get("incomplete") else status.get("resourceRules") or []

    def _collection(self, resource: str) -> str:
        return GROUPS[resource] + ("" if resource == "nodes" else f"/namespaces/{self._namespace}") + f"/{resource}"

    def objects(self, resource: str) -> list[Json] | None:
        try:
            return self._send("GET", f"{self._collection(resource)}?limit={PAGE}").get("items") or []
        except _Refused as refused:
            if refused.status in _RETRIED:  # nothing else will be answered either: not as long again for each kind
                raise self._error(refused, "") from refused
            return None

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """As above; those of all controllers where no uid is given. Raises RolloutError."""
        selector = f"{identity.HISTORY} in ({','.join(uids)})" if uids else identity.HISTORY
        try:
            return self._pages(self._collection("controllerrevisions"), {"labelSelector": selector})[0]
        except _Refused as refused:
            if refused.status in _RETRIED:
                raise self._error(refused, "") from refused
            return None

    def record(self, event: Json) -> bool:
        try:
            return self._once("POST", f"{self._base}/events", event, _JSON, _JSON)[0] < 300
        except (_Unreachable, RolloutError):
            return False

    def lease(self, name: str) -> Json | None:
        try:
            return self._send("GET", f"{self._leases}/{name}")
        except _Refused as refused:
            if refused.status == 404:
                return None
            raise self._error(refused, "", next_command=_WITHOUT_LOCK) from refused

    def put_lease(self, lease: Json) -> Json | None:
        name, version = lease["metadata"]["name"], lease["metadata"].get("resourceVersion")
        try:
            if version:
                return self._send("PUT", f"{self._leases}/{name}", lease)
            return self._send("POST", self._leases, lease)
        except _AnswerLost:
            there = self.lease(name)
            return there if there and there["metadata"].get("annotations") == lease["metadata"]["annotations"] else None
        except _Refused as refused:
            if refused.status == 409 or (refused.status == 404 and version):
                return None
            raise self._error(refused, "", next_command=_WITHOUT_LOCK) from refused

    def drop_lease(self, lease: Json) -> None:
        metadata = lease["metadata"]
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": {field: metadata[field] for field in ("uid", "resourceVersion")}}
        with contextlib.suppress(_Unreachable, RolloutError):
            self._once("DELETE", f"{self._leases}/{metadata['name']}", options, _JSON, _JSON)

    def server_time(self) -> float:
        return time.time() + self._clock_difference

    def why_absent(self, name: str) -> str:
        def status(path: str) -> int:
            try:
                self._send("GET", path)
            except _Refused as refused:
                return refused.status
            return 200

        others = {kind: kind.collection(self._namespace) for kind in Kind if kind is not self.kind} | {
            kind: f"/apis/apps/v1/namespaces/{self._namespace}/{kind.lower()}s" for kind in ("StatefulSet", "DaemonSet")}
        found = [f"a {kind} {name}" + (f": kind={kind}" if kind in ROLLED else "")
                 for kind, path in others.items() if status(f"{path}/{name}") == 200]
        if found:
            return f"there is {' and '.join(found)}"
        absent = status(f"/api/v1/namespaces/{self._namespace}") == 404
        return f"there is no namespace {self._namespace}" if absent else ""

    # One request

    def _send(self, method: str, path: str, body: t.Any = None, content_type: str = _JSON,
              is_write: bool | None = None, accept: str = _JSON) -> Json:
        """Send a request, again and again where that is safe, and return the answer.

        Raises _Refused, _AnswerLost (a write that may have landed), or RolloutError when the server cannot be reached.
        """
        is_write = method != "GET" if is_write is None else is_write
        renewed, asked_to_wait, began = False, 0.0, time.monotonic()
        for pause in (*(BACKOFF if self._has_answered else FIRST_BACKOFF), None):
            if time.monotonic() - began > PATIENCE:
                pause = None
            credentials = self._connection.generation
            try:
                status, headers, data = self._once(method, path, body, content_type, accept)
            except _Unreachable as failure:
                self.note_outage()
                if failure.was_sent and is_write:
                    raise _AnswerLost from failure
                if pause is None:
                    raise RolloutError(f"the API server at {self._connection.server} cannot be reached",
                                       why=str(failure), next_command="run the same task again when it is back") from failure
            else:
                if status < 300:
                    try:
                        answer = json.loads(data)
                    except ValueError as error:
                        if is_write:
                            raise _AnswerLost from error
                        status = 500  # an answer that was cut: as good as none
                    else:
                        if isinstance(answer, dict) and "kind" in answer:
                            return answer
                        raise RolloutError(f"what answers at {self._connection.server} is no Kubernetes API server")
                if status == 401 and not renewed:
                    renewed = True
                    self._connection.renew(credentials)
                    continue
                is_starting = status in (401, 403) and time.monotonic() - self._unreachable_at < STARTING
                if not (status in _RETRIED or is_starting) or pause is None:
                    raise _Refused(method, path, status, data)
                if status == 504 and is_write:
                    raise _AnswerLost
                asked_to_wait = _retry_after(headers)
            time.sleep(max(pause * random.uniform(0.5, 1.0), asked_to_wait))
        raise RolloutError(f"{method} {path.partition('?')[0]} was given up after {len(BACKOFF) + 1} tries")

    def _once(self, method: str, path: str, body: t.Any, content_type: str, accept: str) -> tuple[int, t.Any, bytes]:
        import urllib3

        headers = self._connection.headers()
        headers["Accept"] = accept
        if body is not None:
            headers["Content-Type"] = content_type
        with self._lock:
            self.requests[method] += 1
        try:
            answer = self._connection.pool.request(
                method, self._connection.server + path, body=None if body is None else _encoded(body), headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=ANSWER_TIMEOUT), retries=False, redirect=False)
        except urllib3.exceptions.LocationValueError as error:
            raise RolloutError(f"{self._connection.server} is no address of an API server", why=_brief(error)) from error
        except urllib3.exceptions.SSLError as error:
            raise RolloutError(f"the certificate of {self._connection.server} is not accepted", why=_brief(error),
                               next_command="give ca_cert, or look at validate_certs") from error
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError,
                urllib3.exceptions.ProxyError) as error:
            raise _Unreachable(_brief(error), was_sent=False) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Unreachable(_brief(error), was_sent=True) from error
        except ValueError as error:
            raise RolloutError(f"{self._connection.server} is no address of an API server", why=_brief(error)) from error
        self._has_answered = True
        with contextlib.suppress(TypeError, ValueError):  # no date, or none that can be read
            self._clock_difference = email.utils.parsedate_to_datetime(answer.headers.get("Date")).timestamp() - time.time()
        return answer.status, answer.headers, answer.data

    # What is there

    def _list(self) -> None:
        try:
            items, self._resource_version = self._pages(self._path, {})
        except _Refused as refused:
            raise self._error(refused, "") from refused
        self._listed_at = time.monotonic()
        known = {item["metadata"]["name"]: item for item in items}
        with self._lock:
            self._items, self._controllers = known, {name: parse(self.kind, item) for name, item in known.items()}

    def _versions(self) -> dict[str, str]:
        return {name: item["metadata"]["resourceVersion"] for name, item in self._items.items()}

    def _pages(self, path: str, query: Json, only_metadata: bool = False) -> tuple[list[Json], str]:
        """All objects of a kind, a limited number at a time, and the resourceVersion that a watch can go on from."""
        items: list[Json] = []
        query = {**query, "limit": PAGE}
        while True:
            page = self._send("GET", f"{path}?{urlencode(query)}", accept=_METADATA if only_metadata else _JSON)
            items += page.get("items") or []  # an empty list of metadata alone is a null
            query["continue"] = page["metadata"].get("continue")
            if not query["continue"]:
                return items, page["metadata"]["resourceVersion"]

    def _landed(self, write: Write) -> bool:
        """Whether a write whose answer was lost has taken effect: looked up, never sent blindly again."""
        before = self._items.get(write.name)
        self.look_up(write.name)
        now = self._items.get(write.name)
        if isinstance(write, Delete):
            return now is None or now["metadata"]["uid"] != write.preconditions["uid"] or (
                "deletionTimestamp" in now["metadata"])
        if now is None:
            return False
        if isinstance(write, Create):
            marks = write.manifest["metadata"]["annotations"]
            return before is None and marks.items() <= (now["metadata"].get("annotations") or {}).items()
        return _has_landed(now, write)

    def _keep(self, item: Json) -> bool:
        """Remember an object unless it is known, or a newer one is: answers and the watch overtake each other.

        resourceVersions of one resource are ordered numbers (API conventions; comparable since Kubernetes 1.35, and in
        practice with etcd ever since).
        """
        name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
        with self._lock:
            known = self._items.get(name, {}).get("metadata", {}).get("resourceVersion", "0")
            is_news = not (known.isdigit() and version.isdigit()) or int(version) > int(known)
            if is_news:
                self._items[name], self._controllers[name] = item, parse(self.kind, item)
            return is_news

    def _forget(self, name: str, uid: str | None = None) -> None:
        """It is gone; where a uid is given, unless another of that name is known already."""
        with self._lock:
            if name in self._controllers and uid in (None, self._controllers[name].uid):
                del self._items[name], self._controllers[name]

    def _error(self, refused: _Refused, name: str, what: str = "", next_command: str = "",
               write: Write | None = None) -> RolloutError:
        where = f"{self.kind} {self._namespace}/{name}" if name else f"namespace {self._namespace}"
        if refused.status == 401:
            return RolloutError("the API server does not accept the credentials (401)", where=self._connection.server,
                                why=refused.reason, next_command="renew the token, or check api_key and kubeconfig")
        is_admitted = write or what  # what goes through admission may be refused by a policy, a webhook or a quota as well
        if refused.status == 403 and (not is_admitted or re.search('User ".*" cannot ', refused.reason)):
            return RolloutError("permission denied (403)", where=where, why=refused.reason,
                                next_command=next_command
                                or "ask for that verb and resource in a Role of this namespace (see docs/permissions.md)")
        if refused.status in _RETRIED:
            next_command = next_command or "run the same task again when the API server is well"
        elif write:
            what = f"{_deed(write)} was refused ({refused.status})"
            next_command = "see to what refuses it, then run the same task again"
        return RolloutError(what or f"the API server refused {refused.request} ({refused.status})", where=where,
                            why=refused.reason, next_command=next_command)


class _Unreachable(Exception):
    def __init__(self, reason: str, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class _Watch:
    """Objects of the namespace as a stream of events, read by a thread of its own so that every wait can end."""

    def __init__(self, connection: Connection, path: str, query: Json, resource_version: str) -> None:
        self._connection, self._path, self._query = connection, path, query
        self._version = resource_version
        self._queue: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._resume = threading.Event()

    def start(self, gateway: KubernetesGateway) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, args=(gateway,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._resume.set()

    def restart(self, resource_version: str) -> None:
        """Go on from a new list."""
        self._version = resource_version
        self._resume.set()

    def events(self, seconds: float) -> t.Iterator[Json]:
        """What has come in; waits up to that time for the first."""
        try:
            yield self._queue.get(timeout=max(seconds, 0))
            while True:
                yield self._queue.get_nowait()
        except queue.Empty:
            return

    def _read(self, gateway: KubernetesGateway) -> None:
        import urllib3

        failures = 0
        while not self._stopped.is_set():
            query = urlencode({**self._query, "watch": "1", "allowWatchBookmarks": "1", "resourceVersion": self._version,
                               "timeoutSeconds": WATCH_SECONDS})
            try:
                gateway.requests["WATCH"] += 1
                answer = self._connection.pool.request(
                    "GET", f"{self._connection.server}{self._path}?{query}", headers=self._connection.headers(),
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=WATCH_SECONDS + 5), retries=False,
                    redirect=False, preload_content=False)
                if answer.status == 200:
                    failures = 0 if self._follow(answer) else failures + 1
                else:
                    answer.drain_conn()
                    self._ask_for_a_list({"code": answer.status})
                    failures += 1
            except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError, RolloutError):
                failures += 1  # KeyError and TypeError: what came is no event
                gateway.note_outage()
            if failures:
                self._stopped.wait(BACKOFF[min(failures, len(BACKOFF)) - 1] * random.uniform(0.5, 1.0))

    def _follow(self, answer: t.Any) -> bool:
        """Queue the events of one answer; a line that is cut ends it, and the next watch brings that event whole.

        Returns whether anything came, or the watch has simply reached its time.
        """
        rest, began, came = b"", time.monotonic(), False
        for chunk in answer.stream(65536, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._ask_for_a_list(event["object"])
                    return came
                self._version = event["object"]["metadata"]["resourceVersion"]
                came = True
                if event["type"] != "BOOKMARK":
                    self._queue.put(event)
            if self._stopped.is_set():
                break
        return came or time.monotonic() - began > WATCH_SECONDS / 2

    def _ask_for_a_list(self, status: Json) -> None:
        """Let the driver's thread list again: the requests of a list are retried and reported there."""
        self._resume.clear()
        self._queue.put({"type": "ERROR", "object": status})
        self._resume.wait(WATCH_SECONDS)


class _Followed:
    """Objects that only explain a wait: listed, then watched or listed again. What may not be seen counts as not there."""

    def __init__(self, gateway: KubernetesGateway, resource: str, query: Json, is_of_interest: t.Callable[[Json], bool],
                 watches: bool) -> None:
        self.query = query
        self._gateway, self._path, self._is_of_interest = gateway, f"{gateway._base}/{resource}", is_of_interest
        self._lock = threading.Lock()
        self._items: dict[str, Json] = {}
        self._watch: _Watch | None = None
        version = self._list()
        self._lists_again = bool(version) and not watches
        if version and watches:
            self._watch = _Watch(gateway._connection, self._path, query, version)
            self._watch.start(gateway)

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def items(self) -> list[Json]:
        with self._lock:
            if self._lists_again and time.monotonic() - self._listed_at > LIST_AGAIN_SECONDS:
                self._list()
            for event in self._watch.events(0) if self._watch else ():
                if event["type"] == "ERROR":
                    self._watch.restart(self._list())
                else:
                    self._take(event["object"], event["type"] == "DELETED")
            return list(self._items.values())

    def _list(self) -> str:
        """The first page; the resourceVersion to watch from, "" where it is refused."""
        self._listed_at = time.monotonic()
        try:
            page = self._gateway._send("GET", f"{self._path}?{urlencode({**self.query, 'limit': PAGE})}")
        except _Refused:
            return ""
        self._items = {}
        for item in page.get("items") or []:
            self._take(item, is_gone=False)
        return page["metadata"]["resourceVersion"]

    def _take(self, item: Json, is_gone: bool) -> None:
        uid = item["metadata"]["uid"]
        self._items.pop(uid, None)
        if not is_gone and self._is_of_interest(item):
            self._items[uid] = item
            if len(self._items) > PAGE:
                del self._items[next(iter(self._items))]


class Alone:
    """The part of a Gateway that a cluster has where nobody else is at work, everything is allowed, and no pod is in trouble."""

    kind = Kind.REPLICATION_CONTROLLER

    def rules(self) -> list[Json] | None:
        return None

    def replica_sets(self) -> dict[str, Controller]:
        return {}

    def objects(self, resource: str) -> list[Json] | None:
        return []

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return None

    def record(self, event: Json) -> bool:
        return True

    def lease(self, name: str) -> Json | None:
        return None

    def put_lease(self, lease: Json) -> Json | None:
        return {**lease, "metadata": {**lease["metadata"], "uid": "", "resourceVersion": "1"}}

    def drop_lease(self, lease: Json) -> None:
        return

    def server_time(self) -> float:
        return 0.0

    def find(self, kind: str, name: str) -> Json | None:
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return ()

    def refuse_hand_over(self, controller: Controller) -> None:
        return

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return []

    def warnings(self) -> list[Json]:
        return []

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        return []


class SimulatedGateway(Alone):
    """Check mode: the real cluster as it was, in memory. Dry runs still ask the real one; nothing is written."""

    def __init__(self, real: KubernetesGateway, let_pass: t.Callable[[float], None], is_migration: bool = False) -> None:
        self._let_pass = let_pass
        self._cluster: SimulatedCluster | SimulatedDeployments | SimulatedMigration
        if is_migration:
            self._cluster = SimulatedMigration(real.items(), real.find, real.live_pods)
            self.find = self._cluster.find  # type: ignore[method-assign]
        elif real.kind is Kind.DEPLOYMENT:
            self._cluster = SimulatedDeployments(real.items(), real.set_items())
            self.replica_sets = self._cluster.replica_sets  # type: ignore[method-assign]
        else:
            self._cluster = SimulatedCluster(real.items(), real.kind)
        if not isinstance(self._cluster, SimulatedDeployments):
            self.live_pods = self._cluster.live_pods  # type: ignore[method-assign]
        self.controllers = self._cluster.controllers
        self.stored_template = real.stored_template
        self._real = real
        self._changed: dict[str, Json] = {}
        self._knows_revisions = False
        self.why_absent = real.why_absent

    def objects(self, resource: str) -> list[Json] | None:
        objects = self._real.objects(resource)
        return objects and [self._changed.get(it["metadata"]["uid"], it) for it in objects]

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        if not isinstance(self._cluster, SimulatedCluster):
            return None
        if not self._knows_revisions:
            there = [it["metadata"]["uid"] for it in self._real.items() if it["metadata"]["uid"] in uids]
            found = self._real.revisions(there) if there else []
            if found is None:
                return None
            self._cluster.revisions, self._knows_revisions = {it["metadata"]["name"]: it for it in found}, True
        return list(self._cluster.revisions.values())

    def write(self, write: Write) -> bool:
        if isinstance(write, Patch) and write.kind == AUTOSCALER:
            found = next(it for it in self.objects("horizontalpodautoscalers") or () if it["metadata"]["name"] == write.name)
            self._changed[found["metadata"]["uid"]] = patched(found, write)
            return True
        return self._cluster.write(write)

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        return len(write.pods) if self._cluster.write(write) else 0

    def look_up(self, name: str) -> None:
        return

    def wait(self, seconds: float) -> None:
        if not self._cluster.moves():
            self._let_pass(seconds)  # nothing will ever change: the driver's deadline is to come
        self._cluster.settle()


def _is_troubled(pod: Json) -> bool:
    status = pod.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    restarted = any(each.get("restartCount") for each in status.get("containerStatuses") or ())
    return not ready or restarted or "deletionTimestamp" in pod["metadata"]


def _deed(write: Patch | Create | Delete) -> str:
    """What a write does, for the error that it is refused."""
    if isinstance(write, Create):
        return "its creation"
    if isinstance(write, Delete):
        return "its deletion"
    paths = {operation["path"] for operation in write.operations if operation["op"] != "test"}
    deeds = {"/spec/template": "the change of its template", "/spec/selector": "the change of its selector",
             "/spec/replicas": "the change of its size", "/spec/template/spec/priorityClassName": "the opening of its template",
             "/spec/strategy": "the change of its strategy"}
    return next((deed for path, deed in deeds.items() if path in paths), "the change of its annotations")


def _encoded(body: t.Any) -> str:
    """JSON as the API server writes it itself, without spaces: it takes other bytes in a ControllerRevision for other data."""
    return json.dumps(body, separators=(",", ":"))


def _labels(selector: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in selector.items())


def _retry_after(headers: t.Any) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), LONGEST_RETRY_AFTER) if value.isdigit() else 0.0


def _has_landed(item: Json, patch: Patch) -> bool:
    return all(_holds(item, operation) for operation in patch.operations if operation["op"] != "test")


def _holds(item: t.Any, operation: Json) -> bool:
    """Whether what an operation of a patch was to bring about is so; what the server adds by itself does not matter."""
    for key in keys(operation["path"]):
        item = (item or {}).get(key)
    if operation["op"] == "remove":
        return item is None
    wanted = operation["value"]
    return wanted.items() <= (item or {}).items() if isinstance(wanted, dict) else item == wanted


def _brief(error: BaseException) -> str:
    """The innermost reason: urllib3 wraps it in the address of a Python object."""
    while getattr(error, "reason", None) and isinstance(error.reason, BaseException):
        error = error.reason
    text = " ".join(str(error).split())
    return text.rpartition(">: ")[2][:300] or type(error).__name__
