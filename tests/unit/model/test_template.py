# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pod templates: the container of a new image, equality, and the distinguishing label."""

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
def test_a_list_whose_entries_a_merge_cannot_tell_apart_is_taken_whole(field, entries):
    partial = {"spec": {"containers": [{"name": "web", field: entries}], field: entries[:1]}}

    assert replace_ambiguous_lists(partial) == {
        "spec": {"containers": [{"name": "web", field: [{"$patch": "replace"}, *entries]}],
                 field: entries[:1]}}


@pytest.mark.parametrize("odd", [
    None, {}, {"spec": None},
    {"spec": {"containers": [None, {"name": "a", "ports": None, "env": []}]}}, {"env": {"a": "b"}},
    {"ports": [1, 1]}, {"ports": [{"containerPort": {}}, {"containerPort": "80"}]},
])
def test_what_makes_no_sense_is_left_to_the_api_server(odd):
    assert replace_ambiguous_lists(odd) == odd


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
def test_a_repository_is_the_image_without_tag_and_digest(image, expected):
    assert repository(image) == expected


def changed(template, **params):
    return images_of(build_request(**params).apply_to(template))


def test_the_only_container_gets_the_image_whatever_it_is():
    assert changed(pod_template("web=one:v1"), image="two:v2") == {"web": "two:v2"}


def test_the_only_container_that_runs_the_same_repository_gets_the_image():
    both = pod_template("web=localhost:5000/web:v1", "log=localhost:5000/log:v1")

    assert changed(both, image="localhost:5000/log:v2") == {
        "web": "localhost:5000/web:v1", "log": "localhost:5000/log:v2"}


def test_the_container_that_is_named_gets_the_image():
    assert changed(pod_template("web=a:1", "log=b:1"), image="c:2", container="log") == {
        "web": "a:1", "log": "c:2"}


def test_an_init_container_that_is_named_gets_the_image():
    both = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    assert changed(both, image="b:2", container="prepare") == {"prepare": "b:2", "web": "a:1"}


def test_an_init_container_never_makes_the_choice_of_a_container_unclear():
    both = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "a:1"}])

    assert changed(both, image="a:2") == {"prepare": "a:1", "web": "a:2"}


def test_several_images_are_set_at_once_and_the_rest_stays():
    before = pod_template("web=a:1", "log=b:1", "mesh=c:1")

    assert changed(before, images={"web": "a:2", "log": "b:2"}) == {
        "web": "a:2", "log": "b:2", "mesh": "c:1"}


def test_setting_an_image_leaves_the_template_it_came_from_alone():
    before = pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    build_request(image="a:2").apply_to(before)

    assert before == pod_template("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])


@pytest.mark.parametrize("containers, params, what", [
    (["web=a:1", "log=b:1"], {"image": "c:2"},
     "which container of foo gets the image c:2? None runs c now; give container: one of web, log"),
    (["web=a:1", "log=a:1"], {"image": "a:2"},
     "which container of foo gets the image a:2? Several run a now; give container: one of web, "
     "log"),
    (["web=a:1", "log=b:1"], {"image": "a:2", "container": "nope"},
     "there is no container nope in the template of foo; it has: web, log"),
    (["server=a:1", "log=b:1"], {"images": {"sever": "a:2"}},
     "there is no container sever in the template of foo; it has: server, log; did you mean "
     "server?"),
    (["web=a:1"], {"images": {"web": "a:2", "nope": "b:2"}},
     "there is no container nope in the template of foo; it has: web"),
], ids=["none runs it", "several run it", "unknown container", "a slip",
        "unknown container among several"])
def test_a_container_that_is_not_clear_is_refused(containers, params, what):
    with pytest.raises(RolloutError) as refused:
        build_request(**params).apply_to(pod_template(*containers))

    assert refused.value.what == what


# The deployment label


@given(LABEL_VALUES, LABEL_VALUES)
def test_templates_that_differ_in_the_deployment_label_only_are_the_same(first, second):
    templates = [with_label(template(), object_meta.DEPLOYMENT_LABEL, value)
                 for value in (first, second)]

    assert same_template(*templates, object_meta.DEPLOYMENT_LABEL)
    assert same_template(templates[0], template(), object_meta.DEPLOYMENT_LABEL)
    assert same_template(*templates, "another/key") == (first == second)


def test_labels_are_set_and_removed_without_touching_the_template_they_came_from():
    before = template(label="earlier")

    assert with_label(before, object_meta.DEPLOYMENT_LABEL, "later") == template(label="later")
    assert without_label(before, object_meta.DEPLOYMENT_LABEL) == template()
    assert before == template(label="earlier")


@pytest.mark.parametrize("metadata",
                         [{}, {"metadata": {}},
                          {"metadata": {"labels": None, "creationTimestamp": None}}])
def test_a_template_without_labels_is_the_same_however_that_is_said(metadata):
    assert same_template({**metadata, "spec": {}}, {"spec": {}}, object_meta.DEPLOYMENT_LABEL)


def of_images(containers, inits):
    return {"spec": {"containers": [{"name": f"c{number}", "image": image}
                                    for number, image in enumerate(containers)],
                     "initContainers": [{"name": f"i{number}", "image": image}
                                        for number, image in enumerate(inits)]}}


@pytest.mark.parametrize("containers, inits, belongs_to, gets", [
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
def test_the_container_that_an_image_belongs_to(containers, inits, belongs_to, gets):
    template = of_images(containers, inits)

    assert containers_with("a:9", template) == belongs_to
    if gets is None:
        with pytest.raises(RolloutError, match="which container of foo gets the image a:9"):
            with_image(template, "", "a:9", "foo")
    else:
        changed = with_image(template, "", "a:9", "foo")
        assert images_of(changed) == {**images_of(template), gets: "a:9"}


@pytest.mark.parametrize("containers", list(itertools.product(["a:1", "b:1"], repeat=2)))
@pytest.mark.parametrize("inits", [(), ("a:1",), ("b:1",), ("a:1", "b:1")])
def test_an_image_never_replaces_one_of_another_repository_where_it_belongs_somewhere(
        containers, inits):
    template = of_images(containers, inits)
    try:
        changed = images_of(with_image(template, "", "a:9", "foo"))
    except RolloutError:
        return
    (name,) = [name for name, image in images_of(template).items() if changed[name] != image]
    assert repository(images_of(template)[name]) == "a"
