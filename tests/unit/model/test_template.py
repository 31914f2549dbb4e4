# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Change pod templates: images and the deployment label."""

from __future__ import annotations

import itertools

import pytest
from builders import template
from hypothesis import given
from hypothesis import strategies as st
from request_builders import build_request, pod_template

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import (
    containers_with,
    images_of,
    replace_ambiguous_lists,
    repository,
    same_template,
    with_annotation,
    with_image,
    with_label,
    without_label,
)

LABEL_VALUES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)


# Partial templates


@pytest.mark.parametrize("field, entries", [
    ("env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
    ("ports", [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]),
    ("hostAliases",
     [{"ip": "127.0.0.1", "hostnames": ["a"]}, {"ip": "127.0.0.1", "hostnames": ["b"]}]),
    ("imagePullSecrets", [{"name": "a"}, {"name": "a"}, {"name": "b"}]),
    ("topologySpreadConstraints",
     [{"topologyKey": "zone", "maxSkew": 1}, {"topologyKey": "zone", "maxSkew": 2}]),
])
def test_list_with_ambiguous_merge_keys_is_replaced(field, entries):
    partial = {"spec": {"containers": [{"name": "web", field: entries}], field: entries[:1]}}

    assert replace_ambiguous_lists(partial) == {
        "spec": {"containers": [{"name": "web", field: [{"$patch": "replace"}, *entries]}],
                 field: entries[:1]}}


@pytest.mark.parametrize("value", [
    None, {}, {"spec": None},
    {"spec": {"containers": [None, {"name": "a", "ports": None, "env": []}]}}, {"env": {"a": "b"}},
    {"ports": [1, 1]}, {"ports": [{"containerPort": {}}, {"containerPort": "80"}]},
])
def test_invalid_values_are_left_to_the_api_server(value):
    assert replace_ambiguous_lists(value) == value


# Images


@pytest.mark.parametrize("image, expected", [
    ("myimage", "myimage"),
    ("myimage:v1", "myimage"),
    ("library/myimage:v1", "library/myimage"),
    ("localhost:5000/myimage", "localhost:5000/myimage"),
    ("localhost:5000/myimage:v1", "localhost:5000/myimage"),
    ("registry.example.com/team/myimage@sha256:abc", "registry.example.com/team/myimage"),
    ("registry.example.com:443/team/myimage:v1@sha256:abc",
     "registry.example.com:443/team/myimage"),
])
def test_repository_of_an_image(image, expected):
    assert repository(image) == expected


def images_after(template, **params):
    return images_of(build_request(**params).apply_to(template))


def test_single_container_gets_any_image():
    assert images_after(pod_template("web=one:v1"), image="two:v2") == {"web": "two:v2"}


def test_container_with_the_same_repository_gets_the_image():
    two_containers = pod_template("web=localhost:5000/web:v1", "log=localhost:5000/log:v1")

    assert images_after(two_containers, image="localhost:5000/log:v2") == {
        "web": "localhost:5000/web:v1", "log": "localhost:5000/log:v2"}


def test_named_container_gets_the_image():
    assert images_after(pod_template("web=a:1", "log=b:1"), image="c:2", container="log") == {
        "web": "a:1", "log": "c:2"}


def test_named_init_container_gets_the_image():
    two_containers = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    assert images_after(two_containers, image="b:2", container="prepare") == {"prepare": "b:2",
                                                                              "web": "a:1"}


def test_container_is_preferred_to_an_init_container():
    two_containers = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "a:1"}])

    assert images_after(two_containers, image="a:2") == {"prepare": "a:1", "web": "a:2"}


def test_several_containers_get_their_images():
    before = pod_template("web=a:1", "log=b:1", "mesh=c:1")

    assert images_after(before, images={"web": "a:2", "log": "b:2"}) == {
        "web": "a:2", "log": "b:2", "mesh": "c:1"}


def test_apply_to_does_not_modify_the_template():
    before = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    build_request(image="a:2").apply_to(before)

    assert before == pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])


