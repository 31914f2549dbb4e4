#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rolling_update
short_description: Roll a ReplicationController or a Deployment from one pod template to another, resumably
version_added: 0.1.0
description:
  - Replaces the pods of a ReplicationController or a Deployment step by step by pods with another image or template, without
    losing a pod, a request or the controller itself.
  - The task may be killed at any moment. Run it again and it goes on from where the cluster stands.
  - Needs nothing in the cluster. What it must remember stands on the controllers themselves, as annotations.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: RV(steps) are planned by the same planner on a simulated cluster that starts as the real one stands.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: O(state=restarted) replaces all pods each time it is asked for.
options:
  name:
    description:
      - Name of the controller. Exactly one of O(name), O(names) and O(label_selectors) says what is rolled.
    type: str
  names:
    description:
      - Names of several controllers, rolled in this order, at most O(concurrency) at once.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors that all must match; each controller of the kind in the namespace that does is rolled.
      - With O(image) and no O(container), those that do not run another image of the same repository are skipped; with
        O(state=rolled_back), those that no update is in progress of.
    type: list
    elements: str
  concurrency:
    description:
      - How many of several controllers are rolled at the same time.
    type: int
    default: 5
  max_failures:
    description:
      - How many of several controllers may fail, as a number or a percentage (rounded down). When there are more, no further one
        is begun; those that have begun go on to their end. The task fails if any of them fails.
    type: str
    default: "0"
  order_annotation:
    description:
      - Key of an annotation on the controllers whose value is their place in the order. Numbers come first, then texts, then
        those without it, each in the order of O(names) or by name.
      - It orders the beginnings. One is not waited for before the next one is begun, unless O(concurrency) is 1.
    type: str
  namespace:
    description:
      - Their namespace.
    type: str
    default: default
  kind:
    description:
      - Its kind.
      - A V(ReplicaSet) is one of its own, not that of a Deployment. Its selector cannot be changed, so that without O(next_name) it
        has to match the new pods as it is.
      - A V(Deployment) is stepped by the server's own controller. This module gives it the template, watches, explains, and goes
        back; with O(pause_at) it stands exactly there. O(next_name), O(max_steps) and O(update_period) are not for it.
    type: str
    choices: [ReplicationController, ReplicaSet, Deployment]
    default: ReplicationController
  state:
    description:
      - V(updated) brings the controller's pods to the wanted template. An interrupted update goes on, also one that was being
        rolled back.
      - V(rolled_back) undoes an update in progress, an interrupted one as well. What the pods were to become is then ignored, so
        that the same task can be given with another O(state).
      - V(restarted) replaces all pods by new ones from the same template.
      - V(migrated) makes the pods of a ReplicationController those of a Deployment of the same name, without creating, deleting or
        restarting one. O(max_surge) and O(max_unavailable) become its strategy if one of them is given.
    type: str
    choices: [updated, rolled_back, restarted, migrated]
    default: updated
  to_kind:
    description:
      - With O(state=migrated), what becomes of the controller.
    type: str
    choices: [Deployment]
  release_owner:
    description:
      - With O(state=migrated), whether a controller that another object controls (an OpenShift DeploymentConfig) may be taken from
        it. See to it first that this object does nothing any more, since it would make another controller.
    type: bool
    default: false
  image:
    description:
      - The new image. Exactly one of O(image), O(images), O(template), O(definition) and O(src) says what changes.
    type: str
  container:
    description:
      - The container that gets O(image). Needed only where it is not clear.
      - The only container is chosen, or else the only one that runs an image of the same repository now.
    type: str
  images:
    description:
      - New images by container name, for several containers at once. Init containers can be named too.
    type: dict
  template:
    description:
      - A partial pod template. The API server merges it over the present one (strategic merge patch).
    type: dict
  definition:
    description:
      - A whole next ReplicationController, as text or as a dictionary, as C(kubectl rolling-update -f) took it.
      - Its name is used as O(next_name). Without a name, the present controller stays, under its own.
      - The size is the present one's, whatever the definition says.
      - With O(kind=Deployment) it is a Deployment of the same name, of which the pod template counts and nothing else.
    type: raw
  src:
    description:
      - Path of a file with a O(definition), on the machine that the task runs on.
    type: path
  next_name:
    description:
      - Name for the controller of the new pods. The present controller is then deleted at the end, and this one stays.
      - Without it, the new pods' controller has a name of its own during the update, and at the end its pods are
        handed over to the present controller.
    type: str
  to_revision:
    description:
      - With O(state=rolled_back), the number of the revision to go back to, also after an update has ended.
        M(baton.kubernetes.rolling_update_info) lists them. Its template has a new number then.
      - For a ReplicationController it is an update to that template. One to another template that is in progress is rolled back
        first.
    type: int
  revision_history_limit:
    description:
      - How many templates of before are kept of a ReplicationController, each in a ControllerRevision (C(apps/v1)), to go back to
        with O(to_revision). Older ones are deleted. With V(0) the template of before is not kept.
      - Where ControllerRevisions may not be written, the update goes on without and warns.
      - The server keeps the history of a Deployment, and its C(revisionHistoryLimit) says how much of it.
    type: int
    default: 10
  deployment_label_key:
    description:
      - Key of the label that tells the old pods from the new ones. Those of a Deployment have one by the server.
    type: str
    default: kubernetes.io/deployment
  max_surge:
    description:
      - Replicas over the present size that may exist during the update, as a number or a percentage (rounded up).
      - V(1) by default. A Deployment goes by its own strategy if neither this nor O(max_unavailable) is given, and has it back
        after the update.
    type: str
  max_unavailable:
    description:
      - Replicas under the present size that may be unavailable during the update, as a number or a percentage (rounded down).
      - V(0) by default, for a Deployment only if O(max_surge) is given.
    type: str
  min_ready_seconds:
    description:
      - Seconds that a new pod must be ready to count as available. The controller's own value by default.
      - Takes effect when the update begins and stays on the controller.
    type: int
  update_period:
    description:
      - Seconds to pause between two turns of the update.
    type: float
    default: 0
  progress_deadline:
    description:
      - Seconds without any progress after which the task fails. Another available pod is progress.
      - Nothing is undone then. Run the task again to go on, or with O(state=rolled_back) to go back.
    type: float
    default: 600
  timeout:
    description:
      - Seconds for the whole task. No limit by default; O(progress_deadline) always holds.
    type: float
  failure_grace:
    description:
      - Seconds that a cause which waiting does not cure must last before the task fails (an image that cannot be pulled, a
        container that crashes, a missing ConfigMap).
      - Causes that may go away by themselves (no room on any node, a readiness probe that fails) are shown, and are no progress.
    type: float
    default: 10
  on_failure:
    description:
      - What to do when the new pods do not become available, be it by a cause that waiting does not cure, by
        O(progress_deadline) or by O(timeout).
      - V(stop) leaves the update where it stands, so that it can go on. V(rollback) undoes it. The task fails in both cases.
      - Nothing is undone once the handover has begun, as all new pods were available then.
    type: str
    choices: [stop, rollback]
    default: stop
  pause_at:
    description:
      - End the task well when there are that many new pods, as a number or a percentage of the size (rounded up); a canary.
      - The same task with a higher value, or without one, goes on from there. With O(state=rolled_back) it goes back.
      - With V(100%) all pods are new, and the handover is still to come.
      - Pods of a paused Deployment count when they are ready, whatever O(min_ready_seconds) says.
    type: str
  max_steps:
    description:
      - End the task well after that many changes of a size, when their pods are available. No limit by default.
    type: int
  autoscaler:
    description:
      - What to do with a HorizontalPodAutoscaler that scales the controller, since it would fight the update.
      - V(freeze) lets it do nothing while the update lasts (selectPolicy Disabled both ways, minReplicas 1) and restores it before
        the update's last step, or when the task fails. What it had before stands in an annotation on it, so that a later task
        restores it if this one is killed. It stays frozen during a pause.
      - V(refuse) fails before the first change. V(ignore) lets it meddle.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  return_sizes:
    description:
      - Whether RV(sizes) tells the sizes over time, for a picture of the update such as the role image_bump has in its report.
    type: bool
    default: false
  record_events:
    description:
      - Whether to record each step as an Event on the controller, for C(kubectl describe rc); none if that is refused.
      - Changes of a size that come within a second of each other share one; of many controllers, all steps within ten seconds.
        Those of the handover at the end are recorded when it is over, so that no pod waits for them.
    type: bool
    default: true
  lock:
    description:
      - Whether to hold a Lease (C(coordination.k8s.io/v1), C(baton-kubernetes-<name>)) from before the first change to the end, so
        that no other task works on the same controller meanwhile. It is deleted at the end.
      - Set this to V(false) where Leases are not allowed, if nothing else starts a second task for the same controller.
    type: bool
    default: true
  lock_timeout:
    description:
      - Seconds to wait while another task works on the same controller. By default the task fails then, and names the other one.
      - A task that was killed does not count. On the same machine that is known at once, elsewhere up to 15 seconds after its end.
    type: float
    default: 0
  progress:
    description:
      - Whether to show a line for each step, and for what is waited for, on the terminal (standard error) while the task runs.
      - Shown where the connection is local or V(ssh), with C(become) if one of the two users is root; never with C(async) or
        C(no_log), in check mode, or when the output is read as JSON.
      - Over ssh a task that has shown lines ends when it has not heard of Ansible for 60 seconds, so that it does not go on
        behind a network that is cut.
    type: bool
    default: true
