#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rolling_update_info
short_description: Tell where the rolling updates of a namespace stand
version_added: 0.1.0
description:
  - Tells for one controller, or for all of a kind in a namespace, whether an update is in progress, how far it is, and what to
    type to go on or to go back.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    support: N/A
  idempotent:
    support: full
options:
  name:
    description:
      - Name of the controller; all in the namespace if not given.
    type: str
  namespace:
    description:
      - The namespace.
    type: str
    default: default
  pods:
    description:
      - Whether to tell the pods as well, at most 500 of each controller.
    type: bool
    default: false
  kind:
    description:
      - The kind of the controllers.
    type: str
    choices: [ReplicationController, ReplicaSet, Deployment]
    default: ReplicationController
seealso:
  - module: baton.kubernetes.rolling_update
"""

EXAMPLES = r"""
- name: Look at one controller
  baton.kubernetes.rolling_update_info:
    name: foo
  register: foo

- name: Say what to type where an update is in progress
  ansible.builtin.debug:
    msg: "{{ foo.rollouts[0].resume_command }}"
  when: foo.rollouts[0].phase != 'complete'
"""

RETURN = r"""
rollouts:
  description: One entry for each controller, by name. Empty when there is none of that name.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the controller.
      type: str
    phase:
      description: V(complete) when no update is in progress, V(progressing), V(paused), or V(taking_over).
      type: str
    direction:
      description: V(forward) or V(back), while an update is in progress.
      type: str
    controller:
      description: Name, uid, replicas, available replicas and images of the controller; none if somebody deleted it.
      type: dict
    next:
      description: The same of the controller of the new pods, while an update is in progress.
      type: dict
    desired:
      description: The number of replicas that the update has to reach.
      type: int
    since:
      description: When the update in progress began or turned round, in RFC 3339.
      type: str
    last_rollout:
      description: Outcome, images before and after, and time of the last update, and who has ended it.
      type: dict
    resume_command:
      description: What to type to go on.
      type: str
    rollback_command:
      description: What to type to go back.
      type: str
    pods:
      description: The pods that are not terminating, if O(pods) asks for them; none if they may not be listed.
      type: list
      elements: dict
      contains:
        name:
          description: Name of the pod.
          type: str
        ip:
          description: Its address.
          type: str
        node:
          description: The node it is on.
          type: str
        is_ready:
          description: Whether it is ready.
          type: bool
        is_new:
          description: Whether it belongs to the next controller of an update in progress.
          type: bool
    history:
      description: The templates that the controller has had and O(baton.kubernetes.rolling_update#module:to_revision) can go back
        to, the newest first; the first is the present one. As far as they are kept, by
        O(baton.kubernetes.rolling_update#module:revision_history_limit) or by the C(revisionHistoryLimit) of a Deployment.
      type: list
      elements: dict
      contains:
        revision:
          description: The number.
          type: int
        images:
          description: Images by container.
          type: dict
        time:
          description: When it was first there, in RFC 3339.
          type: str
        who:
          description: Who has updated to it, where that is known.
          type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.model import request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ARGUMENT_SPEC = dict(name=dict(type="str"), namespace=dict(type="str", default="default"), pods=dict(type="bool", default=False),
                     kind=request.ARGUMENT_SPEC["kind"])


def main() -> None:
    module = AnsibleModule(argument_spec=connection.ARGUMENT_SPEC | ARGUMENT_SPEC, supports_check_mode=True)
    module.no_log_values |= connection.secrets(module.params)
    try:
        result = task.info(module.params)
    except RolloutError as error:
        module.fail_json(**error.as_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
