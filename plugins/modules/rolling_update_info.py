#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rolling_update_info
short_description: Report the state of the rolling updates in a namespace
version_added: 0.1.0
description:
  - Reports for one controller, or for all of a kind in a namespace, whether an update is in
    progress, its status, and how to resume it or roll it back.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: This module never changes anything.
  diff_mode:
    support: N/A
  idempotent:
    support: full
options:
  name:
    description:
      - Name of the controller to report on. By default, all controllers of O(kind) in O(namespace).
    type: str
  names:
    description:
      - Names of several controllers to report on.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors in the syntax of C(kubectl -l), to report on every controller that matches
        all of them.
    type: list
    elements: str
  field_selectors:
    description:
      - Field selectors in the syntax of C(kubectl --field-selector), such as
        V(metadata.name!=canary), instead of O(label_selectors) or together with them.
    type: list
    elements: str
  namespace:
    description:
      - Namespace of the controllers.
      - By default, the namespace of the context, or in a pod that of the pod, or else V(default),
        as with C(kubectl).
    type: str
  pods:
    description:
      - Whether to return the pods of each controller and of its successor as well, at most 500 of
        each.
    type: bool
    default: false
  kind:
    description:
      - The kind of the controllers.
      - By default, V(ReplicationController); with O(name), if there is no ReplicationController of
        that name, the kind of the only other object that has it.
    type: str
  api_version:
    description:
      - The API version of O(kind), such as V(apps/v1). It follows from O(kind), so it can be left
        out; any other version is refused.
    type: str
  kinds:
    description:
      - Several kinds to report on, one after the other, instead of O(kind). Cannot be combined with
        O(name) or O(names).
    type: list
    elements: str
seealso:
  - module: baton.kubernetes.rolling_update
"""

EXAMPLES = r"""
- name: Look at one controller
  baton.kubernetes.rolling_update_info:
    name: foo
  register: foo

- name: Show what to type if an update is in progress
  ansible.builtin.debug:
    msg: "{{ foo.rollouts[0].resume_command }}"
  when: foo.rollouts[0].phase != 'complete'
"""

RETURN = r"""
rollouts:
  description: One entry for each controller, sorted by O(kinds) and name. Empty if there is no such
    controller.
  returned: success
  type: list
  elements: dict
  contains:
    namespace:
      description: Namespace of the controller, also if O(namespace) was not given.
      type: str
    name:
      description: Name of the controller.
      type: str
    kind:
      description: Kind of the controller.
      type: str
    phase:
      description: V(complete) if no update is in progress; V(taking_over) during the handover. A
        migration in progress is
        V(progressing).
      type: str
      choices: [complete, progressing, paused, taking_over]
    direction:
      description: Which way the update in progress is going; V(null) if there is none.
      type: str
      choices: [forward, back]
    controller:
      description: The controller; V(null) if it was deleted. For a Deployment in the middle of an
        update, the numbers are those of
        its old pods.
      type: dict
      contains: &numbers
        name:
          description: Name of the object.
          type: str
        uid:
          description: The C(metadata.uid) of the object.
          type: str
        replicas:
          description: How many pods are asked for.
          type: int
        available:
          description: How many pods are available.
          type: int
        images:
          description: Image of each container, by the name of the container.
          type: dict
    successor:
      description: The successor, which owns the new pods; V(null) if no update is in progress. For
        a Deployment, its new
        ReplicaSet. For a migration, the ReplicaSet that gets the pods.
      type: dict
      contains: *numbers
    desired:
      description: How many replicas there will be at the end of the update.
      type: int
    since:
      description: When the update in progress began or changed direction, in RFC 3339, UTC; V(null)
        if there is none.
      type: str
    last_rollout:
      description: The last update; V(null) while one is in progress, or if none is known.
      type: dict
      contains:
        outcome:
          description: How the update ended.
          type: str
          choices: [updated, rolled_back]
        from:
          description: Image of each container before the update, by the name of the container.
          type: dict
        to:
          description: Image of each container after the update, by the name of the container.
          type: dict
        time:
          description: When the update ended, in RFC 3339, UTC.
          type: str
        who:
          description: Who ran the task that ended the update, as C(user@machine). Not kept for a
            Deployment.
          type: str
        to_revision:
          description: Number of the revision that a Deployment, a StatefulSet or a DaemonSet was
            returned to, if it was.
          type: int
    resume_command:
      description: How to resume the update in progress; V(null) if there is none.
        The cluster does not know the
        options of the task that began it, such as
        O(baton.kubernetes.rolling_update#module:pause_at), so this says to run that task, unless
        only the handover is left.
      type: str
    rollback_command:
      description: What to type to undo the update in progress; V(null) if there is none, or if it
        can no longer be undone.
      type: str
    history:
      description: The templates that O(baton.kubernetes.rolling_update#module:to_revision) can
        return to, the newest first. The
        first one is the current template. How many are kept depends on
        O(baton.kubernetes.rolling_update#module:revision_history_limit), or for a Deployment,
        a StatefulSet or a DaemonSet on its C(revisionHistoryLimit).
      type: list
      elements: dict
      contains:
        revision:
          description: Number of the revision.
          type: int
        images:
          description: Image of each container, by the name of the container.
          type: dict
        time:
          description: When the template came into use, in RFC 3339, UTC; empty if that is not
            known.
          type: str
        who:
          description: Who ran the update to the template, as C(user@machine); empty if that is not
            known.
          type: str
    pods:
      description: The pods of the controller and of its successor, except those being deleted.
        Empty if the task is not allowed to
        list pods.
      returned: with O(pods=true)
      type: list
      elements: dict
      contains:
        name:
          description: Name of the pod.
          type: str
        ip:
          description: IP address of the pod; V(null) before it has one.
          type: str
        node:
          description: Name of the node that the pod runs on; V(null) before it is scheduled.
          type: str
        is_ready:
          description: Whether the pod is ready.
          type: bool
        is_new:
          description: Whether the pod has the template that the update in progress rolls out, also
            while that update is rolled
            back. If no update is in progress, V(true) for each pod.
          type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # first: it ends the module on an older Python
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.INFO_OPTIONS, supports_check_mode=True,
                           mutually_exclusive=task.INFO_EXCLUSIVE)
    task.end(module, task.info)


if __name__ == "__main__":
    main()
