# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a random release with events, and assert the guarantees of docs/concepts/release.md."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import os
import random
import re
import signal
import tempfile
import typing as t
from pathlib import Path

import gateway_api
import yaml
from namespace import Namespace
from objects import eventually, manifest, role_rules
from plays import CheckServer, Playbooks
from proc import descendants

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Events during a check: its outcome, a kill of the playbook, or an action of another client.
EVENTS = ("passes", "passes", "passes", "fails", "kill", "delete", "scale", "hold_lease", "finish",
          "undo")
KEEP_OLD_KINDS = ("ReplicationController", "ReplicaSet", "Deployment")
SHARES = ("0%", "1%", "10%", "50%")
V1, V2 = "myimage:v1", "myimage:v2"
#: An image whose containers crash.
BROKEN = "myimage:v2-crash"
UNREACHABLE = "https://127.0.0.1:1"
MAX_RUNS = 6
MAX_SECONDS = 300

Json = dict[str, t.Any]


class EventServer(CheckServer):
    """A server that triggers the next event when a check of the playbook calls it."""

    def __init__(self, release: Release) -> None:
        super().__init__()
        self.release, self.actions = release, dict.fromkeys(release.stages, self.trigger_next_event)

    def trigger_next_event(self) -> None:
        event, name = self.release.events.pop(0) if self.release.events else ("passes", "")
        self.failing_stages = set(self.release.stages) if event == "fails" else set()
        self.release.check_old_pods()
        self.release.trigger(event, name)


