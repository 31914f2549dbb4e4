# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the comparison of image versions in the statuses of pods."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.image_drift import (
    MAX_TEXT_LENGTH,
    causes,
    sentence,
    versions_of,
)

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def pod(name, *image_ids, image="shop:v2", is_init=False, containers=("web",)):
    """Return a pod with these imageIDs. The statuses are in reverse order."""
    spec_field, status_field = ("initContainers", "initContainerStatuses") if is_init else (
        "containers", "containerStatuses")
    return {"metadata": {"name": name},
            "spec": {spec_field: [{"name": container, "image": image} for container in containers]},
            "status": {status_field: [
                {"name": container, "imageID": image_id}
                for container, image_id in reversed(
                    list(zip(containers, image_ids, strict=False)))]}}


def sentences(*pods):
    return [sentence(cause) for cause in causes(map(versions_of, pods))]


@pytest.mark.parametrize("pods", [
    [],
    [pod("a", f"r/shop@{A}")],
    [pod("a", f"r/shop@{A}"), pod("b", f"r/shop@{A}")],
    # A mirror is another repository with the same digest
    [pod("a", f"r/shop@{A}"), pod("b", f"mirror/shop@{A}"), pod("c", f"docker-pullable://r@{A}")],
    # The imageIDs of b and c are not known yet
    [pod("a", f"r/shop@{A}"), pod("b", ""), {"metadata": {"name": "c"}}],
    # The ID of a local image is not a digest of a registry
    [pod("a", f"r/shop@{A}"), pod("b", B)],
    # An image requested by digest cannot drift: the digests differ by architecture
    [pod("a", f"r/shop@{A}", image=f"shop@{C}"), pod("b", f"r/shop@{B}", image=f"shop@{C}")],
    # Another image in one pod, set by admission, is not a moved tag
    [pod("a", f"r/shop@{A}"), pod("b", f"r/shop@{B}", image="mirror/shop:v2")],
    [pod("a", f"r@{A}", f"r@{B}", containers=("web", "proxy"))],
])
def test_no_drift(pods):
    assert sentences(*pods) == []


def test_most_frequent_version_comes_first():
    assert sentences(pod("a", f"r/shop@{B}"), pod("b", f"r/shop@{A}"), pod("c", f"r/shop@{A}")) == [
        f"container web: shop:v2 is {A} in 2 pods (b, c), {B} in 1 pod (a)"]


def test_ids_of_local_images_are_compared_with_each_other():
    assert sentences(pod("a", A), pod("b", B)) == [
        f"container web: shop:v2 is {A} in 1 pod (a), {B} in 1 pod (b)"]


def test_each_container_is_compared_by_its_name():
    containers = ("web", "injected")
    first = pod("a", f"r@{A}", f"p@{A}", containers=containers)
    second = pod("b", f"r@{A}", f"p@{B}", containers=containers)

    assert sentences(first, second) == [
        f"container injected: shop:v2 is {A} in 1 pod (a), {B} in 1 pod (b)"]


def test_init_containers_are_compared():
    assert len(sentences(pod("a", f"r@{A}", is_init=True), pod("b", f"r@{B}", is_init=True))) == 1


def test_long_lists_are_cut():
    pods = [pod(f"p{number}{version}", f"r@{version}")
            for version in range(7) for number in range(7 if version == 0 else 1)]

    (text,) = sentences(*pods)

    assert "0 in 7 pods (p00, p10, p20, p30, p40 and 2 more)" in text
    assert text.endswith("and 2 more versions")


@pytest.mark.parametrize("hostile", ["\x1b[31m" + "x" * 10_000, "a\nb", "\u202e", "{{ 1 }}"])
def test_a_hostile_status_is_escaped_and_cut(hostile):
    (text,) = sentences(pod(hostile, f"r@{hostile}", image=hostile, containers=(hostile,)),
                        pod("b", f"r@{B}", image=hostile, containers=(hostile,)))

    assert text.isprintable() and len(text) < 6 * MAX_TEXT_LENGTH


@pytest.mark.parametrize("status", [None, [], {"containerStatuses": 1},
                                    {"containerStatuses": [None, {"name": 1, "imageID": []}]}])
def test_a_malformed_status_counts_as_unknown(status):
    assert versions_of({**pod("a", "x"), "status": status}).images == ()
