#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: migrate_to_deployment
short_description: Turn a ReplicationController or an OpenShift DeploymentConfig into a Deployment
  that owns the same pods, resumably
version_added: 0.1.0
description:
  - Turns a ReplicationController, or an OpenShift DeploymentConfig, into a Deployment of the same
    name. No pod is created, deleted or restarted, and none is without a controller at any moment.
  - The task may be killed at any moment. Run it again to resume the migration from its current
    state.
  - Until the ReplicationController is deleted, O(state=rolled_back) undoes a migration that has not
    ended.
  - If the controller is a Deployment already, nothing is changed.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: RV(steps) are planned by the same code, on a simulated cluster that starts in the state
      of the real one. The API server tries the new objects with a dry run.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  # What to change
  name:
    description:
      - Name of the controller to migrate. Give exactly one of O(name), O(names) and selectors
        (O(label_selectors), O(field_selectors)).
    type: str
  names:
    description:
      - Names of several controllers to migrate, started in this order, at most O(concurrency) at a
        time.
      - All of them are looked at before the first one is started. A name that does not exist fails
        before anything is changed.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors in the syntax of C(kubectl -l). Every controller of O(kind), or of one of
        O(kinds), in O(namespace) that matches all of them is migrated. A controller that an
        interrupted migration has deleted is selected by the labels that it had.
    type: list
    elements: str
  field_selectors:
    description:
      - Field selectors in the syntax of C(kubectl --field-selector), alone or with
        O(label_selectors).
    type: list
    elements: str
  namespace:
    description:
      - Namespace of the controllers.
      - By default, the namespace of the context, or in a pod that of the pod, or else V(default),
        as with C(kubectl).
    type: str
  kind:
    description:
      - The kind of the controllers, V(ReplicationController) or V(DeploymentConfig), in any case,
        or C(kubectl)'s short name for it, V(rc) or V(dc).
      - By default, V(ReplicationController); with O(name), if there is no ReplicationController of
        that name, but a DeploymentConfig, the latter.
    type: str
  kinds:
    description:
      - Both kinds to choose from by O(label_selectors), instead of O(kind). ReplicationControllers
        that belong to a DeploymentConfig are left out.
    type: list
    elements: str
  state:
    description:
      - V(migrated) turns the controller into a Deployment. An interrupted migration is resumed,
        even if it was being rolled back.
      - V(rolled_back) undoes a migration that has not ended, as long as the ReplicationController
        exists. Its pods return to it, and a DeploymentConfig is resumed unless it was paused
        before.
    type: str
    choices: [migrated, rolled_back]
    default: migrated
  release_owner:
    description:
      - Whether to take a ReplicationController away from the object that controls it. Stop that
        object first, or it will create another one. For an OpenShift DeploymentConfig, use
        O(kind=DeploymentConfig) instead.
    type: bool
    default: false
  # How fast
  max_surge:
    description:
      - The C(maxSurge) of the Deployment's update strategy, as a number or as a percentage of its
        size. V(1) if only O(max_unavailable) is given. If neither is given, the Deployment has the
        server's default, or the strategy of the DeploymentConfig.
    type: str
  max_unavailable:
    description:
      - The C(maxUnavailable) of the Deployment's update strategy, as a number or as a percentage of
        its size. V(0) if only O(max_surge) is given.
    type: str
  # Waiting and failure
  progress_deadline:
    description:
      - Seconds without progress after which the task fails. Progress is a step taken, or another
        pod that becomes available.
      - Nothing is undone. Run the task again to resume, or run it with O(state=rolled_back).
    type: str
    default: "600"
  timeout:
    description:
      - Seconds after which the task fails, however much progress it makes. No limit by default, but
        O(progress_deadline) always applies.
    type: str
    aliases: [wait_timeout]
  failure_grace:
    description:
      - Seconds for which a problem that waiting cannot cure must persist before the task fails, for
        example a container that keeps crashing. The migration ends when all pods are available.
    type: str
    default: "10"
  # Several controllers
  concurrency:
    description:
      - How many controllers to migrate at the same time, with O(names) or O(label_selectors).
    type: int
    default: 5
  max_failures:
    description:
      - With O(names) or O(label_selectors), how many controllers may fail without keeping the
        others from being started, as a number or as a percentage of all of them (rounded down). By
        default, the first failure is one too many. The task fails if any controller fails,
        regardless of this option.
    type: str
    default: "0"
  order_annotation:
    description:
      - Key of an annotation that gives each controller its place in the order, as in
        M(baton.kubernetes.rolling_update).
    type: str
  # Advanced
  deployment_label_key:
    description:
      - Key of the label by which earlier updates of a ReplicationController distinguished its pods.
        The selector of the Deployment does not contain it, unless it has no other label.
    type: str
    default: kubernetes.io/deployment
  autoscaler:
    description:
      - What to do about a HorizontalPodAutoscaler that scales the controller, as in
        M(baton.kubernetes.rolling_update). A warning has the command that makes it scale the
        Deployment.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  record_events:
    description:
      - Whether to record each step as an Event on the controller, which C(kubectl describe) shows.
        The task continues without Events if it is not allowed to create them.
    type: bool
    default: true
  lock:
    description:
      - Whether to hold a Lease from before the first change until the end, so that no other task
        works on the same controller at the same time. Set this to V(false) where Leases are not
        allowed, and make sure by other means that only one task works on the controller.
    type: bool
    default: true
  lock_timeout:
    description:
      - Seconds to wait if another task is already working on the controller. By default, the task
        fails at once and says who runs the other one.
    type: str
    default: "0"
  progress:
    description:
      - Whether to show each step, and what the task is waiting for, as a line on standard error
        while the task runs.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - The pods keep serving throughout. While they change their controller, a pod that dies is not
    replaced until all of them have. That takes about 0.3 seconds for 4 pods, and 1 second for 100.
  - The migration needs a Role of its own, which can be removed afterwards.