@pytest.mark.parametrize("containers, params, what", [
    (["web=a:1", "log=b:1"], {"image": "c:2"},
     "it is unclear which container of foo gets the image c:2: no container has an image of the "
     "repository c now; set container to one of web, log"),
    (["web=a:1", "log=a:1"], {"image": "a:2"},
     "it is unclear which container of foo gets the image a:2: several containers have an image "
     "of the repository a now; set container to one of web, log"),
    (["web=a:1", "log=b:1"], {"image": "a:2", "container": "nope"},
     "there is no container nope in the template of foo; it has: web, log"),
    (["server=a:1", "log=b:1"], {"images": {"sever": "a:2"}},
     "there is no container sever in the template of foo; it has: server, log; did you mean "
     "server?"),
    (["web=a:1"], {"images": {"web": "a:2", "nope": "b:2"}},
     "there is no container nope in the template of foo; it has: web"),
], ids=["no container runs the image", "several containers run the image", "unknown container",
        "misspelled container", "unknown container among several"])
def test_ambiguous_or_unknown_container_is_refused(containers, params, what):
    with pytest.raises(RolloutError) as error:
        build_request(**params).apply_to(pod_template(*containers))

    assert error.value.what == what


# The deployment label


@given(LABEL_VALUES, LABEL_VALUES)
def test_same_template_ignores_the_deployment_label(first, second):
    templates = [with_label(template(), object_meta.DEPLOYMENT_LABEL, value)
                 for value in (first, second)]

    assert same_template(*templates, object_meta.DEPLOYMENT_LABEL)
    assert same_template(templates[0], template(), object_meta.DEPLOYMENT_LABEL)
    assert same_template(*templates, "another/key") == (first == second)


def test_labels_are_set_and_removed_on_a_copy():
    before = template(label="earlier")

    assert with_label(before, object_meta.DEPLOYMENT_LABEL, "later") == template(label="later")
    assert without_label(before, object_meta.DEPLOYMENT_LABEL) == template()
    assert before == template(label="earlier")


@pytest.mark.parametrize("metadata",
                         [{}, {"metadata": {}},
                          {"metadata": {"labels": None, "creationTimestamp": None}}])
def test_same_template_ignores_empty_metadata(metadata):
    assert same_template({**metadata, "spec": {}}, {"spec": {}}, object_meta.DEPLOYMENT_LABEL)


def template_of(images, init_images):
    return {"spec": {"containers": [{"name": f"c{number}", "image": image}
                                    for number, image in enumerate(images)],
                     "initContainers": [{"name": f"i{number}", "image": image}
                                        for number, image in enumerate(init_images)]}}


@pytest.mark.parametrize("images, init_images, matching_containers, expected_container", [
    (["a:1"], [], ["c0"], "c0"),
    (["a:1"], ["a:1"], ["c0"], "c0"),
    (["a:1", "b:1"], ["a:1"], ["c0"], "c0"),
    (["a:1", "a:2"], [], ["c0", "c1"], None),
    (["b:1"], ["a:1"], ["i0"], "i0"),
    (["b:1", "d:1"], ["b:1", "a:1"], ["i1"], "i1"),
    (["b:1"], ["a:1", "a:2"], ["i0", "i1"], None),
    (["b:1"], [], [], "c0"),
    (["b:1"], ["d:1"], [], "c0"),
    (["b:1", "d:1"], [], [], None),
])
def test_container_that_gets_the_image(images, init_images, matching_containers,
                                       expected_container):
    template = template_of(images, init_images)

    assert containers_with("a:9", template) == matching_containers
    if expected_container is None:
        with pytest.raises(RolloutError, match="which container of foo gets the image a:9"):
            with_image(template, "", "a:9", "foo")
    else:
        changed_template = with_image(template, "", "a:9", "foo")
        assert images_of(changed_template) == {**images_of(template), expected_container: "a:9"}


@pytest.mark.parametrize("images", list(itertools.product(["a:1", "b:1"], repeat=2)))
@pytest.mark.parametrize("init_images", [(), ("a:1",), ("b:1",), ("a:1", "b:1")])
def test_only_an_image_of_the_same_repository_is_replaced(images, init_images):
    template = template_of(images, init_images)
    try:
        new_images = images_of(with_image(template, "", "a:9", "foo"))
    except RolloutError:
        return
    (name,) = [name for name, image in images_of(template).items() if new_images[name] != image]
    assert repository(images_of(template)[name]) == "a"


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": None}])
def test_an_annotation_is_added_to_the_annotations_of_a_template(metadata):
    without_annotations = {**template(), "metadata": metadata}
    with_annotations = {**template(), "metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}}

    assert with_annotation(without_annotations, "key", "x")["metadata"] == {
        "annotations": {"key": "x"}}
    assert with_annotation(with_annotations, "key", "x")["metadata"] == {
        "annotations": {"a": "b", "key": "x"}, "labels": {"c": "d"}}
