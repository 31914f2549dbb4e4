#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rolling_update
short_description: Roll a ReplicationController, ReplicaSet, Deployment, StatefulSet or DaemonSet to
  another template, resumably
version_added: 0.1.0
description:
  - Replaces the pods of a ReplicationController, a ReplicaSet, a Deployment, a StatefulSet or a
    DaemonSet step by step with pods that run another image or template, without losing a pod, a
    request or the controller itself.
  - The task may be killed at any moment. Run it again to resume the update from its current state.
  - Nothing has to be installed in the cluster. The state of the update is stored in annotations on
    the controllers themselves.
  - If nothing is to be changed, the task waits until all pods of the controller are available, as
    C(kubectl rollout status) does, and fails if they never are.
  - In these options, I(the controller) is the one that you name, and I(its successor) is the one
    that owns the new pods while an update is in progress.
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
      of the real one.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details: O(state=restarted) replaces all pods each time it is requested.
options:
  # What to change
  name:
    description:
      - Name of the controller to roll. Give exactly one of O(name), O(names) and
        O(label_selectors).
    type: str
  names:
    description:
      - Names of several controllers to roll, started in this order, at most O(concurrency) at a
        time.
      - All of them are looked at before the first one is started. A name that does not exist, or
        that may not be updated, fails before anything is changed; with the default of
        O(max_failures), none of the others is started then.
    type: list
    elements: str
  label_selectors:
    description:
      - Label selectors in the syntax of C(kubectl -l). Every controller of O(kind), or of one of
        O(kinds), in O(namespace) that matches all of them is rolled. Without O(kind) and O(kinds),
        only ReplicationControllers are.
      - With O(image) but no O(container), controllers that do not run an image from the same
        repository are skipped. With O(state=rolled_back), controllers that have no update in
        progress are skipped.
    type: list
    elements: str
  field_selectors:
    description:
      - Field selectors in the syntax of C(kubectl --field-selector), such as
        V(metadata.name!=canary), instead of O(label_selectors) or together with them. Which fields
        there are depends on the kind; all have C(metadata.name).
    type: list
    elements: str
  namespaces:
    description:
      - Several namespaces, at most 100, instead of O(namespace). With O(names), the task is for
        each of the names in each of the namespaces; with O(label_selectors), for all controllers in
        them that match, of which each namespace must have at least one.
      - O(concurrency), O(max_failures) and O(order_annotation) count across all namespaces. Each
        controller has its Lease in its own namespace, and needs the same permissions there.
    type: list
    elements: str
  namespace_selectors:
    description:
      - Label selectors of namespaces in the syntax of C(kubectl -l), instead of O(namespaces). The
        task is for all namespaces that match all of them, at most 100, except those that are being
        deleted. Needs list on namespaces, which takes a ClusterRole. With O(label_selectors), a
        namespace without a matching controller is left out.
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
      - The kind of the controllers.
      - By default, V(ReplicationController); with O(name), if there is no ReplicationController of
        that name, the kind of the only other object that has it.
      - V(ReplicaSet) is for ReplicaSets that do not belong to a Deployment. The selector of a
        ReplicaSet cannot be changed, so without O(next_name) the present selector has to match the
        new pods.
      - V(Deployment) leaves the scaling to the Deployment controller in the cluster. This module
        changes the template, watches, explains what goes wrong, rolls back, and pauses exactly at
        O(pause_at). O(next_name) and O(update_period) cannot be used with it.
      - V(StatefulSet) leaves the replacing to the StatefulSet controller in the cluster, one pod at
        a time from the highest number down. This module changes the template, pauses exactly at
        O(pause_at) by the partition, which is restored at the end, watches, explains, and rolls
        back, also a StatefulSet that is stuck with a pod that never becomes ready. O(next_name),
        O(update_period) and O(max_surge) cannot be used with it.
      - V(DaemonSet) leaves the replacing to the DaemonSet controller in the cluster, node by node;
        its size is the number of nodes that take a pod of it. Up to O(pause_at), the controller
        replaces no pods by itself (C(OnDelete)), and this module deletes as many old pods, one
        after the other, within O(max_unavailable). O(nodes) says which of them are first.
        O(next_name) and O(update_period) cannot be used with it.
      - One of V(ReplicationController), V(ReplicaSet), V(Deployment), V(StatefulSet) and
        V(DaemonSet), in any case, or C(kubectl)'s short name for it, V(rc), V(rs), V(deploy),
        V(sts) or V(ds). For OpenShift's DeploymentConfig, there is
        M(baton.kubernetes.migrate_to_deployment).
    type: str
  kinds:
    description:
      - Several kinds to choose from by O(label_selectors), instead of O(kind). The controllers of
        the first kind are started first, unless O(order_annotation) says otherwise.
      - ReplicaSets that belong to a Deployment are left out. An option that cannot be used with one
        of the kinds is refused.
    type: list
    elements: str
  api_version:
    description:
      - The API version of O(kind), such as V(apps/v1), for tasks that also suit
        C(kubernetes.core.k8s). It follows from O(kind), so it can be left out; any other version is
        refused.
    type: str
  state:
    description:
      - V(updated) brings the pods to the template that the task asks for. An interrupted update is
        resumed, even if it was being rolled back.
      - V(rolled_back) undoes the update in progress, including an interrupted one; with
        O(to_revision=previous), also an update that has ended. Options that say what the pods
        should become are ignored, so you can repeat the same task with only O(state) changed.
      - V(restarted) replaces all pods with new ones from the same template.
    type: str
    choices: [updated, rolled_back, restarted]
    default: updated
  image:
    description:
      - The new image. Give exactly one of O(image), O(images), O(template), O(definition) and
        O(src) to say what changes, or none of them, but O(roll_on).
    type: str
  container:
    description:
      - Name of the container that gets O(image).
      - By default, it is the only container that currently runs an image from the same repository,
        or else the only init container that does, or else, where the controller is chosen by name,
        the only container of the pod. The task fails if that leaves more than one to choose from.
    type: str
  images:
    description:
      - New images as a dictionary from container name to image, to change several containers at
        once. Init containers can be included.
    type: dict
  template:
    description:
      - A partial pod template, which the API server merges into the current one (strategic merge
        patch).
      - Not the path of a Jinja file, as in C(kubernetes.core.k8s). Give one as O(definition), with
        the lookup P(ansible.builtin.template#lookup).
      - A list with entries that such a merge cannot tell apart (two ports of one number) replaces
        the current one.
    type: dict
  definition:
    description:
      - A complete manifest of the new controller, as text or as a dictionary, like the file that
        C(kubectl rolling-update -f) took.
      - The name in the manifest is used as O(next_name). If it has no name, the controller keeps
        its own.
      - The number of replicas in the manifest is ignored; the update keeps the current size.
      - With O(kind=Deployment), O(kind=StatefulSet) or O(kind=DaemonSet), the manifest must be one
        of the same kind and name, and only its pod template is used.
    type: raw
    aliases: [resource_definition]
  src:
    description:
      - Path of a YAML or JSON file that contains a O(definition), on the machine where the task
        runs, or its URL (C(http), C(https) or C(ftp)).
      - With a local connection, a relative path is looked for in C(files/) of the role or the
        playbook as well, and the file may be encrypted with Ansible Vault. It is decrypted in
        memory only.
    type: path
  roll_on:
    description:
      - ConfigMaps and Secrets whose data the pods read, such as V(configmap/shop) or
        V(secret/shop-db). The pods are replaced when that data has changed, because the pod
        template gets an annotation with a checksum of each of them, as Helm charts do. Alone, or
        with an option that changes the template.
      - V(auto) is all of them that the pod template names in C(env), C(envFrom), C(volumes) and
        projected volumes. Others can be listed next to it. At most 100 in all.
      - The first task with this option replaces all pods, since no checksum says which data they
        have read. Data that changes during the update, or during a pause, is for the next task.
      - An object that does not exist fails before anything is changed, unless the pod template
        calls it optional.
      - A checksum does not reveal the data of a Secret. Its key is the C(metadata.uid) of the
        Secret, which only those can see who may read it; a Secret that was deleted and created
        again has another checksum.
      - O(state=rolled_back) restores the pod template with its checksums, but no data. Needs get on
        configmaps and secrets.
    type: list
    elements: str
  to_revision:
    description:
      - Number of the revision to return to with O(state=rolled_back). This also works when no
        update is in progress. Revisions are listed by M(baton.kubernetes.rolling_update_info). The
        template gets a new number when it comes back into use.
      - V(previous) undoes the last update, whether it is still in progress or not. If it has ended,
        this returns to the newest revision whose template is not the current one. It does so only
        once. If the same task is run again, or if the last update was rolled back already, nothing
        changes until there is another update, by any client; a return to a revision by its number
        counts as one.
      - For a ReplicationController or a ReplicaSet, this is an update to the template of that
        revision. An update in progress to any other template is rolled back first.
      - By default, O(state=rolled_back) undoes the update in progress.
    type: str
  next_name:
    description:
      - Name for the successor, which then replaces the controller for good. The controller is
        deleted at the end of the update.
      - By default, the successor is temporary. Its name is the controller's name with a hash added,
        and at the end of the update it hands its pods over to the controller and is deleted.
    type: str
  # How fast
  max_surge:
    description:
      - How many replicas may exist above the current size during the update, as a number or as a
        percentage of that size (rounded up). Pods that are terminating do not count, unless
        O(pod_replacement_policy=TerminationComplete).
      - V(1) by default. A Deployment's own update strategy is used instead if neither this nor
        O(max_unavailable) is given; if one of them is, the strategy is restored after the update.
      - For a DaemonSet, that is so too, and V(0) is the default if O(max_unavailable) is given,
        because the API server takes only one of them. It cannot be used with O(pause_at), nor if
        the pods use ports of their node (C(hostPort)).
    type: str
  max_unavailable:
    description:
      - How many replicas below the current size may be unavailable during the update, as a number
        or as a percentage of that size (rounded down).
      - V(0) by default. For a Deployment, that default only applies if O(max_surge) is given;
        otherwise the Deployment's own update strategy is used.
      - For a StatefulSet, the default is its own C(maxUnavailable), or V(1). More than one pod at a
        time is only possible where the cluster has the feature gate C(MaxUnavailableStatefulSet).
      - For a DaemonSet, percentages are rounded up, as its controller does, and the default is its
        own update strategy. Pods that are not available for other reasons count as well.
    type: str
  pod_replacement_policy:
    description:
      - When a new pod may come in place of an old one.
      - With V(TerminationStarted), as soon as the old one begins to terminate. If pods take long to
        terminate, there can be as many terminating pods as new ones for that time.
      - With V(TerminationComplete), once the old one has terminated. Terminating pods count towards
        the size and O(max_surge), so a cluster at its quota has room for each new pod. The update
        ends once all old pods have terminated. Pods within their grace period are waited for, even
        if that is longer than O(progress_deadline).
      - For a ReplicationController and a ReplicaSet. Pods of a StatefulSet are always replaced when
        they have terminated, and so are those of a DaemonSet without a surge; with a surge,
        V(TerminationComplete) is refused. For a Deployment it is refused too, because the cluster
        takes the steps. Where the cluster has the feature gate C(DeploymentPodReplacementPolicy),
        set C(spec.podReplacementPolicy) of the Deployment.
      - V(TerminationComplete) needs list on pods.
    type: str
    choices: [TerminationStarted, TerminationComplete]
    default: TerminationStarted
  min_ready_seconds:
    description:
      - Seconds for which a new pod must have been ready before it counts as available. By default,
        the value that the controller already has.
      - Applied when an update begins, and kept on the controller afterwards.
    type: str
  update_period:
    description:
      - Seconds to pause between one round of scaling and the next. By default, the next round
        starts as soon as the new pods are available.
    type: str
    default: "0"
  # Canary
  pause_at:
    description:
      - End the task successfully once this many pods are new, as a number or as a percentage of the
        controller's size (rounded up). Use it for a canary. By default, the update runs to its end.
      - To resume, run the same task with a higher value or without this option. To roll back, run
        it with O(state=rolled_back).
      - At V(100%), all pods are new, but the handover has not begun.
      - The new pods of a Deployment count as soon as they are ready, regardless of
        O(min_ready_seconds).
      - The pods of a DaemonSet are updated in the order of the names of their nodes; those that are
        not ready, once no more pods may be missing. A pod that dies, or whose node is new, is a new
        one.
    type: str
  soak:
    description:
      - Watch the new pods for this long, at each pause before the task ends and once more before
        the last steps of the update, as long as going back is cheap. In seconds, or with units,
        such as V(90s), V(10m) or V(1h30m). Not at all by default.
      - The task fails, and O(on_failure) applies, if a new pod restarts, loses its readiness, is
        killed for memory, is evicted, or is deleted, or if more warnings (Events) are seen about
        new pods than about old ones.
      - If the task is killed, run it again. The time since the soak began counts if nothing has
        happened to the new pods since, as far as they say it themselves; otherwise it counts from
        the last thing that has happened. One that has passed at a pause is not repeated, unless
        there are new pods that are younger than that.
      - Nothing is watched with O(state=rolled_back). Needs list and watch on pods.
    type: str
  nodes:
    description:
      - Which pods of a DaemonSet are the first up to O(pause_at), as the labels of their nodes (a
        label selector, such as V(node-role.kubernetes.io/edge)). If O(pause_at) is more than there
        are such nodes, pods on others follow.
      - Only with O(kind=DaemonSet) and O(pause_at). The task needs to list nodes, which takes a
        ClusterRole.
    type: str
  image_drift:
    description:
      - What to do if a tag has moved, so that the new pods run different versions of one image.
        The C(imageID)s of all containers of the new pods are compared when there are two new pods,
        when half of all are new, and before a pause or the last steps of the update. Pods of a
        canary still count when the update is resumed later.
      - V(warn) adds a warning that says which pods run which version. With V(fail), the task fails,
        and O(on_failure) applies; that needs list on pods. V(ignore) does not compare them.
      - Images that are named by a digest cannot move, and are not compared. Nothing is compared
        with O(state=rolled_back) and with O(wait=false).
    type: str
    choices: [warn, fail, ignore]
    default: warn
  # Waiting and failure
  wait:
    description:
      - Whether to wait until the update has ended. With V(false), the task ends as soon as the
        controller in the cluster replaces the pods, and RV(rollout.phase) is V(progressing).
      - A later task, the same one without this option, follows the update in progress to its end,
        and restores settings (O(max_surge)) that it has changed.
      - Only for one Deployment, StatefulSet or DaemonSet (O(name)), which the cluster updates by
        itself. Not with O(pause_at), O(soak) and O(on_failure=rollback), nor for the rollback of a
        StatefulSet or a DaemonSet, all of which the task does itself. A HorizontalPodAutoscaler is
        not frozen.
    type: bool
    default: true
  progress_deadline:
    description:
      - Seconds without progress after which the task fails. Progress is a step taken, or another
        pod that becomes available, or, with O(pod_replacement_policy=TerminationComplete), another
        pod that has terminated.
      - Nothing is undone. Run the task again to resume, or run it with O(state=rolled_back) to roll
        back.
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
        example an image that cannot be pulled, a container that keeps crashing, or a missing
        ConfigMap.
      - Pods that their nodes reject are not waited for that long, because they are replaced without
        end. After three for each that is missing the task fails, and the successor makes no more of
        them.
      - Problems that may pass, such as a lack of room on the nodes or a failing readiness probe,
        are shown while the task waits, and only count towards O(progress_deadline).
    type: str
    default: "10"
  on_failure:
    description:
      - What to do if the new pods do not become available, whether the task gives up because of
        O(failure_grace), O(progress_deadline) or O(timeout), or if they do not pass O(soak).
      - V(stop) leaves the update where it is, so that it can be resumed. V(rollback) undoes it. The
        task fails in both cases.
      - Nothing is undone once the handover has begun, because all new pods were available by then.
      - Nothing is undone either if the task had nothing to change and only waited for pods that are
        not available.
    type: str
    choices: [stop, rollback]
    default: stop
  # Several controllers
  concurrency:
    description:
      - How many controllers to roll at the same time, with O(names) or O(label_selectors).
    type: int
    default: 5
  max_failures:
    description:
      - With O(names) or O(label_selectors), how many controllers may fail without keeping the
        others from being started, as a number or as a percentage of all of them (rounded down).
        Once more than that have failed, no further ones are started, and those already started run
        to their end. By default, the first failure is one too many; with V(1), the second.
      - Controllers that are refused before the first one is started count as well.
      - The task fails if any controller fails, regardless of this option.
    type: str
    default: "0"
  order_annotation:
    description:
      - Key of an annotation that gives each controller its place in the order, with O(names) or
        O(label_selectors). Controllers whose value is a number come first, then those with any
        other text, then those without the annotation. Ties are in the order of O(namespaces), or
        sorted by namespace, and in a namespace in the order of O(kinds), and of O(names) or sorted
        by name.
      - This is the order in which controllers are started. Unless O(concurrency) is 1, one may
        start before the previous one has finished.
    type: str
  # Advanced
  deployment_label_key:
    description:
      - Key of the label that distinguishes the old pods from the new ones. Not used with
        O(kind=Deployment), O(kind=StatefulSet) and O(kind=DaemonSet), where the cluster adds a
        label of its own.
    type: str
    default: kubernetes.io/deployment
  revision_history_limit:
    description:
      - How many previous templates of a ReplicationController or a ReplicaSet to keep, so that
        O(to_revision) can return to them. Each is stored in a ControllerRevision (C(apps/v1)). The
        oldest are deleted first. With V(0), previous templates are not kept.
      - If the task is not allowed to write ControllerRevisions, it warns and continues
        without them.
      - The history of a Deployment, a StatefulSet or a DaemonSet is kept by the cluster, up to its
        own C(revisionHistoryLimit).
    type: int
    default: 10
  autoscaler:
    description:
      - What to do about a HorizontalPodAutoscaler that scales the controller, and would interfere
        with the update.
      - V(freeze) disables its scaling during the update (C(selectPolicy=Disabled) in both
        directions, C(minReplicas=1)), and restores it before the last step, or when the task fails.
        The previous settings are kept in an annotation on the autoscaler, so that if this task is
        killed, a later one can restore them. The autoscaler stays frozen while an update is paused.
      - V(refuse) fails before anything is changed. V(ignore) leaves the autoscaler alone, unless an
        earlier task has frozen it.
    type: str
    choices: [freeze, refuse, ignore]
    default: freeze
  record_events:
    description:
      - Whether to record each step as an Event on the controller, which C(kubectl describe) shows.
        The task continues without Events if it is not allowed to create them.
      - Steps that scale the same controller within one second share an Event. With O(names) or
        O(label_selectors), all steps of a controller within 20 seconds do. Steps of the handover
        are recorded once it is over, so that they do not slow it down.
    type: bool
    default: true
  lock:
    description:
      - Whether to hold a Lease (C(coordination.k8s.io/v1), named C(baton-kubernetes.<kind>.<name>))
        from before the first change until the end, so that no other task works on the same
        controller at the same time. The Lease is deleted afterwards.
      - Set this to V(false) where Leases are not allowed, and make sure by other means that only
        one task works on the controller.
    type: bool
    default: true
  lock_timeout:
    description:
      - Seconds to wait if another task is already working on the controller. By default, the task
        fails at once and says who runs the other one.
      - The Lease of a task that was killed is taken over. On the same machine this happens at once,
        elsewhere up to 15 seconds after that task ended.
    type: str
    default: "0"
  progress:
    description:
      - Whether to show each step, and what the task is waiting for, as a line on standard error
        while the task runs.
      - Lines are shown over the connections C(local) and C(ssh). With C(become), one of the two
        users has to be root. No lines are shown with C(async) or C(no_log), in check mode, or if
        the output format is JSON.
      - Over C(ssh), a task that has shown lines ends if it loses contact with Ansible for 60
        seconds, so that it does not continue unattended when the network is cut.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - The pods keep serving throughout, and each of them has a controller at every moment. During the
    handover at the end of an update, however, a pod that dies is not replaced until the handover is
    over. That takes about 0.3 seconds for 4 pods, and 1 second for 100. There is no handover with
    O(next_name).
seealso:
  - module: baton.kubernetes.rolling_update_info
  - module: baton.kubernetes.migrate_to_deployment
"""

EXAMPLES = r"""
- name: Roll foo to another image
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2

- name: Roll foo faster, a quarter of the pods at a time
  baton.kubernetes.rolling_update:
    name: foo
    namespace: shop
    image: registry.example.com/shop/foo:v2
    max_surge: 25%
    min_ready_seconds: 10

- name: Roll foo in a namespace whose quota has no room for pods that still terminate
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    max_surge: 0
    max_unavailable: 1
    pod_replacement_policy: TerminationComplete

- name: Update a canary of 10%, watch it for ten minutes, and roll back by itself if it is bad
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

- name: Roll back if the tag moves before all pods run the image that the canary runs
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    image_drift: fail
    on_failure: rollback

- name: Update a DaemonSet on the test nodes first, three pods in all
  baton.kubernetes.rolling_update:
    name: foo
    kind: DaemonSet
    image: myimage:v2
    pause_at: 3
    nodes: environment=test

- name: Roll back the update in progress, also of a StatefulSet that is stuck
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back

- name: Roll back to the previous revision, whether the update is still in progress or not
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back
    to_revision: previous

- name: Return to one of the earlier templates that rolling_update_info lists
  baton.kubernetes.rolling_update:
    name: foo
    state: rolled_back
    to_revision: 3

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

- name: Replace the pods if the data of a ConfigMap or a Secret that they read has changed
  baton.kubernetes.rolling_update:
    name: foo
    roll_on: auto

- name: Roll foo to another image, or on another password
  baton.kubernetes.rolling_update:
    name: foo
    image: myimage:v2
    roll_on: [configmap/shop, secret/shop-db]

- name: Roll all controllers with a label, three at a time, and stop at the second failure
  baton.kubernetes.rolling_update:
    label_selectors: [app=shop]
    kinds: [ReplicationController, ReplicaSet, Deployment, StatefulSet, DaemonSet]
    image: registry.example.com/shop/base:v2
    concurrency: 3
    max_failures: "1"

- name: Update the same controller in the namespaces of two teams
  baton.kubernetes.rolling_update:
    names: [foo]
    namespaces: [team-a, team-b]
    image: myimage:v2

- name: Update all controllers that run an image from this repository, in all namespaces of shops
  baton.kubernetes.rolling_update:
    label_selectors:
      - tier=backend
    namespace_selectors:
      - example.com/product=shop
    image: registry.example.com/shop/base:v2

- name: Replace a controller with another one, as kubectl rolling-update -f did
  baton.kubernetes.rolling_update:
    name: foo-v1
    src: foo-v2.yaml

- name: Start the update of a Deployment
  baton.kubernetes.rolling_update:
    name: foo
    kind: Deployment
    image: myimage:v2
    wait: false

- name: Do something else meanwhile
  ansible.builtin.debug:
    msg: The cluster replaces the pods.

- name: Follow the update to its end
  baton.kubernetes.rolling_update:
    name: foo
    kind: Deployment
    image: myimage:v2

- name: Restart the pods of a DaemonSet without a change
  baton.kubernetes.rolling_update:
    name: foo
    kind: DaemonSet
    state: restarted
"""

RETURN = r"""
msg:
  description: What became of the controller. If the task failed, also the reason, and what to type
    next.
  returned: always
  type: str
  sample: "foo is updated to myimage:v2: 6 of 6 replicas available"
namespace:
  description: Namespace of the controller, also if O(namespace) was not given.
  returned: with O(name), once the controller has been looked up
  type: str
  sample: shop
kind:
  description: Kind of the controller, also if O(kind) was not given.
  returned: with O(name), once the controller has been looked up
  type: str
  sample: ReplicationController
steps:
  description: What this task changed in the cluster, in order. In check mode, what it would change.
  returned: with O(name), once the controller has been looked up
  type: list
  elements: dict
  contains: &steps
    action:
      description:
        - What was done.
        - V(create), V(scale) and V(delete) a controller. With O(kind=Deployment), V(scale) is done
          by the cluster.
        - V(annotate) a controller with the state of the update.
        - V(rename) gives the controller the new template, at the beginning of the handover.
        - V(hand over) pods from one controller to another, each with one patch.
        - V(restore) a size, a template, or a HorizontalPodAutoscaler that this update, or somebody
          else, had changed.
        - V(freeze) a HorizontalPodAutoscaler for the duration of the update.
        - V(keep) the template that is about to be replaced in the history, and V(delete) the oldest
          one from it.
        - V(update) the template of a Deployment, a StatefulSet or a DaemonSet.
        - V(pace) sets how far the cluster may go with the update of a Deployment, a StatefulSet or
          a DaemonSet.
        - With O(kind=StatefulSet) and O(state=rolled_back), V(delete) a pod that the cluster would
          wait for for ever.
        - With O(kind=DaemonSet) and O(pause_at), V(delete) an old pod, in whose place the cluster
          makes a new one.
      type: str
      choices: [annotate, create, scale, rename, restore, delete, freeze, update, pace, hand over,
        keep]
    kind:
      description: Kind of the object that was changed; V(Pod) for V(hand over).
      type: str
    name:
      description: Name of the object that was changed; for V(hand over), of the controller that
        gave up its pods.
      type: str
    from:
      description: Size, images by container, or state before the step; the number of pods for
        V(hand over).
      type: raw
    to:
      description: Size, images by container, or state after the step; the controller that received
        the pods for V(hand over).
      type: raw
    at:
      description: When the step was taken, in RFC 3339, UTC.
      type: str
  sample:
    - {action: scale, kind: ReplicationController, name: foo, from: 6, to: 5, at:
      "2026-11-21T10:00:00Z"}
rollout:
  description: Where the update has got to.
  returned: with O(name), once the controller has been looked up
  type: dict
  contains: &rollout
    phase:
      description: V(complete) if no update is in progress; V(taking_over) during the handover.
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
        ReplicaSet.
      type: dict
      contains: *numbers
    desired:
      description: How many replicas there will be at the end of the update.
      type: int
    floor:
      description: The fewest available replicas that the options allow, or that there were when the
        task began, if those were
        fewer.
      type: int
    ceiling:
      description: The most replicas, old and new, that the options allow.
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
          description: Number of the revision that a Deployment was returned to, if O(to_revision)
            was given.
          type: int
    images:
      description: The images of the controller before and after this task.
      type: dict
      contains:
        before:
          description: Image of each container before, by the name of the container. Empty if the
            task resumed a handover.
          type: dict
        after:
          description: Image of each container after, by the name of the container.
          type: dict
resume_command:
  description: What to type to end the pause and update the rest of the pods, or with
    O(wait=false) to follow the update to its end, with every other option of the task.
  returned: if the task has left the update paused or in progress
  type: str
rollback_command:
  description: What to type to undo the update that the task has left paused or in progress.
  returned: if the task has left the update paused or in progress
  type: str
failure:
  description: The parts that make up RV(msg) if the task failed.
  returned: failure
  type: dict
  contains: &failure
    what:
      description: What failed.
      type: str
    where:
      description: The object that it failed on, or an empty text.
      type: str
    why:
      description: The reason, in the cluster's own words, or an empty text. Several reasons are on
        lines of their own.
      type: str
    next_command:
      description: What to type next, or an empty text. Each command is on a line of its own, and
        repeats the options of the
        task.
      type: str
    commands:
      description: The commands of RV(failure.next_command) without the hints, in the same order.
        Each can be pasted unchanged, and repeats the options of the task. A command with a
        placeholder, such as V(ANOTHER-IMAGE), is left out.
      type: list
      elements: str
    causes:
      description: Why pods do not become available, the most significant cause first. Empty if the
        task failed for another reason.
      type: list
      elements: dict
      contains:
        kind:
          description: A word for this kind of cause, such as V(image) or V(crash), which stays the
            same while the reasons that the
            cluster gives alternate.
          type: str
        reason:
          description: The reason that the cluster gives, such as V(ImagePullBackOff).
          type: str
        message:
          description: The message that the cluster gives.
          type: str
        suggestion:
          description: What to look at or type next.
          type: str
        is_fatal:
          description: Whether waiting cannot help.
          type: bool
        place:
          description: Where the cause shows, such as V(pod foo-abc, container web).
          type: str
        pod:
          description: Name of one pod that is affected; empty if the cause lies with the
            controller.
          type: str
        container:
          description: Name of the container whose log may tell more; empty if no log does.
          type: str
        is_restarted:
          description: Whether RV(failure.causes[].log) is from the previous run of the container.
          type: bool
        pods:
          description: How many pods are affected.
          type: int
        log:
          description: The last lines of the container's log; empty if the log cannot be read.
          type: list
          elements: str
results:
  description: What became of each controller, in the order in which they were started. With
    O(name), one entry, whose keys are also at the top.
  returned: always with O(name); otherwise once the controllers have been listed
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
      description: Kind of the controller; empty if O(kind) was not given and the task failed before
        its first change.
      type: str
    changed:
      description: Whether anything was changed for this controller.
      type: bool
    failed:
      description: Whether this controller failed.
      type: bool
    skipped:
      description: Whether this controller was left alone. RV(results[].msg) says why.
      type: bool
    msg:
      description: As RV(msg), for this controller.
      type: str
    steps:
      description: As RV(steps), for this controller.
      returned: unless it was skipped, once the controller has been looked up
      type: list
      elements: dict
      contains: *steps
    rollout:
      description: As RV(rollout), for this controller.
      returned: unless it was skipped, once the controller has been looked up
      type: dict
      contains: *rollout
    resume_command:
      description: As RV(resume_command), for this controller.
      returned: if the task has left its update paused or in progress
      type: str
    rollback_command:
      description: As RV(rollback_command), for this controller.
      returned: if the task has left its update paused or in progress
      type: str
    failure:
      description: As RV(failure), for this controller.
      returned: if it failed
      type: dict
      contains: *failure
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # first: it ends the module on an older Python
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.UPDATE_OPTIONS, supports_check_mode=True)
    task.end(module,
             functools.partial(task.update, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
