#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: migrate_to_deployment
short_description: Turn a ReplicationController or an OpenShift DeploymentConfig into a Deployment
  that owns the same pods
version_added: 0.1.0
description:
  - Turns a ReplicationController, or an OpenShift DeploymentConfig, into a Deployment of the same
    name. No pod is created, deleted or restarted, and each pod has a controller at every moment.
  - The task may be killed at any moment. To resume the migration from its current state, run the
    task again.
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
    details: Runs the migration on a simulated copy of the cluster, and returns the predicted
      RV(steps) and RV(msg). The API server validates the new objects in a dry run.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  # What to change
  name:
    description: Name of the controller. Exactly one of O(name), O(names) and selectors
      (O(label_selectors), O(field_selectors)) is required.
    type: str
  names:
    description: Names of several controllers, in the order of their migrations. If a controller
      does not exist, this failure is reported before the first change.
    type: list
    elements: str
  label_selectors:
    description: Label selectors in the syntax of C(kubectl -l). All controllers of O(kind) that
      match all selectors are migrated. A controller that an interrupted migration has already
      deleted is selected by its former labels.
    type: list
    elements: str
  field_selectors:
    description: Field selectors in the syntax of C(kubectl --field-selector). Can be combined with
      O(label_selectors).
    type: list
    elements: str
  namespace:
    description: Namespace of the controllers. The default is, as with C(kubectl), the namespace of
      the context, or V(default) if the context has no namespace. In a pod, without O(kubeconfig)
      and O(context), the default is the namespace of the pod.
    type: str
  kind:
    description:
      - Kind of the controllers, V(ReplicationController) or V(DeploymentConfig). Case-insensitive.
        The short names V(rc) and V(dc) also work.
      - The default is V(ReplicationController), or V(DeploymentConfig) if there is no
        ReplicationController O(name).
      - With selectors, both kinds can be given, as V(rc,dc). In this case, a ReplicationController
        that is controlled by a DeploymentConfig is skipped.
    type: list
    elements: str
  state:
    description:
      - V(migrated) turns the controller into a Deployment. An interrupted migration is resumed,
        even if it was being rolled back.
      - V(rolled_back) rolls back a migration in progress, as long as the ReplicationController
        exists. It fails for a completed migration. To undo a completed migration manually, see
        C(docs/how-to/migrate.md) of the collection.
    type: str
    choices: [migrated, rolled_back]
    default: migrated
  release_owner:
    description: Whether to migrate a ReplicationController that is controlled by another object.
      Stop that object first, or it creates another ReplicationController. If the other object is a
      DeploymentConfig, set O(kind=DeploymentConfig) instead.
    type: bool
    default: false
  # How fast
  max_surge:
    description: The C(maxSurge) of the Deployment, as a number or a percentage. If only
      O(max_unavailable) is set, the default is V(1). If neither option is set, the value of a
      DeploymentConfig is kept, and for a ReplicationController, the API server sets the default.
    type: str
  max_unavailable:
    description: The C(maxUnavailable) of the Deployment, as a number or a percentage. If only
      O(max_surge) is set, the default is V(0). If neither option is set, the value of a
      DeploymentConfig is kept, and for a ReplicationController, the API server sets the default.
    type: str
  # Waiting and failure
  progress_deadline:
    description: The task fails after this number of seconds without progress. Progress is, for
      example, a step or another available pod. To resume the migration, run the same task again.
    type: str
    default: "600"
  timeout:
    description: Maximum seconds for the migration of each controller. After this time, the
      migration fails. By default, only O(progress_deadline) applies. The keyword C(timeout) of
      Ansible limits the whole task.
    type: str
    aliases: [wait_timeout]
  failure_grace:
    description: If waiting cannot fix a problem (such as a crashing container), the task fails once
      the problem has persisted for this number of seconds.
    type: str
    default: "10"
  # Several controllers
  concurrency:
    description: Maximum number of controllers that are migrated at the same time.
    type: int
    default: 5
  max_failures:
    description: Number or percentage of failed controllers. If more controllers fail, no further
      migration is started. By default, the first failure prevents further migrations. If any
      controller fails, the task fails at the end. A percentage is rounded down, and does not count
      skipped controllers.
    type: str
    default: "0"
  # Advanced
  deployment_label_key:
    description: Key of the label that distinguished old and new pods in earlier updates. The
      selector of the Deployment does not contain this label.
    type: str
    default: kubernetes.io/deployment
  autoscaler:
    description: What to do with a HorizontalPodAutoscaler of the controller, as in
      M(baton.kubernetes.rolling_update). A warning shows the command that makes the autoscaler
      scale the Deployment.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  lock:
    description: Whether to hold a Lease during the task, so that no other task changes the same
      controller. Without permission for Leases, use V(false), and run only one task at a time.
    type: bool
    default: true
  lock_timeout:
    description: Seconds to wait for another task that holds the Lease. By default, the task fails
      at once.
    type: str
    default: "0"
  progress:
    description: Whether to print a line for each step, and a line that says what the task is
      waiting for.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - The pods keep serving. While their owner references change (about one second for 100 pods),
    failed pods are not replaced.
  - The required Role is in C(migrate-replicationcontroller.yaml) or
    C(migrate-deploymentconfig.yaml) in C(docs/reference/permissions) of the collection. The Role
    can be removed after the migration.
seealso:
  - module: baton.kubernetes.rolling_update
  - module: baton.kubernetes.rolling_update_info
"""

EXAMPLES = r"""
- name: Turn a ReplicationController into a Deployment that owns the same pods
  baton.kubernetes.migrate_to_deployment:
    name: foo

- name: Turn an OpenShift DeploymentConfig into a Deployment, and set its update strategy
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
    kind: [rc, dc]
    namespace: shop
    concurrency: 2
"""

RETURN = r"""
msg:
  description: The outcome; after a failure, also the reason and the next commands.
  returned: always
  type: str
  sample: "foo is now a Deployment, with myimage:v1: 6 of 6 replicas available"
kind:
  description: Kind of the migrated controller, even if O(kind) is not set.
  returned: with O(name), once the controller has been read
  type: str
  sample: ReplicationController
steps:
  description: The changes that this task made in the cluster, in the format of
    M(baton.kubernetes.rolling_update). In check mode, the predicted changes.
  returned: with O(name), once the controller has been read
  type: list
  elements: dict
  sample:
    - {action: create, kind: ReplicaSet, name: foo-5f7b8c, from: null, to: {web: "myimage:v1"}, at:
      "2026-11-21T10:00:00Z"}
rollout:
  description: The status of the migration, in the format of M(baton.kubernetes.rolling_update).
  returned: with O(name), once the controller has been read
  type: dict
failure:
  description: The parts of RV(msg), in the format of M(baton.kubernetes.rolling_update).
  returned: failure
  type: dict
results:
  description: The outcome of each controller, in the format of M(baton.kubernetes.rolling_update).
  returned: also after a failure, once the controllers have been listed
  type: list
  elements: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # the first import, because it ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.MIGRATION_OPTIONS, supports_check_mode=True)
    task.run_module(
        module, functools.partial(task.migrate, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
