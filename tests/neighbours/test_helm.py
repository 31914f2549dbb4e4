# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update the controllers of a Helm release, and upgrade or roll back the release meanwhile.

A table in docs/how-to/gitops.md has a row for each outcome. notes() shows which controllers an
upgrade has changed: "abb" means all except the first.
"""

from __future__ import annotations

import subprocess

import programs
import pytest
from helm_release import Release
from objects import role_rules
from three_kinds import DEPLOYMENT, NAMES, RC, STATEFUL_SET

#: The behavior of Helm 3. Helm 4 uses server-side apply by default.
CLIENT_SIDE = "--server-side=false"
FORCE = "--force-conflicts"
IMAGE = '.spec.template.spec.containers[name="web"].image'


@pytest.fixture
def release(namespace, helm_program, tmp_path):
    namespace.allow(role_rules("baton-stateful-sets"), "stateful-sets")
    return Release(helm_program, namespace, tmp_path)


def assert_only_helm_warning(results):
    for result in results:
        (warning,) = result["warnings"]
        assert warning.startswith("Helm (release web) manages")


def test_helm_has_the_pinned_version(helm_program):
    done = subprocess.run([str(helm_program), "version", "--template={{ .Version }}"],
                          capture_output=True, text=True, check=True)

    assert programs.version("helm").startswith(done.stdout.strip() or "nothing")


def test_task_warns_of_the_release_before_the_first_write(release):
    release.install()

    result = release.namespace.check(name=NAMES[DEPLOYMENT], kind=DEPLOYMENT, image="myimage:v2")

    (warning,) = result["warnings"]
    assert "Helm (release web) manages shop" in warning and FORCE in warning
    assert f"helm -n {release.namespace.name} get values web" in warning


@pytest.mark.parametrize("verb, values", [
    ("upgrade", {"note": "c"}), ("upgrade", {"mode": "c"}), ("upgrade", {"image": "myimage:v1"}),
    ("rollback", {}),
], ids=["annotation", "variable", "image", "rollback"])
def test_upgrade_during_an_update_fails_and_changes_no_controller(release, verb, values):
    release.install()
    assert release.run("upgrade", note="b") == ""
    release.pause()
    before = release.pod_uids()

    error = release.run(verb, **values)

    assert error.count('conflict with "baton.kubernetes"') >= 3, error
    assert "using v1: .spec.replicas" in error and f"using apps/v1: {IMAGE}" in error
    assert release.history()[-1][1] == "failed" and release.notes() == "bbb"
    release.assert_paused()
    assert release.pod_uids() == before
    assert_only_helm_warning(release.roll_all(image="myimage:v2"))
    assert release.images() == ["v2"] * 3


def test_upgrade_with_the_new_image_during_an_update_fails_for_one_controller(release):
    """Only the size of the ReplicationController conflicts."""
    release.install()
    release.pause()

    error = release.run("upgrade", image="myimage:v2", note="b")

    assert ".spec.replicas" in error and IMAGE not in error, error
    assert release.notes() == "abb" and release.history()[-1][1] == "failed"
    release.assert_paused()
    assert_only_helm_warning(release.roll_all(image="myimage:v2"))
    assert release.images() == ["v2"] * 3


def test_client_side_upgrade_with_the_new_image_succeeds_during_an_update(release):
    """Until the next task, the ReplicationController has its original size and the new template."""
    release.install(CLIENT_SIDE)
    release.pause()

    assert release.run("upgrade", image="myimage:v2", note="b") == ""

    release.wait_for_pods(RC, "v1 v1 v2 v2 v2 v2")
    for kind in (DEPLOYMENT, STATEFUL_SET):
        assert release.pod_versions(kind) == "v1 v1 v2 v2"
    assert_only_helm_warning(release.roll_all(image="myimage:v2"))
    for kind in NAMES:
        assert release.pod_versions(kind) == "v2 v2 v2 v2"


@pytest.mark.parametrize("install_options, upgrade_options",
                         [((), (FORCE,)), ((CLIENT_SIDE,), ())], ids=["forced", "client-side"])
def test_forced_or_client_side_upgrade_resets_paused_updates(
        release, install_options, upgrade_options):
    release.install(*install_options)
    release.pause()

    assert release.run("upgrade", *upgrade_options, note="b") == ""

    assert release.notes() == "bbb" and release.history()[-1][1] == "deployed"
    release.assert_reset_then_update_again()


def test_upgrade_after_an_update_needs_the_new_image(release):
    """For the ReplicationController, the upgrade also needs --force-conflicts."""
    release.install()
    release.roll_all(image="myimage:v2")
    before = release.pod_uids()

    old_image_error = release.run("upgrade", note="b")
    rollback_error = release.run("rollback")
    new_image_error = release.run("upgrade", image="myimage:v2", note="b")

    assert old_image_error.count(IMAGE) >= 3 and ".spec.selector" in old_image_error, (
        old_image_error)
    assert rollback_error.count(IMAGE) >= 3, rollback_error
    assert ".spec.selector" in new_image_error
    assert IMAGE not in new_image_error and "shop" not in new_image_error
    assert release.notes() == "abb" and release.images() == ["v2"] * 3
    assert release.run("upgrade", FORCE, image="myimage:v2", note="c") == ""
    assert release.notes() == "ccc" and release.history()[-1][1] == "deployed"
    assert not any(result["changed"] for result in release.roll_all(image="myimage:v2"))
    assert release.pod_uids() == before


@pytest.mark.parametrize("install_options, upgrade_options",
                         [((), (FORCE,)), ((CLIENT_SIDE,), ())], ids=["forced", "client-side"])
def test_forced_or_client_side_upgrade_undoes_an_update(release, install_options, upgrade_options):
    """A ReplicationController keeps its new pods, as the warning says."""
    release.install(*install_options)
    release.roll_all(image="myimage:v2")

    assert release.run("upgrade", *upgrade_options, note="b") == ""

    assert release.images() == ["v1"] * 3
    release.wait_for_pods(DEPLOYMENT, "v1 v1 v1 v1")
    release.wait_for_pods(STATEFUL_SET, "v1 v1 v1 v1")
    assert release.pod_versions(RC) == "v2 v2 v2 v2"


def test_release_in_pending_upgrade_can_be_updated(release):
    """A rollback of the release ends the status pending-upgrade, even if the rollback fails."""
    release.install()
    make_pending(release)

    release.roll_all(image="myimage:v3")
    upgrade_error = release.run("upgrade", image="myimage:v3")
    rollback_error = release.run("rollback")

    assert "another operation (install/upgrade/rollback) is in progress" in upgrade_error
    assert rollback_error.count(IMAGE) >= 3 and release.images() == ["v3"] * 3
    assert release.history()[-1] == (3, "failed")
    assert release.run("upgrade", FORCE, image="myimage:v3") == ""
    assert not any(result["changed"] for result in release.roll_all(image="myimage:v3"))


def test_client_side_release_in_pending_upgrade_can_be_updated(release):
    """The test deletes the Secret of the upgrade: a rollback would reset the controllers."""
    release.install(CLIENT_SIDE)
    make_pending(release)

    release.roll_all(image="myimage:v3")
    upgrade_error = release.run("upgrade", image="myimage:v3")
    secrets = release.namespace.path("secrets")
    release.namespace.call("DELETE", f"{secrets}?labelSelector=owner%3Dhelm,name%3Dweb,"
                                     "status%3Dpending-upgrade")

    assert "another operation (install/upgrade/rollback) is in progress" in upgrade_error
    assert release.run("upgrade", image="myimage:v3") == ""
    assert release.images() == ["v3"] * 3
    assert not any(result["changed"] for result in release.roll_all(image="myimage:v3"))


def make_pending(release):
    release.interrupt(image="myimage:v2")
    release.wait_until_available()
    assert release.history()[-1] == (2, "pending-upgrade")