notes:
  - The pods serve all the time, and none is ever without a controller. But while they are handed over to the present controller at
    the end, one that dies is not replaced. That takes about 0.3 seconds for 4 pods and 1 second for 100. With O(next_name) there
    is no handover.
seealso:
  - module: baton.kubernetes.rolling_update_info
"""

EXAMPLES = r"""
- name: Roll foo to another image
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2

- name: Roll faster, a quarter of the pods at a time
  baton.kubernetes.rolling_update:
    name: foo
    namespace: shop
    image: registry.example.com/shop/foo:v2
    max_surge: 25%
    min_ready_seconds: 10

- name: A canary of a tenth of the pods, which goes back by itself if they do not become available
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    pause_at: 10%
    on_failure: rollback

- name: The same for a Deployment
  baton.kubernetes.rolling_update:
    name: foo
    kind: Deployment
    image: myimage:v2
    pause_at: 10%

- name: Go back, from wherever the update stands
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back

- name: Go back to an earlier template, as rolling_update_info lists them
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back
    to_revision: 3

- name: Turn a ReplicationController into a Deployment that has the same pods
  baton.kubernetes.rolling_update:
    name: foo
    state: migrated
    to_kind: Deployment

- name: Change more than the image
  baton.kubernetes.rolling_update:
    name: foo
    template:
      spec:
        containers:
          - name: web
            image: myimage:v2
            env:
              - name: FEATURE
                value: "on"

