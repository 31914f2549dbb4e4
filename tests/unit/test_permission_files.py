# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the files of docs/reference/permissions with the code, and with permissions.md."""

from __future__ import annotations

import re

import features
import pytest
import yaml
from objects import PERMISSIONS, permissions, role_rules
from split_cluster import RESUME, forge_routes_annotation, paused_cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import follower
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import RouteName

FEATURES = features.features()
ROLES = ("baton", "baton-stateful-sets", "baton-daemon-sets", "baton-migration", "baton-openshift",
         "baton-owner-references", "baton-argo-rollouts", "baton-roll-on", "baton-traffic",
         "baton-traffic-warnings", "baton-traffic-service")
#: Permissions of the ClusterRole for nodes, which ROLES lacks.
CLUSTER_PERMISSIONS = {("", "nodes", "list", "")}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_file_is_current(feature):
    assert feature.path.read_text("utf-8") == feature.text, "run `make permissions`"
    assert yaml.safe_load(feature.text) == feature.manifest
    assert f"permissions/{feature.name}.yaml" in PERMISSIONS.read_text("utf-8")


def test_no_other_file_exists():
    assert ({path.stem for path in features.FOLDER.iterdir()}
            == {feature.name for feature in FEATURES})


def test_the_files_have_the_permissions_of_the_page_and_no_others():
    page = {permission for name in ROLES for permission in permissions(role_rules(name))}
    files = {permission for feature in FEATURES
             for permission in permissions(feature.documents[0]["rules"])}

    assert files - page == CLUSTER_PERMISSIONS and page - files == set()


def test_each_role_of_the_page_is_compared():
    names = re.findall(r"kind: Role\nmetadata:\n  name: (\S+)", PERMISSIONS.read_text("utf-8"))

    assert set(names) == set(ROLES)


#: A row of the table in permissions.md, such as "| get; list | services; pods | ... |".
ROW_OF_AN_UPDATE = re.compile(r"\| (.*) \| (.*) \| with `rolling_update`, while the annotation "
                              r"`baton\.kubernetes/traffic-routes` names a (route|Service):")


@pytest.mark.parametrize("row", ROW_OF_AN_UPDATE.findall(PERMISSIONS.read_text("utf-8")),
                         ids=lambda row: row[2])
def test_page_has_the_permissions_of_an_update_with_a_split(row):
    verbs, resources, route = (cell.split("; ") for cell in row)
    on_page = {(resource, verb)
               for resources_of_cell, verbs_of_cell in zip(resources, verbs, strict=True)
               for resource in resources_of_cell.split(", ") for verb in verbs_of_cell.split(", ")}
    kinds = ["Service"] if route == ["Service"] else ["HTTPRoute", "GRPCRoute"]

    assert on_page == {(resource, verb) for kind in kinds for _group, resource, rule_verbs
                       in follower._permissions(RouteName(kind, "shop")) for verb in rule_verbs}


def test_page_has_two_rows_for_an_update_with_a_split():
    assert [row[2] for row in ROW_OF_AN_UPDATE.findall(PERMISSIONS.read_text("utf-8"))] == [
        "route", "Service"]


@pytest.mark.parametrize("routes, names", [
    ("HTTPRoute/edge", ["traffic"]), ("GRPCRoute/edge", ["traffic"]),
    ("Service/foo", ["traffic-service"]),
    ("HTTPRoute/edge,Service/foo", ["traffic", "traffic-service"])])
def test_error_names_the_files_with_the_missing_permissions(routes, names):
    cluster = paused_cluster("Deployment", splits=False)
    forge_routes_annotation(cluster, routes)
    granted_rules = rules_of_files(["update-deployment"])
    cluster.rules = lambda: granted_rules
    error = cluster.roll(**RESUME)

    assert "list on pods" in error.why
    assert re.findall(r"permissions/(\S+)\.yaml", error.next_command) == names
    granted_rules += rules_of_files(names)
    error = cluster.roll(**RESUME)
    assert isinstance(error, dict) or "are split between" not in error.what


def rules_of_files(names):
    """Return the rules of files in docs/reference/permissions."""
    return [rule for feature in FEATURES if feature.name in names
            for rule in feature.documents[0]["rules"]]
