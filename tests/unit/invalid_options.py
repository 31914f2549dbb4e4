# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List the options that the module rolling_update refuses, each with the sentence of the error."""

from __future__ import annotations

from builders import template
from request_builders import DEFINITION, PATCH, V2, definition_with, pod_template

NAME_RULE = "use lower-case letters, digits, '-' and '.', at most 253 characters"
NO_CHANGE = ("nothing to update: give one of image, images, template, definition or src, or "
             "roll_on")
INVALID_OPTIONS = {
    "no change": ({}, NO_CHANGE),
    "image and definition":
        (V2 | {"definition": DEFINITION},
         "image and definition cannot be combined: give only one of them"),
    "image and images":
        (V2 | {"images": {"web": "a"}},
         "image and images cannot be combined: give only one of them"),
    "image, template and src":
        (V2 | {"template": PATCH, "src": "x"},
         "image and template and src cannot be combined: give only one of them"),
    "max_failures":
        (V2 | {"max_failures": "all"},
         "max_failures 'all' is neither a number nor a percentage such as \"25%\""),
    "restarted with image":
        (V2 | {"state": "restarted"},
         "state=restarted keeps the template: remove image, or use state=updated"),
    "container without image": ({"images": {"web": "a"}, "container": "web"},
                                "container requires image"),
    "wait=false for a kind that the task scales":
        (V2 | {"wait": False},
         "wait=false cannot be used with kind=ReplicationController, because the task itself "
         "scales the pods: leave wait=false out"),
    "wait=false with a pause":
        (V2 | {"kind": "Deployment", "wait": False, "pause_at": 1},
         "wait=false cannot be used with pause_at, because the task itself pauses the update: "
         "leave wait=false out"),
    "keep_old without a pause":
        (V2 | {"keep_old": True},
         "keep_old keeps the old pods until a pause: set pause_at as well, for example "
         "pause_at=100%"),
    "keep_old with a surge":
        (V2 | {"keep_old": True, "pause_at": "100%", "max_surge": "50%"},
         "max_surge and max_unavailable cannot be used with keep_old, which removes no old pod "
         "and therefore adds all new pods: leave them out"),
    "keep_old of a StatefulSet":
        (V2 | {"keep_old": True, "pause_at": "100%", "kind": "StatefulSet"},
         "keep_old cannot be used with kind=StatefulSet, because an old pod is deleted before its "
         "replacement is created: leave it out"),
    "keep_old of a DaemonSet":
        (V2 | {"keep_old": True, "pause_at": "100%", "kind": "DaemonSet"},
         "keep_old cannot be used with kind=DaemonSet, because an old pod is deleted before its "
         "replacement is created: leave it out"),
    "wait=false with a soak":
        (V2 | {"kind": "Deployment", "wait": False, "soak": "1m"},
         "wait=false cannot be used with soak, because the task itself watches the pods: leave "
         "wait=false out"),
    "wait=false with on_failure":
        (V2 | {"kind": "DaemonSet", "wait": False, "on_failure": "rollback"},
         "wait=false cannot be used with on_failure=rollback, because only a task that waits "
         "observes a failure: leave wait=false out"),
    "wait=false with a suspension":
        (V2 | {"kind": "DaemonSet", "wait": False, "suspend_gitops": True},
         "wait=false cannot be used with suspend_gitops, because the task itself ends the "
         "suspension: leave wait=false out"),
    "suspend_gitops with next_name":
        (V2 | {"next_name": "bar", "suspend_gitops": True},
         "suspend_gitops cannot be used with next_name, because the update deletes the controller, "
         "and Flux creates it again from its manifest: leave suspend_gitops out, and change "
         "the manifest first"),
    "wait=false with a rollback of a StatefulSet":
        ({"kind": "StatefulSet", "wait": False, "state": "rolled_back"},
         "wait=false cannot be used with state=rolled_back and kind=StatefulSet, because the task "
         "deletes the pods that the cluster does not replace: leave wait=false out"),
    "no name": (V2 | {"name": ""}, f"name '' is not a valid object name: {NAME_RULE}"),
    "name with a capital letter": (V2 | {"name": "Foo"},
                                   f"name 'Foo' is not a valid object name: {NAME_RULE}"),
    "name with an empty part": (V2 | {"name": "foo..a"},
                                f"name 'foo..a' is not a valid object name: {NAME_RULE}"),
    "name too long": (V2 | {"name": "a" * 254},
                      f"name '{'a' * 254}' is not a valid object name: {NAME_RULE}"),
    "name with shell syntax": (V2 | {"name": "foo;id"},
                               f"name 'foo;id' is not a valid object name: {NAME_RULE}"),
    "name with a line end": (V2 | {"name": "foo\n"},
                             f"name 'foo\\n' is not a valid object name: {NAME_RULE}"),
    "invalid next_name": (V2 | {"next_name": "-bar"},
                          f"next_name '-bar' is not a valid object name: {NAME_RULE}"),
    "next_name equal to name":
        (V2 | {"next_name": "foo"},
         "the successor cannot also be named foo: both controllers exist during the update"),
    "definition with the same name": ({"definition": {**DEFINITION, "metadata": {"name": "foo"}}},
                                      "the successor cannot also be named foo: both controllers "
                                      "exist "
                                      "during the update"),
    "definition with a name other than next_name": (
        {"definition": DEFINITION, "next_name": "baz"},
        "next_name is baz, but the definition is named bar: give only one name"),
    "definition with another namespace": (
        {"definition": {**DEFINITION, "metadata": {"namespace": "other"}}},
        "the definition is for namespace other, but the task is for default"),
    "invalid namespace": (V2 | {"namespace": "a.b"}, "'a.b' is not a valid namespace name"),
    "namespace too long": (V2 | {"namespace": "a" * 64},
                           f"'{'a' * 64}' is not a valid namespace name"),
    "definition of another kind": (
        {"definition": {**DEFINITION, "kind": "Deployment"}},
        "definition is of kind Deployment: it must be a ReplicationController"),
    "definition without kind": (
        {"definition": {"spec": {}}},
        "definition is of kind None: it must be a ReplicationController"),
    "definition of one word": ({"definition": "word"},
                               "definition is of kind str: it must be a ReplicationController"),
    "definition of several documents": (
        {"definition": "a: 1\n---\nb: 2\n"},
        "definition contains 2 documents: it must be exactly one ReplicationController"),
    "definition of several elements": (
        {"definition": [DEFINITION, DEFINITION]},
        "definition contains 2 documents: it must be exactly one ReplicationController"),
    "definition of comments only": (
        {"definition": "# nothing\n"},
        "definition contains 0 documents: it must be exactly one ReplicationController"),
    "definition without template": (
        {"definition": {**DEFINITION, "spec": {}}},
        "definition has no pod template (spec.template.spec)"),
    "definition whose spec is a list": (
        {"definition": {**DEFINITION, "spec": [1]}},
        "definition has no pod template (spec.template.spec)"),
    "definition whose metadata is a list": (
        {"definition": {**DEFINITION, "metadata": [1]}},
        "definition has no pod template (spec.template.spec)"),
    "definition without labels": (
        {"definition": definition_with(template=pod_template("web=a"))},
        "definition has no labels in its pod template"),
    "definition whose selector does not match its template": (
        {"definition": definition_with(selector={"app": "bar", "tier": "x"})},
        "the selector app=bar,tier=x in definition does not match the labels of its template "
        "(app=foo)"),
    "definition whose name is a number": (
        {"definition": {**DEFINITION, "metadata": {"name": 5}}},
        "name and namespace of definition must be strings"),
    "definition whose namespace is a number": (
        {"definition": {**DEFINITION, "metadata": {"namespace": 5}}},
        "name and namespace of definition must be strings"),
    "definition whose selector is a list": (
        {"definition": definition_with(selector=["app"])},
        "spec.selector in definition must map strings to strings"),
    "definition whose template's metadata is a list": (
        {"definition": definition_with(template={**template(), "metadata": ["app"]})},
        "spec.template.metadata.labels in definition must map strings to strings"),
    "definition with a label that is a number": (
        {"definition": {**DEFINITION, "metadata": {"labels": {"a": 1}}}},
        "metadata.labels in definition must map strings to strings"),
    "definition with a boolean annotation": (
        {"definition": {**DEFINITION, "metadata": {"annotations": {"a": True}}}},
        "metadata.annotations in definition must map strings to strings"),
    "empty label key": (V2 | {"deployment_label_key": ""},
                        "deployment_label_key '' is not a valid label key (example: "
                        "kubernetes.io/deployment)"),
    "label key with two slashes": (V2 | {"deployment_label_key": "a/b/c"},
                                   "deployment_label_key 'a/b/c' is not a valid label key "
                                   "(example: kubernetes.io/deployment)"),
    "label key without a name": (V2 | {"deployment_label_key": "a.io/"},
                                 "deployment_label_key 'a.io/' is not a valid label key (example: "
                                 "kubernetes.io/deployment)"),
    "label key too long": (V2 | {"deployment_label_key": "a" * 64},
                           f"deployment_label_key '{'a' * 64}' is not a valid label key (example: "
                           "kubernetes.io/deployment)"),
    "percentage over 100": (V2 | {"max_surge": "101%"}, "max_surge 101% is over 100%"),
    "percentage without a number": (
        V2 | {"max_surge": "oops%"},
        "max_surge 'oops%' is neither a number nor a percentage such as \"25%\""),
    "percent sign alone": (
        V2 | {"max_unavailable": "%"},
        "max_unavailable '%' is neither a number nor a percentage such as \"25%\""),
    "negative size": (
        V2 | {"max_unavailable": "-1"},
        "max_unavailable '-1' is neither a number nor a percentage such as \"25%\""),
    "size with a fraction": (
        V2 | {"max_surge": "1.5"},
        "max_surge '1.5' is neither a number nor a percentage such as \"25%\""),
    "surge and unavailable both 0": (
        V2 | {"max_surge": "0", "max_unavailable": "0"},
        "max_surge and max_unavailable are both 0, so no pod could ever be replaced: set one of "
        "them to at least 1"),
    "surge 0% and unavailable 0": (
        V2 | {"max_surge": "0%"},
        "max_surge and max_unavailable are both 0, so no pod could ever be replaced: set one of "
        "them to at least 1"),
    "image with a space": ({"image": " a"}, "' a' is not a valid image name"),
    "image with a quote": ({"image": "a'b"}, '"a\'b" is not a valid image name'),
    "image with shell syntax": ({"image": "a;id"}, "'a;id' is not a valid image name"),
    "invalid container": (V2 | {"container": "a b"}, "'a b' is not a valid container name"),
    "empty image of a container": ({"images": {"web": ""}},
                                   "'' is not a valid image name (container web)"),
    "number as image of a container": ({"images": {"web": 7}},
                                       "7 is not a valid image name (container web)"),
    "negative min_ready_seconds": (V2 | {"min_ready_seconds": -1},
                                   "min_ready_seconds '-1' is neither a number of seconds nor a "
                                   "duration"
                                   " such as 90s, 10m or 1h30m"),
    **{f"soak {value}": (V2 | {"soak": value},
                         f"soak {value!r} is neither a number of seconds nor a duration such as "
                         "90s, 10m or "
                         f"1h30m")
       for value in ("10 m", "m", "1d", "-1", "nan", "10m1h", "1e3", "\u0663s", "9" * 11)},
    "soak as long as timeout": (
        V2 | {"soak": "1m", "timeout": 60}, "timeout (60 s) must be greater than soak (60 s)"),
    "a Deployment that waits for terminating pods": (
        V2 | {"kind": "Deployment", "pod_replacement_policy": "TerminationComplete"},
        "pod_replacement_policy=TerminationComplete cannot be used with kind=Deployment, because "
        "the cluster itself performs the update: "
        "leave it out, and where the cluster has the feature gate DeploymentPodReplacementPolicy, "
        "set spec.podReplacementPolicy "
        "of the Deployment"),
    "progress_deadline 0": (V2 | {"progress_deadline": 0},
                            "progress_deadline must be more than 0 seconds, not 0"),
    "invalid progress_deadline": (
        V2 | {"progress_deadline": float("nan")},
        "progress_deadline 'nan' is neither a number of seconds nor a duration"
        " such as 90s, 10m or 1h30m"),
    "migration of a Deployment": (
        {"module": "migrate_to_deployment", "state": "migrated", "kind": "Deployment"},
        "kind 'Deployment' is not a kind that can be migrated: give one of "
        "ReplicationController (rc), DeploymentConfig (dc)"),
    "to_revision of an update": (
        V2 | {"kind": "Deployment", "to_revision": 1},
        "to_revision can only be used with state=rolled_back"),
    "to_revision 0": (
        {"kind": "Deployment", "state": "rolled_back", "to_revision": 0},
        "to_revision must be at least 1, not 0"),
    "invalid to_revision": (
        {"kind": "Deployment", "state": "rolled_back", "to_revision": "last"},
        "to_revision 'last' is neither the number of a revision nor previous"),
    "to_revision=previous of an update": (V2 | {"to_revision": "previous"},
                                          "to_revision can only be used with state=rolled_back"),
    "Deployment with next_name": (
        V2 | {"kind": "Deployment", "next_name": "bar"},
        "next_name cannot be used with kind=Deployment, because the cluster itself performs the "
        "update: leave out next_name"),
    "Deployment with a definition of another kind": (
        {"kind": "Deployment", "definition": {"kind": "ReplicationController"}},
        "definition is of kind ReplicationController: it must be a Deployment"),
    "Deployment with the definition of another Deployment": (
        {"kind": "Deployment", "definition": {
            "kind": "Deployment", "metadata": {"name": "bar"},
            "spec": {"template": {"metadata": {"labels": {"app": "foo"}}, "spec": {}}}}},
        "the definition is named bar, but the task is for foo: a Deployment cannot be renamed"),
    "min_ready_seconds as long as progress_deadline": (
        V2 | {"min_ready_seconds": 600},
        "progress_deadline (600 s) must be greater than min_ready_seconds (600 s)"),
}