seealso:
  - module: baton.kubernetes.rolling_update
  - module: baton.kubernetes.rolling_update_info
"""

EXAMPLES = r"""
- name: Turn a ReplicationController into a Deployment that owns the same pods
  baton.kubernetes.migrate_to_deployment:
    name: foo

- name: Turn an OpenShift DeploymentConfig into a Deployment, with an update strategy of its own
  baton.kubernetes.migrate_to_deployment:
    name: foo
    kind: DeploymentConfig
    max_surge: 25%
    max_unavailable: 0

- name: Undo a migration that has not ended
  baton.kubernetes.migrate_to_deployment:
    name: foo
    state: rolled_back

- name: Migrate all controllers of a team, two at a time
  baton.kubernetes.migrate_to_deployment:
    label_selectors:
      - team=shop
    kinds: [ReplicationController, DeploymentConfig]
    namespace: shop
    concurrency: 2
"""

RETURN = r"""
msg:
  description: What became of the controller. If the task failed, also the reason, and what to type
    next.
  returned: always
  type: str
  sample: "foo is now a Deployment, with myimage:v1: 6 of 6 replicas available"
kind:
  description: Kind of the controller in the request, also if O(kind) was not given.
  returned: with O(name), once the controller has been looked up
  type: str
  sample: ReplicationController
steps:
  description: What this task changed in the cluster, in order, as
    M(baton.kubernetes.rolling_update) returns it. In check mode, what it would change.
  returned: with O(name), once the controller has been looked up
  type: list
  elements: dict
  sample:
    - {action: create, kind: ReplicaSet, name: foo-5f7b8c, from: null, to: {web: "myimage:v1"}, at:
      "2026-11-21T10:00:00Z"}
rollout:
  description: Where the migration has got to, as M(baton.kubernetes.rolling_update) returns it.
  returned: with O(name), once the controller has been looked up
  type: dict
failure:
  description: The parts that make up RV(msg) if the task failed, as
    M(baton.kubernetes.rolling_update) returns them.
  returned: failure
  type: dict
results:
  description: What became of each controller, in the order in which they were started. With
    O(name), one entry, whose keys are also at the top.
  returned: always with O(name); otherwise once the controllers have been listed
  type: list
  elements: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # first: it ends the module on an older Python
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.MIGRATION_OPTIONS, supports_check_mode=True)
    task.end(module,
             functools.partial(task.migrate, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
