#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rolling_update
short_description: Update a ReplicationController, ReplicaSet, Deployment, StatefulSet or DaemonSet
  pod by pod
version_added: 0.1.0
description:
  - Replaces the pods of a controller step by step with pods that have another image or template,
    without losing a pod, a request or the controller itself.
  - The task may be killed at any moment. To resume the update, run the task again. The state of the
    update is stored in annotations of the controllers. Nothing has to be installed in the cluster.
  - If there is nothing to change, the task waits until all pods are available, as C(kubectl rollout
    status) does. It fails if they do not become available.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: Runs the update on a simulated copy of the cluster, and returns the predicted RV(steps)
      and RV(msg).
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: O(state=restarted) replaces all pods each time, unless it resumes a restart that has
      not ended.
options:
  # What to change
  name:
    description: Name of the controller. Exactly one of O(name), O(names) and selectors
      (O(label_selectors), O(field_selectors)) is required.
    type: str
  names:
    description:
      - Names of several controllers, in the order of their updates.
      - A controller that does not exist or cannot be updated fails before the first change. With
        the default of O(max_failures), no controller is updated in this case.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors in the syntax of C(kubectl -l). All controllers of O(kind) that match all
        selectors are updated. A controller that is controlled by another object is skipped.
      - With O(image) but without O(container), a controller that has no image of the same
        repository is skipped. With O(state=rolled_back), a controller without an update in progress
        is skipped. With O(container) or O(images), a controller that lacks one of the containers
        fails before the first change. With the default of O(max_failures), no controller is updated
        in this case.
      - The task fails if no controller matches.
    type: list
    elements: str
  field_selectors:
    description: Field selectors in the syntax of C(kubectl --field-selector), such as
      V(metadata.name!=canary). Can be combined with O(label_selectors).
    type: list
    elements: str
  namespaces:
    description: Several namespaces (at most 100), instead of O(namespace). Each namespace must
      contain all controllers in O(names), or at least one controller that matches the selectors.
    type: list
    elements: str
  namespace_selectors:
    description: Label selectors of the namespaces, instead of O(namespaces). At most 100 namespaces
      may match. Namespaces without a matching controller are skipped. Needs the permission to list
      namespaces.
    type: list
    elements: str
  namespace:
    description: Namespace of the controllers. The default is, as with C(kubectl), the namespace of
      the context, or V(default) if the context has no namespace. In a pod, without O(kubeconfig)
      and O(context), the default is the namespace of the pod.
    type: str
  kind:
    description:
      - Kind of the controllers, V(ReplicationController), V(ReplicaSet), V(Deployment),
        V(StatefulSet) or V(DaemonSet). Case-insensitive. The short names V(rc), V(rs), V(deploy),
        V(sts) and V(ds) also work. For a DeploymentConfig, see
        M(baton.kubernetes.migrate_to_deployment).
      - With selectors, several kinds can be given, in the order of their updates, such as
        V(deploy,sts).
      - By default, the kind in the manifest (O(definition) or O(src)). Without a manifest,
        V(ReplicationController). If there is no ReplicationController O(name), if the user may not
        list ReplicationControllers, or if another option, such as O(nodes) or O(wait=false), cannot
        be used with this kind, the default is the kind of the only controller with this name.
      - For a Deployment, StatefulSet or DaemonSet, the cluster replaces the pods. The task sets the
        template and the update strategy, and restores the update strategy at the end. A
        ReplicationController or a ReplicaSet (without a Deployment) is scaled by the task itself.
    type: list
    elements: str
  api_version:
    description: API version of O(kind), accepted so that the same options work with
      C(kubernetes.core.k8s). Requires O(kind), or a manifest. A version that the kind does not have
      is an error.
    type: str
  state:
    description:
      - V(updated) updates the pods to the requested image or template. An interrupted update is
        resumed, even if it was being rolled back.
      - V(rolled_back) rolls back the update in progress. With O(to_revision), it also rolls back a
        completed update. Options for the desired pods, such as O(image), are ignored, so you can
        run the same task with only O(state) changed.
      - V(restarted) replaces all pods with new pods of the same template, as C(kubectl rollout
        restart) does. A restart whose end no task has recorded is resumed. If its pods are all
        replaced already, a task with O(wait=false) begins another restart, and any other task
        only records the end, without a restart.
    type: str
    choices: [updated, rolled_back, restarted]
    default: updated
  image:
    description: The new image. At most one of O(image), O(images), O(template), O(definition) and
      O(src) is allowed. With O(state=updated), one of them or O(roll_on) is required.
    type: str
  container:
    description: Name of the container for O(image). By default, the only container with an image of
      the same repository. If there is none, the only init container with such an image. With
      O(name) or O(names), the only container is used even if its image is of another repository.
    type: str
  images:
    description: New images by the name of the container or init container.
    type: dict
  template:
    description: A partial pod template, which is merged into the current template with a strategic
      merge patch, as C(kubectl patch) does. To render a Jinja file, use O(definition) with the
      lookup P(ansible.builtin.template#lookup).
    type: dict
  definition:
    description:
      - A complete manifest of the controller, as text or as a dictionary. The number of replicas
        is ignored.
      - For a ReplicationController or a ReplicaSet, another name in the manifest is used as
        O(next_name). For other kinds, only the pod template is used, and the kind and the name must
        be those of the controller.
    type: raw
    aliases: [resource_definition]
  src:
    description: Path or URL of a YAML or JSON file that contains the O(definition). With a local
      connection, the path is also searched in C(files/) of the role and the playbook, and the file
      may be encrypted with Ansible Vault.
    type: path
  roll_on:
    description:
      - ConfigMaps and Secrets (at most 100), written as V(configmap/NAME) and V(secret/NAME). If
        the data of one of them has changed, the pods are replaced. Can be combined with O(image) or
        another option for the template.
      - V(auto) selects the objects that the pod template reads in C(env), C(envFrom) and volumes.
      - The first task with this option replaces all pods, because there is no record of the data
        that the pods have read. If the data changes during an update, the task that finishes the
        update prints a warning, and the next task replaces the pods again.
      - O(state=rolled_back) does not restore the data. Needs the permission to get configmaps and
        secrets.
    type: list
    elements: str
  to_revision:
    description:
      - Revision to restore with O(state=rolled_back), even after a completed update. V(previous)
        undoes the last update. If the last update has been rolled back already, nothing is changed.
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
      - By default, V(1), or V(0) for a DaemonSet. For a Deployment or a DaemonSet, if
        O(max_unavailable) is not set either, the default is the value in its update strategy. This
        option is not for a StatefulSet, nor for a DaemonSet with O(pause_at).
    type: str
  max_unavailable:
    description:
      - How far the number of available pods may fall below the desired number, as a number or a
        percentage (rounded down, but rounded up for a DaemonSet).
      - By default, V(0). For a Deployment or a DaemonSet, if O(max_surge) is not set either, the
        default is the value in its update strategy. For a StatefulSet, the default is its
        C(maxUnavailable), or else V(1). For a StatefulSet, more than V(1) needs the feature gate
        C(MaxUnavailableStatefulSet).
    type: str
  pod_replacement_policy:
    description:
      - When to create a new pod, either as soon as an old pod begins to terminate
        (V(TerminationStarted)), or once an old pod has terminated (V(TerminationComplete)). Use the
        latter if, for example, a quota has no room for terminating pods.
      - V(TerminationComplete) is for a ReplicationController or a ReplicaSet, and needs the
        permission to list pods. A StatefulSet, and a DaemonSet without a surge, always wait until
        the old pod has terminated. A Deployment has its own C(spec.podReplacementPolicy).
    type: str
    choices: [TerminationStarted, TerminationComplete]
    default: TerminationStarted
  min_ready_seconds:
    description:
      - Seconds that a new pod must be ready before it counts as available. Changes
        C(minReadySeconds) of the controller. By default, C(minReadySeconds) is not changed.
      - The rollback of an update in progress restores the previous value, unless the rollback
        itself has this option.
      - The value must be less than O(progress_deadline) and, for a Deployment, less than
        C(spec.progressDeadlineSeconds).
    type: str
  # Canary
  pause_at:
    description:
      - Number or percentage (rounded up) of new pods at which the task pauses the update and ends
        successfully, as for a canary. By default, the update runs to its end.
      - To resume, run the same task with a higher value or without this option. To roll back, use
        O(state=rolled_back). If this number of new pods is already reached, no further pod is
        updated.
      - At V(100%), all pods are new, but the update can still be rolled back at once.
      - There is no limit to how long the update stays paused. For a deadline after which it is
        rolled back, see the role P(baton.kubernetes.image_bump#role).
    type: str
  keep_old:
    description:
      - Whether to keep all old pods at the pause of O(pause_at), for blue/green. With
        O(pause_at=100%), all old and all new pods run at the same time, and the module
        M(baton.kubernetes.traffic_split) sends the requests to the old or to the new pods.
      - To remove the old pods, run the same task without O(pause_at) and O(keep_old). To remove the
        new pods, use O(state=rolled_back).
      - The cluster needs room for twice the number of pods. If a ResourceQuota does not have
        enough, the task fails before its first change. O(max_surge) and O(max_unavailable) are not
        used. Old pods that were removed before this option was set are not created again.
      - This option is only for a ReplicationController, a ReplicaSet or a Deployment.
    type: bool
    default: false
  soak:
    description:
      - How long to watch the new pods, at the pause of O(pause_at), or once all pods are new if
        O(pause_at) is not set. The task fails, and O(on_failure) applies, if a new pod restarts,
        becomes unready, is evicted or deleted, or has more warning Events than the average old pod.
        By default, the task only waits until the new pods are available.
      - If the task runs again with the same options, it resumes an interrupted soak, and does not
        repeat a completed one, unless a new pod was created, restarted or unready since. Not for
        rollbacks. Needs the permissions to list and watch pods.
    type: str
  nodes:
    description: Label selector of the nodes on which a DaemonSet's pods are replaced first, up to
      the number of pods in O(pause_at). Needs the permission to list nodes.
    type: str
  image_drift:
    description:
      - What to do if the new pods run different digests because the tag of an image has moved.
        V(warn) prints a warning that lists the pods of each digest. With V(fail), the task fails,
        and O(on_failure) applies. V(fail) needs the permission to list pods.
      - Not for rollbacks, and not with O(wait=false).
    type: str
    choices: [warn, fail, ignore]
    default: warn
  # Waiting and failure
  wait:
    description:
      - With V(false), the task only starts the update of a Deployment, StatefulSet or DaemonSet,
        and ends while the cluster replaces the pods. RV(rollout.phase) is then V(progressing). A
        HorizontalPodAutoscaler of the controller keeps scaling (O(autoscaler=freeze) has no
        effect). Only with O(name).
      - To wait for the end of the update and restore the update strategy, run the same task without
        this option. V(false) cannot be used with O(pause_at), O(soak), O(suspend_gitops) or
        O(on_failure=rollback), nor for the rollback of a StatefulSet or a DaemonSet.
    type: bool
    default: true
  progress_deadline:
    description: Seconds without progress, such as another available pod, after which the task
      fails, and O(on_failure) applies. The time of O(soak) does not count. A problem that waiting
      cannot fix ends the task earlier (O(failure_grace)). The task does not use
      C(spec.progressDeadlineSeconds) of a Deployment, which has the same value before and after the
      update.
    type: str
    default: "600"
  timeout:
    description: Maximum seconds for the update of each controller, including O(soak). After this
      time, the update fails, and O(on_failure) applies. By default, only O(progress_deadline)
      applies. The keyword C(timeout) of Ansible limits the whole task.
    type: str
    aliases: [wait_timeout]
  failure_grace:
    description: Seconds for which a problem that waiting cannot fix (such as C(ImagePullBackOff) or
      C(CrashLoopBackOff)) must persist before the task fails, and O(on_failure) applies.
    type: str
    default: "10"
  on_failure:
    description:
      - What to do if the new pods do not become available or do not pass O(soak). With either
        value, the task fails.
      - V(stop) leaves the update in progress. To resume it, run the same task again. Meanwhile, the
        cluster replaces further pods of a Deployment, StatefulSet or DaemonSet only if the new pods
        become available after all.
      - V(rollback) rolls back to the template before the update, even if the task has resumed the
        update after a pause. After the last O(soak), once the old pods are deleted and the last
        steps have begun, nothing is rolled back.
    type: str
    choices: [stop, rollback]
    default: stop
  # Several controllers
  concurrency:
    description: Maximum number of controllers that are updated at the same time, counted over all
      namespaces.
    type: int
    default: 5
  max_failures:
    description: Number or percentage of controllers that may fail, counted over all namespaces. If
      more controllers fail, no further controller is started. By default, none may fail. The task
      fails if any controller fails. A percentage is rounded down, and does not count skipped
      controllers.
    type: str
    default: "0"
  # Advanced
  deployment_label_key:
    description: Key of the label that distinguishes the new pods of a ReplicationController or a
      ReplicaSet from the old pods.
    type: str
    default: kubernetes.io/deployment
  autoscaler:
    description: What to do with a HorizontalPodAutoscaler of the controller. V(freeze) disables
      scaling during the update and its pauses, and enables it again at the end or after a failure
      (not with O(wait=false)). Settings that another client changes meanwhile are kept. With
      V(refuse), the task fails before the first change. V(ignore) does not change the
      autoscaler, which then scales both versions of a Deployment, even during a pause.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  suspend_gitops:
    description:
      - Whether Flux ignores the controller during the update and its pauses. The first write of the
        update sets the annotation C(kustomize.toolkit.fluxcd.io/reconcile=disabled), and for a
        HelmRelease C(helm.toolkit.fluxcd.io/driftDetection=disabled). The last write removes them.
        An annotation that exists before the update is not changed. After a failure without a
        rollback, Flux ignores the controller until the update is completed or rolled back.
      - Make the same change in git before the update ends. Otherwise the next reconciliation resets
        the controller to its manifest.
      - This option does not suspend Argo CD or upgrades of a Helm release, and has no effect on a
        controller that Flux does not manage. It needs no additional permission.
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
    description: Whether to print a line for each step, and a line that says what the task is
      waiting for. Only with the connections C(local) and C(ssh).
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - For each kind and feature, C(docs/reference/permissions) of the collection has a file that you
    can apply to grant the permissions.
  - If the requests are split (M(baton.kubernetes.traffic_split)), the task also changes the route.
    It restores the route before an update runs to its end, and stops sending requests to the new
    pods before a rollback.
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

- name: Update the rest with the same task, but without the pause
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

- name: Update foo to another image, or replace its pods if the data of these objects has changed
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

- name: Replace a controller with another one, as kubectl rolling-update -f did
  baton.kubernetes.rolling_update:
    name: foo-v1
    src: foo-v2.yaml

- name: Start the update of a Deployment without waiting (to wait later, leave out wait=false)
  baton.kubernetes.rolling_update:
    name: foo
    kind: Deployment
    image: myimage:v2
    wait: false

- name: Restart the pods of a DaemonSet without changing its template
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
  description: Namespace of the controller, even if O(namespace) is not set.
  returned: with O(name), once the controller has been read
  type: str
kind:
  description: Kind of the controller, even if O(kind) is not set.
  returned: with O(name), once the controller has been read
  type: str
steps:
  description: The changes that this task made in the cluster, in order. In check mode, the
    predicted changes.
  returned: with O(name), once the controller has been read
  type: list
  elements: dict
  contains:
    action:
      description: The change. V(keep) stores a template in the history, V(pace) changes the update
        strategy, V(hand over) makes another controller the owner of the pods, and V(freeze) and
        V(restore) change an autoscaler.
      type: str
      choices: [annotate, create, scale, rename, restore, delete, freeze, update, pace, hand over,
        keep]
    kind:
      description: Kind of the changed object. For V(hand over), V(Pod).
      type: str
    name:
      description: Name of the changed object. For V(hand over), the name of the previous
        controller.
      type: str
    from:
      description: Size, images by container, or state before the step. For V(hand over), the number
        of pods.
      type: raw
    to:
      description: Size, images by container, or state after the step. For V(hand over), the new
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
      description: V(complete) if no update is in progress. V(taking_over) during the last steps of
        an update.
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
    floor:
      description: Minimum number of available pods during the update.
      type: int
    ceiling:
      description: Maximum number of old and new pods during the update.
      type: int
    since:
      description: Time when the update in progress began or changed its direction. V(null) if no
        update is in progress.
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
  description: Command that resumes the paused update. With O(wait=false), the command that waits
    for the end of the update.
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
      description: The reasons that the cluster reports, one per line, or an empty text.
      type: str
    next_command:
      description: The next commands and hints, one per line, or an empty text.
      type: str
    commands:
      description: The commands of RV(failure.next_command). Each contains the options of the task
        and can be run unchanged.
      type: list
      elements: str
    url:
      description: Address of the documentation page that explains the error. Empty if the
        collection was built without the address of its documentation.
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
          description: Reason that the cluster reports, such as V(ImagePullBackOff).
          type: str
        message:
          description: Message that the cluster reports.
          type: str
        suggestion:
          description: The next command or hint.
          type: str
        is_fatal:
          description: Whether this is a problem that waiting cannot fix.
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
          description: Whether RV(failure.causes[].log) is from the run before the last restart.
          type: bool
        pods:
          description: Number of affected pods.
          type: int
        log:
          description: The last lines of the container's log.
          type: list
          elements: str
results:
  description: The outcome of each controller, in order, including controllers that failed or were
    not started. With O(name), there is one entry.
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
      description: Kind of the controller. Empty if the kind is unknown.
      type: str
    changed:
      description: Whether this controller was changed.
      type: bool
    failed:
      description: Whether this controller failed.
      type: bool
    skipped:
      description: Whether this controller was skipped or not started. RV(results[].msg) contains
        the reason.
      type: bool
    msg:
      description: Same as RV(msg), for this controller. Each entry also contains RV(steps),
        RV(rollout), RV(resume_command), RV(rollback_command) and RV(failure).
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