- name: Roll whatever runs an image of that repository, ten at a time, and begin no other one after three failures
  baton.kubernetes.rolling_update:
    label_selectors:
      - tier=backend
    namespace: shop
    image: registry.example.com/shop/base:v2
    concurrency: 10
    max_failures: "2"

- name: Replace the controller by another one, as kubectl rolling-update -f did
  baton.kubernetes.rolling_update:
    name: foo-v1
    src: foo-v2.yaml

- name: New pods from the same template
  baton.kubernetes.rolling_update:
    name: foo
    state: restarted
"""

RETURN = r"""
msg:
  description: What has become of the controller, in one sentence; in a failure also why, and what to type next.
  returned: always
  type: str
  sample: "foo is updated to myimage:v2: 6 of 6 replicas available"
results:
  description: What has become of each of several controllers, in the order in which they were begun.
  returned: with O(names) or O(label_selectors), once the controllers have been listed
  type: list
  elements: dict
  contains:
    name:
      description: Name of the controller.
      type: str
    changed:
      description: Whether anything was changed for it.
      type: bool
    failed:
      description: Whether it failed.
      type: bool
    skipped:
      description: Whether it was left alone; RV(results[].msg) tells why.
      type: bool
    msg:
      description: As RV(msg).
      type: str
    steps:
      description: As RV(steps).
      type: list
      elements: dict
    sizes:
      description: As RV(sizes).
      type: list
      elements: dict
    rollout:
      description: As RV(rollout).
      type: dict
    failure:
      description: As RV(failure), where it failed.
      type: dict
