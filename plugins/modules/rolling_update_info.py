#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rolling_update_info
short_description: Report the status of the rolling updates in a namespace
version_added: 0.1.0
description:
  - Reports the status of the update of one controller, or of all controllers of a kind in a
    namespace. For an update in progress, also returns the commands to resume it and to roll it
    back.
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
    description: Name of the controller. By default, all controllers of O(kind) in O(namespace) are
      returned. If the controller does not exist, RV(rollouts) is empty.
    type: str
  names:
    description: Names of several controllers.
    type: list
    elements: str
  label_selectors:
    description: Label selectors in the syntax of C(kubectl -l). All controllers that match all
      selectors are returned.
    type: list
    elements: str
  field_selectors:
    description: Field selectors in the syntax of C(kubectl --field-selector), such as
      V(metadata.name!=canary). Can be combined with O(label_selectors).
    type: list
    elements: str
  namespace:
    description: Namespace of the controllers. The default is, as with C(kubectl), the namespace of
      the context, or V(default) if the context has no namespace. In a pod, without O(kubeconfig)
      and O(context), the default is the namespace of the pod.
    type: str
  pods:
    description: Whether to return the pods of each controller and of its successor. Of each, at
      most 500 new pods and 500 old pods are returned, first the pods that are not ready.
    type: bool
    default: false
  kind:
    description: Kind of the controllers, as in M(baton.kubernetes.rolling_update), or
      V(DeploymentConfig) for a migration. By default, V(ReplicationController). If there is no
      ReplicationController O(name), or the user may not list ReplicationControllers, but exactly
      one controller of another kind has this name, its kind is the default. If neither O(name) nor
      O(names) is set, several kinds can be given, such as V(deploy,sts).
    type: list
    elements: str
  api_version:
    description: API version of O(kind), which must be set, too. A version that O(kind) does not
      have is an error. The option only lets the same options work with
      C(kubernetes.core.k8s_info).
    type: str
seealso:
  - module: baton.kubernetes.rolling_update
"""

EXAMPLES = r"""
- name: Read the status of one controller
  baton.kubernetes.rolling_update_info:
    name: foo
  register: foo

- name: Show the command that resumes an update in progress
  ansible.builtin.debug:
    msg: "{{ foo.rollouts[0].resume_command }}"
  when: foo.rollouts[0].phase != 'complete'
"""

RETURN = r"""
rollouts:
  description: The controllers, sorted by O(kind) and name. Empty if no controller matches.
  returned: success
  type: list
  elements: dict
  contains:
    namespace:
      description: Namespace of the controller, even if O(namespace) is not set.
      type: str
    name:
      description: Name of the controller.
      type: str
    kind:
      description: Kind of the controller.
      type: str
    phase:
      description: V(complete) if no update is in progress. V(taking_over) during the last steps of
        an update. The phase of a migration in progress is V(progressing).
      type: str
      choices: [complete, progressing, paused, taking_over]
    direction:
      description: Direction of the update in progress, where V(back) is a rollback. V(null) if no
        update is in progress.
      type: str
      choices: [forward, back]
    controller:
      description: The controller. During an update of a Deployment, a StatefulSet or a DaemonSet,
        the numbers and the images are those of the old pods. V(null) if the controller was deleted.
      type: dict
      contains: &numbers
        name:
          description: Name of the object.
          type: str
        uid:
          description: The C(metadata.uid) of the object.
          type: str
        replicas:
          description: Number of desired pods.
          type: int
        available:
          description: Number of available pods.
          type: int
        images:
          description: Image of each container.
          type: dict
    successor:
      description: The owner of the new pods. V(null) if no update is in progress.
      type: dict
      contains: *numbers
    desired:
      description: Number of replicas at the end of the update.
      type: int
    since:
      description: Time when the update in progress began or changed its direction, in RFC 3339,
        UTC. V(null) if no update is in progress.
      type: str
    last_rollout:
      description: The last update. V(null) if an update is in progress, or if the last update is
        unknown.
      type: dict
      contains:
        outcome:
          description: Outcome of the update.
          type: str
          choices: [updated, rolled_back]
        from:
          description: Image of each container before the update.
          type: dict
        to:
          description: Image of each container after the update.
          type: dict
        time:
          description: Time when the update ended.
          type: str
        who:
          description: User whose task ended the update, in the form C(user@machine). Not set for a
            Deployment.
          type: str
        to_revision:
          description: Number of the restored revision.
          type: int
    resume_command:
      description: How to resume the update in progress. V(null) if no update is in progress. Often
        a sentence instead of a command, because only the task that began the update has the options
        of the update.
      type: str
    rollback_command:
      description: The command that rolls back the update in progress. V(null) if no update is in
        progress, or if it can no longer be rolled back.
      type: str
    history:
      description: The current template and the templates that
        O(baton.kubernetes.rolling_update#module:to_revision) can restore. The newest comes first.
      type: list
      elements: dict
      contains:
        revision:
          description: Number of the revision.
          type: int
        images:
          description: Image of each container.
          type: dict
        time:
          description: Time when the template came into use. Empty if unknown.
          type: str
        who:
          description: User who ran the update, in the form C(user@machine). Empty if unknown.
          type: str
    pods:
      description: The pods that are not terminating. Empty if the permission to list pods is
        missing.
      returned: with O(pods=true)
      type: list
      elements: dict
      contains:
        name:
          description: Name of the pod.
          type: str
        ip:
          description: IP address of the pod. V(null) if the pod has no address yet.
          type: str
        node:
          description: Name of the node that the pod runs on. V(null) if the pod is not scheduled
            yet.
          type: str
        is_ready:
          description: Whether the pod is ready.
          type: bool
        is_new:
          description: Whether the pod has the new template of the update in progress. If no update
            is in progress, V(true) for each pod. V(null) if unknown, because the ControllerRevision
            of a DaemonSet's new pods cannot be read, or was deleted.
          type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # must be imported first, because floor ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.INFO_OPTIONS, supports_check_mode=True,
                           mutually_exclusive=task.INFO_EXCLUSIVE_OPTIONS)
    task.run_module(module, task.info)


if __name__ == "__main__":
    main()
