# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Small objects for the tests, as the API server would show them: a test says only what matters to it."""

from __future__ import annotations

import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils import identity

Json = dict[str, t.Any]


def template(image: str = "myimage:v1", label: str | None = None, **spec: t.Any) -> Json:
    """A pod template with one container named web."""
    labels = {"app": "foo", **({identity.DEPLOYMENT_LABEL: label} if label else {})}
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": image}], **spec}}


def rc(
    name: str = "foo",
    replicas: int = 3,
    image: str = "myimage:v1",
    label: str | None = None,
    available: int | None = None,
    current: int | None = None,
    observed: bool = True,
    annotations: t.Mapping[str, str] | None = None,
    **metadata: t.Any,
) -> Json:
    """A ReplicationController that is settled unless the arguments say otherwise."""
    current = replicas if current is None else current
    available = current if available is None else available
    return {
        "metadata": {
            "name": name,
            "uid": f"uid of {name}",
            "resourceVersion": "1",
            "generation": 1 if observed else 2,
            "labels": {"app": "foo"},
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {
            "replicas": replicas,
            "selector": {"app": "foo", **({identity.DEPLOYMENT_LABEL: label} if label else {})},
            "template": template(image, label),
        },
        "status": {"observedGeneration": 1, "replicas": current, "readyReplicas": available, "availableReplicas": available},
    }