steps:
  description: What this task has changed in the cluster, in order. In check mode, what it would change.
  returned: with O(name), once the controller has been looked at
  type: list
  elements: dict
  contains:
    action:
      description:
        - What was done. V(create), V(scale) and V(delete) a controller; V(annotate) it with where the update stands;
          V(rename) when the present controller gets the new template, V(restore) what was taken from it for a while or somebody
          has changed, its size or its template.
        - V(hand over) pods from one controller to another, each by one patch.
        - V(freeze) and V(restore) a HorizontalPodAutoscaler, before the first change of a size and before the end.
        - V(record) a template of before in the history, before it is lost, and forget the oldest one.
        - V(update) a Deployment's template, V(pace) how far the server's controller may go on with it. Each V(scale) of a
          ReplicaSet is then the server's.
      type: str
      choices: [annotate, create, scale, rename, restore, delete, freeze, update, pace, hand over, record]
    kind:
      description: Kind of the object; V(Pod) where pods are handed over.
      type: str
    name:
      description: Name of the object; where pods are handed over, of the controller that gives them.
      type: str
    from:
      description: Size, images or marks before; where pods are handed over, their number.
      type: raw
    to:
      description: Size, images or marks after; where pods are handed over, the name of the controller that gets them.
      type: raw
    at:
      description: Time of day in RFC 3339.
      type: str
  sample:
    - {action: scale, kind: ReplicationController, name: foo, from: 6, to: 5, at: "2026-11-21T10:00:00Z"}
sizes:
  description:
    - The sizes of both controllers each time they were seen to have changed, and at the end, for a picture of the update.
    - At most 500; of more, every second one is left out, but for the first and the last.
    - Empty unless O(return_sizes) is set, in check mode, and where there was nothing to do.
  returned: always, once the controller has been looked at
  type: list
  elements: dict
  contains:
    at:
      description: Time of day in RFC 3339, with milliseconds.
      type: str
    phase:
      description:
        - As RV(rollout.phase). While it is V(taking_over), both controllers ask for all pods, and each has a part of them.
      type: str
    controller:
      description: The size of the controller.
      type: dict
      contains: &size
        replicas:
          description: Replicas asked for.
          type: int
        available:
          description: Replicas that are available.
          type: int
    next:
      description: The same of the controller of the new pods, as long as it exists.
      type: dict
      contains: *size
  sample:
    - at: "2026-11-21T10:00:00.250Z"
      phase: progressing
      controller: {replicas: 5, available: 5}
      next: {replicas: 2, available: 1}
rollout:
  description: Where the update stands.
  returned: with O(name), once the controller has been looked at
  type: dict
  contains:
    phase:
      description: V(complete), V(progressing), V(paused) or V(taking_over).
      type: str
    direction:
      description: V(forward) or V(back), while an update is in progress.
      type: str
    controller:
      description: Name, uid, replicas, available replicas and images of the controller.
      type: dict
    next:
      description: The same of the controller of the new pods, while an update is in progress.
      type: dict
    desired:
      description: The number of replicas that the update has to reach.
      type: int
    floor:
      description:
        - The fewest available replicas that the update allows, and no more than there were when the task began.
      type: int
    ceiling:
      description: The most replicas in all that the update allows.
      type: int
    since:
      description: When the update began, while it is in progress.
      type: str
    last_rollout:
      description: Outcome, images before and after, and time of the last update, and who has ended it.
      type: dict
    images:
      description: Images by container, before this task and after it.
      type: dict
failure:
  description: The parts of the error message.
  returned: failure
  type: dict
  contains:
    what:
      description: What failed.
      type: str
    where:
      description: On which object.
      type: str
    why:
      description: The reason, in the cluster's own words.
      type: str
    next_command:
      description: What to type next.
      type: str
    causes:
      description: Why pods do not become available, the most telling cause first; empty in other failures.
      type: list
      elements: dict
      contains:
        kind:
          description: What kind of cause it is, the same word while the cluster's reasons alternate.
          type: str
        reason:
          description: The cluster's reason, such as V(ImagePullBackOff).
          type: str
        message:
          description: The cluster's message.
          type: str
        suggestion:
          description: What to look at or type next.
          type: str
        is_fatal:
          description: Whether waiting does not help.
          type: bool
        pod:
          description: A pod that shows it; empty where it is the controller.
          type: str
        container:
          description: Its container, where a log may tell more.
          type: str
        is_restarted:
          description: Whether the log is that of the container's previous run.
          type: bool
        pods:
          description: How many pods show it.
          type: int
        log:
          description: The last lines of that log, as far as it may be read.
          type: list
          elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.model import request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError


def main() -> None:
    module = AnsibleModule(argument_spec=connection.ARGUMENT_SPEC | request.ARGUMENT_SPEC, supports_check_mode=True)
    module.no_log_values |= connection.secrets(module.params)
    end = module.exit_json
    try:
        result = task.update(module.params, check_mode=module.check_mode, diff=module._diff)
    except RolloutError as error:
        result, end = error.as_result(), module.fail_json
    for warning in result.pop("warnings", ()):
        module.warn(warning)
    end(**result)


if __name__ == "__main__":
    main()
