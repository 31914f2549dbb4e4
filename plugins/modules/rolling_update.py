#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rolling_update
short_description: Update a ReplicationController, ReplicaSet, Deployment, StatefulSet or DaemonSet
  pod by pod, resumably
version_added: 0.1.0
description:
  - Replaces the pods of a controller step by step with pods of another image or template, without
    losing a pod, a request or the controller itself.
  - The task may be killed at any moment. Run it again to resume the update from its current state,
    which is stored in annotations of the controllers. Nothing has to be installed in the cluster.
  - If nothing is to be changed, the task waits until all pods are available, as C(kubectl rollout
    status) does, and fails if they never are.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: RV(steps) and RV(msg) are those of the update, on a simulated cluster in the state of
      the real one.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: O(state=restarted) replaces all pods each time; only a restart that has not ended is
      resumed.
options:
  # What to change
  name:
    description: Name of the controller. Exactly one of O(name), O(names) and selectors
      (O(label_selectors), O(field_selectors)) is required.
    type: str
  names:
    description:
      - Names of several controllers, in the order of their updates.
      - A name that does not exist, or may not be updated, fails before the first change. With the
        default of O(max_failures), no controller is updated then.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors in the syntax of C(kubectl -l). All controllers of O(kind) that
        match all selectors are updated. A controller that an owner controls is skipped.
      - With O(image) but no O(container), a controller without an image of the same repository is
        skipped. With O(container) or O(images), a controller that lacks one of the containers fails
        before the first change; with the default of O(max_failures), no controller is updated then.
        With O(state=rolled_back), a controller without an update in progress is skipped.
      - The task fails if no controller matches.
    type: list
    elements: str
  field_selectors:
    description: Field selectors in the syntax of C(kubectl --field-selector), such as
      V(metadata.name!=canary), alone or with O(label_selectors).
    type: list
    elements: str
  namespaces:
    description: Several namespaces, at most 100, instead of O(namespace). Each must have the
      O(names), or at least one controller that matches the selectors.
    type: list
    elements: str
  namespace_selectors:
    description: Label selectors of namespaces, instead of O(namespaces), for at most 100
      namespaces. Namespaces without a matching controller are skipped. Needs list on namespaces.
    type: list
    elements: str
  namespace:
    description: Namespace of the controllers. By default, as with C(kubectl), the namespace of the
      context, or of the pod that the task runs in, or else V(default).
    type: str
  kind:
    description:
      - Kind of the controllers, V(ReplicationController), V(ReplicaSet), V(Deployment),
        V(StatefulSet) or V(DaemonSet), in any case, or its short name V(rc), V(rs), V(deploy),
        V(sts) or V(ds). For a DeploymentConfig, see M(baton.kubernetes.migrate_to_deployment).
      - With selectors, several kinds, such as V(deploy,sts), in the order of their updates.
      - By default, V(ReplicationController); with O(name), if there is none of that name, the kind
        of the only other controller with the name.
      - The Deployment, StatefulSet or DaemonSet controller in the cluster replaces the pods, and
        the task controls it by the template and the update strategy, which is restored at the end.
        A ReplicationController or a ReplicaSet (without a Deployment) is scaled by the task itself.
    type: list
    elements: str
  api_version:
    description: API version of O(kind), for tasks that also suit C(kubernetes.core.k8s). Any other
      version is an error.
    type: str
  state:
    description:
      - V(updated) updates the pods to the requested image or template. An interrupted update is
        resumed, even if it was being rolled back.
      - V(rolled_back) rolls back the update in progress; with O(to_revision), also a completed
        update. Options for the desired pods are ignored, so the same task can be repeated with only
        O(state) changed.
      - V(restarted) replaces all pods with new pods of the same template, as C(kubectl rollout
        restart) does. A restart that has not ended is resumed.
    type: str
    choices: [updated, rolled_back, restarted]
    default: updated
  image:
    description: The new image. At most one of O(image), O(images), O(template), O(definition) and
      O(src) is allowed. With O(state=updated), one of them or O(roll_on) is required.
    type: str
  container:
    description: Name of the container for O(image). By default, the only container with an image of
      the same repository (or else the only such init container), or else, without selectors, the
      only container.
    type: str
  images:
    description: New images by the name of the container or init container.
    type: dict
  template:
    description: A partial pod template, which is merged into the current template as by C(kubectl
      patch) (strategic merge patch). For a Jinja file, use O(definition) with the lookup
      P(ansible.builtin.template#lookup).
    type: dict
  definition:
    description:
      - A complete manifest of the controller, as text or as a dictionary. The number of replicas
        is ignored.
      - For a ReplicationController or a ReplicaSet, another name in the manifest is the
        O(next_name). For other kinds, only the pod template is used, and kind and name must be
        those of the controller.
    type: raw
    aliases: [resource_definition]
  src:
    description: Path or URL of a YAML or JSON file with a O(definition). With a local connection,
      the path is also searched in C(files/) of the role and the playbook, and the file may be
      encrypted with Ansible Vault.
    type: path
  roll_on:
    description:
      - ConfigMaps and Secrets, as V(configmap/NAME) and V(secret/NAME), at most 100. The pods are
        replaced if their data has changed. Can be combined with an option for the template.
      - V(auto) selects the objects that the pod template reads in C(env), C(envFrom) and volumes.
      - The first task with this option replaces all pods, because nothing records the data that
        they have read. If data changes during an update, the task that finishes the update warns,
        and the next task replaces the pods again.
      - O(state=rolled_back) restores no data. Needs get on configmaps and secrets.
    type: list
    elements: str
  to_revision:
    description:
      - Revision to restore with O(state=rolled_back), even after a completed update. V(previous)
        undoes the last update. If that has been rolled back already, nothing changes.
        M(baton.kubernetes.rolling_update_info) lists the revisions.
      - By default, only an update in progress is rolled back.
    type: str
  next_name:
    description: New name for a ReplicationController or a ReplicaSet. The successor replaces the
      controller, which is deleted at the end of the update. By default, the controller keeps its
      name.
    type: str
  # How fast
  max_surge:
    description:
      - Maximum number of pods above the desired number, as a number or a percentage (rounded up).
      - By default, V(1), or the update strategy of a Deployment or a DaemonSet if
        O(max_unavailable) is not set either. Not for a StatefulSet, nor for a DaemonSet with
        O(pause_at).
    type: str
  max_unavailable:
    description:
      - Maximum number of unavailable pods below the desired number, as a number or a percentage
        (rounded down, for a DaemonSet up).
      - By default, V(0), or the update strategy of a Deployment or a DaemonSet if O(max_surge) is
        not set either. For a StatefulSet, its C(maxUnavailable) or V(1); more than V(1) needs the
        feature gate C(MaxUnavailableStatefulSet).
    type: str
  pod_replacement_policy:
    description:
      - Whether a pod is created when an old pod begins to terminate (V(TerminationStarted)), or
        when an old pod has terminated (V(TerminationComplete)), for example because a quota has no
        room for terminating pods.
      - V(TerminationComplete) is for a ReplicationController or a ReplicaSet, and needs list on
        pods. The pods of a StatefulSet, and of a DaemonSet without a surge, are always replaced in
        that way. A Deployment has its own C(spec.podReplacementPolicy).
    type: str
    choices: [TerminationStarted, TerminationComplete]
    default: TerminationStarted
  min_ready_seconds:
    description: Seconds that a new pod must be ready before it is available. Changes
      C(minReadySeconds) of the controller, whose value is the default.
    type: str
  # Canary
  pause_at:
    description:
      - Number or percentage (rounded up) of new pods at which the task ends successfully, as a
        canary. By default, the update runs to its end.
      - To resume, run the same task with a higher value or without this option. To roll back, use
        O(state=rolled_back). If at least as many pods are new already, no further pod is
        updated.
      - At V(100%), all pods are new, but the update can still be rolled back at once.
      - Nothing limits how long the update stays paused. For a deadline with a rollback, see the
        role P(baton.kubernetes.image_bump#role).
    type: str
  keep_old:
    description:
      - Whether to keep all old pods at the pause of O(pause_at), for blue/green. With
        O(pause_at=100%), all new pods exist beside all old pods, and the module
        M(baton.kubernetes.traffic_split) sends the requests to the old or to the new pods.
      - The same task without O(pause_at) and O(keep_old) removes the old pods, and
        O(state=rolled_back) the new ones.
      - Needs room for twice the number of pods. If a ResourceQuota has less, the task fails before
        its first change. O(max_surge) and O(max_unavailable) are not used. Old pods that an update
        without this option has removed are not created again.
      - For a ReplicationController, a ReplicaSet or a Deployment.
    type: bool
    default: false
  soak:
    description:
      - How long to watch the new pods at the pause of O(pause_at), or without it, once all pods are
        new. The task fails, and O(on_failure) applies, if a new pod restarts, becomes unready, is
        evicted or deleted, or has more warning Events than the old pods have on average. By
        default, new pods are not watched, except for pods that do not become available.
      - If the task runs again with the same options, it resumes a soak that was interrupted, and
        does not repeat a soak that has passed. Not for rollbacks. Needs list and watch on pods.
    type: str
  nodes:
    description: Label selector of the nodes on which O(pause_at) replaces the pods of a DaemonSet
      first. Needs list on nodes.
    type: str
  image_drift:
    description:
      - What to do if the tag of an image has moved, so that the new pods run different digests.
        V(warn) warns, with the pods of each digest; with V(fail), which needs list on pods, the
        task fails, and O(on_failure) applies.
      - Not for rollbacks, and not with O(wait=false).
    type: str
    choices: [warn, fail, ignore]
    default: warn
  # Waiting and failure
  wait:
    description:
      - With V(false), the task ends as soon as the cluster replaces the pods of a Deployment,
        StatefulSet or DaemonSet, and RV(rollout.phase) is V(progressing). Only with O(name).
      - The same task without this option follows the update to its end, and restores the update
        strategy. Not with O(pause_at), O(soak) and O(on_failure=rollback), nor for the rollback of
        a StatefulSet or a DaemonSet.
    type: bool
    default: true
  progress_deadline:
    description: Seconds without progress, such as another available pod, after which the task
      fails, and O(on_failure) applies. A O(soak) does not count. During the update, it replaces
      C(spec.progressDeadlineSeconds) of a Deployment. A cause that waiting cannot solve ends the
      task earlier (O(failure_grace)).
    type: str
    default: "600"
  timeout:
    description: Seconds for the whole task, including O(soak), after which the task fails, and
      O(on_failure) applies. By default, only O(progress_deadline) applies.
    type: str
    aliases: [wait_timeout]
  failure_grace:
    description: Seconds for which a pod must show a cause that waiting cannot solve, such as
      C(ImagePullBackOff) or C(CrashLoopBackOff), before the task fails, and O(on_failure) applies.
    type: str
    default: "10"
  on_failure:
    description:
      - What to do if the new pods do not become available or do not pass O(soak). The task fails in
        either case.
      - V(stop) leaves the update in progress, and the same task resumes it. Until then, the cluster
        replaces further pods of a Deployment, StatefulSet or DaemonSet only if the new pods become
        available after all.
      - V(rollback) rolls back to the template before the update, also in a task that resumes the
        update after a pause. After the last O(soak), when the old pods are gone and the last steps
        have begun, nothing is rolled back.
    type: str
    choices: [stop, rollback]
    default: stop
  # Several controllers
  concurrency:
    description: Maximum number of controllers that are updated at the same time, in all namespaces
      together.
    type: int
    default: 5
  max_failures:
    description: Number or percentage of controllers that may fail before no further controller is
      started, counted over all namespaces. By default, none is started after the first failure. The
      task fails if any controller fails.
    type: str
    default: "0"
  # Advanced
  deployment_label_key:
    description: Key of the label that distinguishes the new pods of a ReplicationController or a
      ReplicaSet from the old pods.
    type: str
    default: kubernetes.io/deployment
  autoscaler:
    description: What to do with a HorizontalPodAutoscaler of the controller. V(freeze) disables its
      scaling during the update and its pauses, and restores it at the end or after a failure.
      V(refuse) fails before the first change. V(ignore) does not change it; it then scales both
      versions of a Deployment, also in a pause.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  suspend_gitops:
    description:
      - Whether Flux ignores the controller during the update and its pauses. The first write of the
        update also sets the annotation C(kustomize.toolkit.fluxcd.io/reconcile=disabled), and for a
        HelmRelease C(helm.toolkit.fluxcd.io/driftDetection=disabled), and its last write removes
        them. An annotation that exists stays as it is. After a failure without a rollback, Flux
        ignores the controller until the update has ended or is rolled back.
      - Make the same change in git before the update ends. Otherwise the next reconciliation resets
        the controller to its manifest.
      - It does not suspend Argo CD, nor an upgrade of a Helm release, and does nothing for a
        controller that Flux does not manage. It needs no other permission.
    type: bool
    default: false
  lock:
    description: Whether to hold a Lease during the task, so that no other task updates the same
      controller. Without permission for Leases, use V(false), and run only one task at a time.
    type: bool
    default: true
  lock_timeout:
    description: Seconds to wait for another task that holds the Lease. By default, the task fails
      at once.
    type: str
    default: "0"
  progress:
    description: Whether to print a line for each step, and for what the task waits for. Only with
      the connections C(local) and C(ssh).
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - Permissions for each kind and feature are files to apply, in C(docs/reference/permissions) of
    the collection.
  - A traffic split (M(baton.kubernetes.traffic_split)) follows the update. An update to the end
    restores the route first, and a rollback first takes all requests from the new pods.
seealso:
  - module: baton.kubernetes.traffic_split
  - module: baton.kubernetes.rolling_update_info
  - module: baton.kubernetes.rollout_analysis
  - module: baton.kubernetes.migrate_to_deployment
"""

EXAMPLES = r"""
- name: Update foo to another image, a quarter of the pods at a time
  baton.kubernetes.rolling_update:
    name: foo
    namespace: shop
    image: registry.example.com/shop/foo:v2
    max_surge: 25%

- name: Update foo in a namespace whose quota has no room for terminating pods
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    max_surge: 0
    max_unavailable: 1
    pod_replacement_policy: TerminationComplete

- name: Update a canary of 10%, watch it for ten minutes, and roll back automatically if it fails
  baton.kubernetes.rolling_update:
    name: foo
    kind: StatefulSet
    image: myimage:v2
    pause_at: 10%
    soak: 10m
    on_failure: rollback

- name: Pause the update at half of the pods
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    pause_at: 50%

- name: Ask a person
  ansible.builtin.pause:
    prompt: Half of foo is new. Press Enter to update the rest, or Ctrl-C and A to stop here

- name: Update the rest, by the same task without the pause
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2

- name: Update a DaemonSet on the test nodes first, three pods in all
  baton.kubernetes.rolling_update:
    name: foo
    kind: DaemonSet
    image: myimage:v2
    pause_at: 3
    nodes: environment=test

- name: Roll back the update in progress
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back

- name: Roll back to the previous revision, whether the update is still in progress or not
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back
    to_revision: previous

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

- name: Update foo to another image, or to other data of these objects
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    roll_on: [configmap/shop, secret/shop-db]

- name: Update all controllers with a label, three at a time, and stop at the second failure
  baton.kubernetes.rolling_update:
    label_selectors: [app=shop]
    kind: [rc, rs, deploy, sts, ds]
    image: registry.example.com/shop/base:v2
    concurrency: 3
    max_failures: "1"
  register: shop
  ignore_errors: true

- name: Show the outcome of each controller
  ansible.builtin.debug:
    msg: "{{ shop.results | map(attribute='msg') }}"

- name: Update all controllers that run an image of this repository, in all namespaces of a team
  baton.kubernetes.rolling_update:
    label_selectors: [tier=backend]
    namespace_selectors: [example.com/team=shop]
    image: registry.example.com/shop/base:v2

- name: Replace a controller by another one, as kubectl rolling-update -f did
  baton.kubernetes.rolling_update:
    name: foo-v1
    src: foo-v2.yaml

- name: Start the update of a Deployment, and let a later task without wait follow it
  baton.kubernetes.rolling_update:
    name: foo
    kind: Deployment
    image: myimage:v2
    wait: false

- name: Restart the pods of a DaemonSet without a change
  baton.kubernetes.rolling_update:
    name: foo
    kind: DaemonSet
    state: restarted
"""

RETURN = r"""
msg:
  description: The outcome; after a failure, also the reason and the next commands.
  returned: always
  type: str
  sample: "foo is updated to myimage:v2: 6 of 6 replicas available"
namespace:
  description: Namespace of the controller, also without O(namespace).
  returned: with O(name), once the controller has been read
  type: str
kind:
  description: Kind of the controller, also without O(kind).
  returned: with O(name), once the controller has been read
  type: str
steps:
  description: The changes of this task in the cluster, in order; in check mode, the predicted
    changes.
  returned: with O(name), once the controller has been read
  type: list
  elements: dict
  contains:
    action:
      description: The change. V(keep) stores a template in the history, V(pace) changes the update
        strategy, V(hand over) reparents pods, V(freeze) and V(restore) are for an autoscaler.
      type: str
      choices: [annotate, create, scale, rename, restore, delete, freeze, update, pace, hand over,
        keep]
    kind:
      description: Kind of the changed object; V(Pod) for V(hand over).
      type: str
    name:
      description: Name of the changed object; for V(hand over), of the previous controller.
      type: str
    from:
      description: Size, images by container, or state before the step; for V(hand over), the number
        of pods.
      type: raw
    to:
      description: Size, images by container, or state after the step; for V(hand over), the new
        controller.
      type: raw
    at:
      description: Time of the step in RFC 3339, UTC.
      type: str
  sample:
    - {action: scale, kind: ReplicationController, name: foo, from: 6, to: 5, at:
      "2026-11-21T10:00:00Z"}
rollout:
  description: The status of the update.
  returned: with O(name), once the controller has been read
  type: dict
  contains:
    phase:
      description: V(complete) without an update in progress; V(taking_over) at its last steps.
      type: str
      choices: [complete, progressing, paused, taking_over]
    direction:
      description: Direction of the update in progress; V(null) without one.
      type: str
      choices: [forward, back]
    controller:
      description: The controller, or the old pods of a Deployment; V(null) if it was deleted.
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
      description: The owner of the new pods; V(null) without an update in progress.
      type: dict
      contains: *numbers
    desired:
      description: Number of replicas at the end of the update.
      type: int
    floor:
      description: Minimum number of available pods during the update.
      type: int
    ceiling:
      description: Maximum number of old and new pods during the update.
      type: int
    since:
      description: Time when the update in progress began or changed its direction; V(null) without
        one.
      type: str
    last_rollout:
      description: The last update; V(null) during an update, or if it is unknown.
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
          description: User who ended the update, as C(user@machine). Not for a Deployment.
          type: str
        to_revision:
          description: Number of the restored revision of a Deployment.
          type: int
    images:
      description: Images of this task.
      type: dict
      contains:
        before:
          description: Image of each container before the task.
          type: dict
        after:
          description: Image of each container after the task.
          type: dict
resume_command:
  description: Command that ends the pause, or follows the update to its end (O(wait=false)).
  returned: if the task leaves the update paused or in progress
  type: str
rollback_command:
  description: Command that rolls back the update.
  returned: if the task leaves the update paused or in progress
  type: str
failure:
  description: The parts of RV(msg).
  returned: failure
  type: dict
  contains:
    what:
      description: The failure.
      type: str
    where:
      description: The object, or an empty text.
      type: str
    why:
      description: The reasons of the cluster, one per line, or an empty text.
      type: str
    next_command:
      description: The next commands and hints, one per line, or an empty text.
      type: str
    commands:
      description: The commands of RV(failure.next_command). Each can be pasted unchanged, and
        repeats the options of the task.
      type: list
      elements: str
    url:
      description: Address of the page of the documentation that explains the error; empty unless
        the collection was built with the address of the documentation.
      type: str
    causes:
      description: Why pods do not become available, the most significant cause first.
      type: list
      elements: dict
      contains:
        kind:
          description: Kind of the cause, such as V(image) or V(crash).
          type: str
        reason:
          description: Reason of the cluster, such as V(ImagePullBackOff).
          type: str
        message:
          description: Message of the cluster.
          type: str
        suggestion:
          description: The next command or hint.
          type: str
        is_fatal:
          description: Whether waiting cannot help.
          type: bool
        place:
          description: Location of the cause, such as V(pod foo-abc, container web).
          type: str
        pod:
          description: Name of an affected pod, or an empty text.
          type: str
        container:
          description: Name of the container whose log is relevant, or an empty text.
          type: str
        is_restarted:
          description: Whether RV(failure.causes[].log) is from the previous run of the container.
          type: bool
        pods:
          description: Number of affected pods.
          type: int
        log:
          description: The last lines of the container's log.
          type: list
          elements: str
results:
  description: The outcome of each controller, also of those that failed or were not started, in
    order. With O(name), one entry.
  returned: also after a failure, once the controllers have been listed
  type: list
  elements: dict
  contains:
    namespace:
      description: Namespace of the controller.
      type: str
    name:
      description: Name of the controller.
      type: str
    kind:
      description: Kind of the controller; empty if it is unknown.
      type: str
    changed:
      description: Whether this controller was changed.
      type: bool
    failed:
      description: Whether this controller failed.
      type: bool
    skipped:
      description: Whether this controller was skipped or not started. RV(results[].msg) has the
        reason.
      type: bool
    msg:
      description: As RV(msg). RV(steps), RV(rollout), RV(resume_command), RV(rollback_command) and
        RV(failure) are also in each entry.
      type: str
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # the first import, because it ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.UPDATE_OPTIONS, supports_check_mode=True)
    task.run_module(
        module, functools.partial(task.update, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