class Release:
    def __init__(self, seed: int, kubeconfig: str) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        rng = self.random
        self.kind = rng.choice(KINDS)
        self.hosts = ([f"h{number}" for number in range(rng.choice((2, 3)))] if seed % 4 == 0
                      else ["localhost"])
        self.names = {host: [f"{host}-{letter}" for letter in "abc"[:rng.choice((1, 1, 2, 3))]]
                      for host in self.hosts}
        # For a single controller, the option kind may be left out.
        self.is_single = self.hosts == ["localhost"] and len(self.names["localhost"]) == 1
        self.replicas = rng.choice((1, 2, 4))
        self.stages = sorted(rng.sample(["25%", "50%", "75%", "100%"], rng.randint(1, 3)),
                             key=lambda stage: int(stage[:-1]))
        self.request: Json = {
            "kind": "" if self.is_single and rng.random() < 0.5 else self.kind, "image": V2,
            "stages": self.stages,
            "verify_tasks": rng.choice((["check.yml"], ["check.yml"], [])),
            "after_tasks": ["write_report_data.yml"],
            "failure_tasks": ["write_report_data.yml"],
            "on_failure": rng.choice(("rollback", "rollback", "stop")),
            "concurrency": rng.choice((1, 5)),
            "max_failures": rng.choice(("0", "100%")), "lock_timeout": 0, "progress_deadline": 60,
            "approve_within": "1s" if self.stages[-1] != "100%" and rng.random() < 0.5 else ""}
        all_names = [name for names in self.names.values() for name in names]
        self.events = [(rng.choice(EVENTS), rng.choice(all_names))
                       for _check in range(rng.randint(0, 6))]
        self.all_events = list(self.events)
        self.kubeconfig, self.output, self.process = kubeconfig, "", None
        self.changed_by_others: set[str] = set()
        #: The controllers that another client has rolled back. A killed release forgets them.
        self.undone: set[str] = set()
        self.hash_seed = str(rng.randrange(1, 2**32))
        self.request["image"] = rng.choice((V2, V2, V2, V2, V2, BROKEN))
        # A DaemonSet with a surge cannot pause.
        if self.kind == "DaemonSet" and rng.random() < 0.5:
            self.stages = ["100%"]
            self.request |= {"max_surge": "1", "max_unavailable": "0", "stages": self.stages,
                             "verify_tasks": [], "approve_within": ""}
        self.unreachable_host = (rng.choice(self.hosts) if len(self.hosts) > 1
                                 and rng.random() < 0.4 else "")
        self.violations: list[str] = []
        self.splits_requests = (self.is_single and self.stages != ["100%"]) and rng.random() < 0.7
        self.keeps_old = (self.is_single and self.kind in KEEP_OLD_KINDS) and rng.random() < 0.5
        if self.splits_requests or self.keeps_old:
            self._draw_split_and_keep_old()

    def _draw_split_and_keep_old(self) -> None:
        rng, self.replicas = self.random, 4
        self.request["kind"] = self.kind
        self.request["route"] = "edge" if self.splits_requests else ""
        if self.keeps_old:
            is_complete = self.stages[-1] == "100%"
            self.request |= {"keep_old": True, "keep_old_for": (
                rng.choice(("", "1s")) if is_complete else "")}
        if self.splits_requests:
            self.request["stages"] = [
                f"{stage}/{rng.choice(SHARES)}"
                if rng.random() < 0.8 and (self.keeps_old or stage != "100%") else stage
                for stage in self.stages]
            self.events = [("edit", name) if rng.random() < 0.2 else (event, name)
                           for event, name in self.events]
            self.all_events = list(self.events)

    def __str__(self) -> str:
        return json.dumps({"seed": self.seed, "hosts": self.names, "request": self.request,
                           "events": self.all_events,
                           "unreachable": self.unreachable_host, "PYTHONHASHSEED": self.hash_seed},
                          indent=1) + "\n" + self.output

    def __enter__(self) -> Release:
        self.stack = contextlib.ExitStack()
        folder = Path(self.stack.enter_context(
            tempfile.TemporaryDirectory(prefix="baton-release-")))
        self.namespace = Namespace(self.kubeconfig, f"release-{self.seed}")
        self.stack.callback(self.namespace.delete)
        for name in ("baton-stateful-sets", "baton-daemon-sets"):
            self.namespace.allow(role_rules(name), name)
        if self.kind == "DaemonSet":
            self.namespace.add_nodes(self.replicas)
            self.stack.callback(self.namespace.remove_nodes)
        for name in [*(name for names in self.names.values() for name in names), "bystander"]:
            self._make(name)
        if self.splits_requests:
            self._make_route()
        self.check_server = self.stack.enter_context(EventServer(self))
        environment = {key: value
                       for key, value in os.environ.items()
                       if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
        environment |= {"ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv" / "collections"),
                        "ANSIBLE_HOME": str(folder / "ansible"),
                        "ANSIBLE_LOCALHOST_WARNING": "false",
                        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
                        "K8S_AUTH_KUBECONFIG": self.namespace.kubeconfig,
                        "PYTHONHASHSEED": self.hash_seed,
                        "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        self.playbooks = Playbooks(environment, folder, self.check_server)
        self.playbooks.default_variables = {"controller_namespace": self.namespace.name}
        self.playbooks.write("check.yml", [{"name": "Check", "ansible.builtin.uri": {
            "url": self.check_server.url + "{{ image_bump_stage | urlencode }}"}}])
        self.playbooks.write(
            "write_report_data.yml",
            [
                {
                    "name": "Write the data of the report",
                    "ansible.builtin.copy": {
                        "content": "{{ image_bump_report_data | to_json }}",
                        "dest": str(folder / "report_data-{{ inventory_hostname }}.json"),
                        "mode": "0600",
                    },
                }
            ],
        )
        config = yaml.safe_load(Path(self.namespace.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"]["server"] = UNREACHABLE
        unreachable_kubeconfig = folder / "unreachable.yml"
        unreachable_kubeconfig.write_text(yaml.safe_dump(config), "utf-8")
        hosts = {host: {"kubeconfig": str(unreachable_kubeconfig) if host == self.unreachable_host
                        else self.namespace.kubeconfig,
                        "names": names} for host, names in self.names.items()}
        self.regions = {"first": self.hosts[:1], "second": self.hosts}  # the first host is in both
        self.playbooks.write("clusters.yml", {"all": {"children": {
            region: {"hosts": {host: hosts[host] for host in members}}
            for region, members in self.regions.items()}}})
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def _make(self, name: str) -> None:
        if self.kind == "DaemonSet":
            self.namespace.make_daemon_set(self.replicas, name=name)
            return
        fields = {"serviceName": name} if self.kind == "StatefulSet" else {}
        self.namespace.create_controller(self.kind, manifest(self.replicas, V1, name), **fields)
        eventually(lambda: len(self.images(name)) == self.replicas,
                   f"{self.replicas} pods of {name}", seconds=60)

    def _make_route(self) -> None:
        gateway_api.install(self.namespace)
        self.namespace.allow(role_rules("baton-traffic"), "baton-traffic")
        (name,) = self.names["localhost"]
        self.namespace.create("services", {"metadata": {"name": name}, "spec": {
            "selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}})
        self.rule: Json = {"backendRefs": [{"name": name, "port": 80, "weight": 3}]}
        self.namespace.call("POST", gateway_api.route_path(self.namespace), {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "edge"},
            "spec": {"parentRefs": [{"name": "gateway"}], "rules": [self.rule]}})

    def images(self, name: str) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.namespace.pods()
                if pod["metadata"]["labels"]["app"] == name]

    # Events

    def check_old_pods(self) -> None:
        for name in self.names["localhost"] if self.keeps_old else ():
            old_count = self.images(name).count(V1)
            if old_count < self.replicas and name not in self.changed_by_others:
                self.violations.append(f"only {old_count} old pods at a check, despite keep_old")

    def trigger(self, event: str, name: str) -> None:
        self.counts[f"event: {event}"] += 1
        if event == "kill":
            self.undone.clear()
            for pid in descendants(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif event == "edit":
            self._edit_route()
        elif event in ("delete", "finish", "undo", "scale", "hold_lease"):
            self.changed_by_others.add(name)
            self.undone.discard(name)
            with contextlib.suppress(RolloutError):  # there may be no update in progress
                getattr(self, f"_{event}")(name)

    def _path(self, name: str) -> str:
        group = "/api/v1" if self.kind == "ReplicationController" else "/apis/apps/v1"
        return f"{group}/namespaces/{self.namespace.name}/{self.kind.lower()}s/{name}"

    def _template(self, name: str) -> Json:
        return self.namespace.call("GET", self._path(name))["spec"]["template"]

    def _delete(self, name: str) -> None:
        with contextlib.suppress(Exception):  # the controller may be gone
            self.namespace.call("DELETE", self._path(name), {"propagationPolicy": "Background"})

    def _edit_route(self) -> None:
        path = gateway_api.route_path(self.namespace, "edge")
        self.rule["timeouts"] = {"request": f"{self.random.randint(5, 50)}s"}
        rules = self.namespace.call("GET", path)["spec"]["rules"]
        self.namespace.call("PATCH", path, {"spec": {"rules": [
            {**rule, "timeouts": self.rule["timeouts"]} for rule in rules]}},
            "application/merge-patch+json")

    def _finish(self, name: str) -> None:
        self.namespace.roll(name=name, kind=self.kind, image=V2)

    def _undo(self, name: str) -> None:
        if self.namespace.roll(name=name, kind=self.kind, state="rolled_back")["changed"]:
            self.undone.add(name)

    def _scale(self, name: str) -> None:
        if self.kind != "DaemonSet":
            with contextlib.suppress(Exception):  # the controller may be gone
                patch = {"spec": {"replicas": self.replicas + 1}}
                self.namespace.call("PATCH", self._path(name), patch,
                                    "application/merge-patch+json")

    def _hold_lease(self, name: str) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = {"metadata": {"name": f"baton-kubernetes.{self.kind.lower()}.{name}"}, "spec": {
            "holderIdentity": "ada@elsewhere", "leaseDurationSeconds": 15, "acquireTime": now,
            "renewTime": now}}
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace.name}/leases"
        with contextlib.suppress(Exception):  # the task may hold the Lease
            self.namespace.call("POST", path, lease)

    # The release

    def run(self) -> None:
        self.counts["releases"] += 1
        if self.hosts != ["localhost"]:
            self.counts["over several clusters"] += 1
        if self.unreachable_host:
            self.counts["one cluster unreachable"] += 1
        if self.request["image"] == BROKEN:
            self.counts["an image that never works"] += 1
        if "max_surge" in self.request:
            self.counts["a DaemonSet with a surge"] += 1
        self.counts["with a split of the requests"] += self.splits_requests
        self.counts["with keep_old"] += self.keeps_old
        template = self._template("bystander")
        stats = self._roll()
        assert self._template("bystander") == template
        assert not self.violations, self.violations
        results = {host: stats.get("clusters", {}).get(host) if len(self.hosts) > 1 else stats
                   for host in self.hosts}
        for host, result in results.items():
            if result:
                self._assert_outcome(host, result)
        if len(self.hosts) > 1:
            self._assert_regions(results)
        if (self.request["verify_tasks"] and self.request["image"] != BROKEN
                and self.hosts[0] != self.unreachable_host):
            assert len(self.events) < len(self.all_events) or not self.all_events, (
                "no check has run")
        if (self.hosts == ["localhost"] and not self.changed_by_others
                and results["localhost"]["outcome"] == "updated"):
            self._assert_rerun_and_rollback(results["localhost"])

    def _roll(self, **changes: t.Any) -> Json:
        """Run the playbook until it ends by itself, and return the custom stats of the last run."""
        variables = self.request | changes
        playbook, options = (("image_bump", []) if self.hosts == ["localhost"]
                             else ("regions", ["-i", "clusters.yml"]))
        if playbook == "image_bump":
            names = self.names["localhost"]
            variables |= ({"controller": names[0]} if self.is_single
                          else {"controller": "", "names": names})
        else:
            variables |= {"controller": "", "regions": list(self.regions)}
        for _run in range(MAX_RUNS):
            self.process = self.playbooks.start(playbook, *options, **variables)
            output, _none = self.process.communicate(timeout=MAX_SECONDS)
            self.output += output
            if "PLAY RECAP" in output:
                result = re.search(r"RUN: (.*)", output, re.DOTALL)
                return json.JSONDecoder().raw_decode(result.group(1))[0] if result else {}
            assert self.process.returncode == -9, "the playbook has ended without a recap"
        raise AssertionError("the release does not end")

    # Guarantees

    def _assert_outcome(self, host: str, result: Json) -> None:
        outcome, message = result["outcome"], result["msg"]
        if host == self.unreachable_host or (self.request["image"] == BROKEN
                                             and not self.changed_by_others):
            assert outcome not in ("updated", "paused"), (host, outcome)
        self.counts[f"outcome: {outcome}"] += 1
        data = json.loads((self.playbooks.folder / f"report_data-{host}.json").read_text())
        assert (data["outcome"], data["message"]) == (outcome, message)
        pauses = [stage for stage in self.stages
                  if self.request["verify_tasks"] or self.keeps_old or stage != "100%"]
        pauses += self.stages[-1:] if self.request.get("keep_old_for") else []
        tested_stages = [stage["stage"] for stage in data["stages"]
                         if [check["file"] for check in stage["checks"]] != ["approval"]]
        assert tested_stages in (pauses[:len(tested_stages)], [*pauses, "100%"]), tested_stages
        for stage in data["stages"][:-1]:
            checks = {check["outcome"] for check in stage["checks"]}
            assert stage["outcome"] == "passed" and checks <= {"passed"}, data["stages"]
        for name in self.names[host]:
            images = set(self.images(name))
            assert name not in self.undone or images == {V1}, (name, images)
            if name in self.changed_by_others:
                continue
            if outcome == "updated":
                assert images == {self.request["image"]}, (name, images)
            elif outcome == "rolled_back":
                assert images == {V1}, (name, images)
            elif self.request["on_failure"] == "rollback" and images != {V1}:
                assert name in message or outcome == "paused", (name, images, message)

        if (self.splits_requests and outcome in ("updated", "rolled_back")
                and not self.changed_by_others):
            self._assert_restored()

    def _assert_restored(self) -> None:
        route = self.namespace.call("GET", gateway_api.route_path(self.namespace, "edge"))
        services = self.namespace.call("GET", self.namespace.path("services"))["items"]
        (rule,) = route["spec"]["rules"]
        assert [(backend["name"], backend["weight"]) for backend in rule["backendRefs"]] == [
            (backend["name"], backend["weight"]) for backend in self.rule["backendRefs"]], rule
        assert rule.get("timeouts") == self.rule.get("timeouts"), rule
        assert [item["metadata"]["name"] for item in services] == self.names["localhost"]
        assert not route["metadata"].get("annotations"), route["metadata"]
        self.counts["route restored"] += 1

    def _assert_regions(self, results: Json) -> None:
        """Assert that the second region is updated only if the first has not failed."""
        first, *rest = self.hosts
        has_failed = (results[first] or {}).get("outcome") not in ("updated", "paused")
        for host in rest:
            assert bool(results[host]) is not has_failed, (host, results)
            if has_failed:
                assert all(set(self.images(name)) == {V1} for name in self.names[host]
                           if name not in self.changed_by_others)

    def _assert_rerun_and_rollback(self, result: Json) -> None:
        self._roll(after_tasks=[])  # without the report, since writing it counts as a change
        assert re.search(r"changed=0\b", self.output.rpartition("PLAY RECAP")[2])
        artifacts = {key: value for key, value in result.items() if key not in ("outcome", "msg")}
        self.output += self.playbooks.run("rollback", **artifacts)
        for name in self.names["localhost"]:
            assert set(self.images(name)) == {V1}, name
        self.counts["rolled back with its artifacts"] += 1
