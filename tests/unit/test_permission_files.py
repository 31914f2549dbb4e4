# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the files of docs/reference/permissions with the code, and with permissions.md."""

from __future__ import annotations

import re

import features
import pytest
import yaml
from objects import PERMISSIONS, permissions, role_rules

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
