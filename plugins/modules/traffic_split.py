#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: traffic_split
short_description: Split the requests between the old and the new pods of an update
version_added: 0.1.0
description:
  - Sends a share of the requests, or the requests with a header, to the new pods of a paused update
    (O(baton.kubernetes.rolling_update#module:pause_at)), independently of the number of pods.
  - Works with the routes of each Gateway that implements Gateway API, for each kind of controller
    that M(baton.kubernetes.rolling_update) updates. Nothing has to be installed in
    the cluster.
  - Creates two Services, which select the old and the new pods by the label that distinguishes
    them, and adds both to the rules of the route, with weights; the Service of the pods stays with
    the weight 0. An annotation of the route stores the previous weights.
  - No request is sent to a Service without a ready endpoint, or to a Service that a Gateway may not
    know yet. The first request to the two Services, and the end of a restoration, wait 5 seconds.
  - The task may be killed at any moment. Run it again to resume.
  - Changes of the route by other clients are kept. A change of the same rules by another client
    during the task ends the task with an error.
  - Without O(route), the selector of O(service) sends all requests to the old pods (O(weight=0%))
    or to the new pods (O(weight=100%)), by one write each, without a Gateway. An annotation of the
    Service stores the previous selector.
  - An annotation of the controller names the route. M(baton.kubernetes.rolling_update) therefore
    restores the route before it updates the remaining pods, and takes all requests from the new
    pods before a rollback. O(state=restored) restores the route alone.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: RV(steps) are planned by the same code, on copies of the objects of the cluster.
  diff_mode:
    support: full
    details: Shows the rules of the route, or the selector of the Service.
  idempotent:
    support: full
options:
  name:
    description:
      - Name of the controller whose update is paused, or begins next.
    type: str
    required: true
  namespace:
    description:
      - Namespace of the controller, the Service and the route.
      - By default, the namespace of the context, or in a pod that of the pod, or else V(default),
        as with C(kubectl).
    type: str
  kind:
    description:
      - Kind of the controller.
      - By default, V(ReplicationController). If there is no ReplicationController of that name, the
        kind of the only other controller with that name.
    type: str
  route:
    description:
      - Name of the route whose rules name the Service of the pods as a backend.
      - Required, except for O(service) alone.
    type: str
  route_kind:
    description:
      - Kind of the route.
    type: str
    choices: [HTTPRoute, GRPCRoute]
    default: HTTPRoute
  service:
    description:
      - Name of the Service whose requests are split.
      - With O(route), required only if the route names several Services that select the pods.
      - Without O(route), the selector of this Service selects the pods of one version. O(weight) is
        then V(0%) or V(100%), and O(match) and O(mirror) are not possible. Connections that exist
        stay with their pods, and each node has the change a moment later.
    type: str
  state:
    description:
      - With V(split), the rules of the route send O(weight) of the requests, and the requests of
        O(match), to the new pods.
      - With V(restored), the rules name the Service again, with its previous weight, and the two
        Services are deleted; or the Service selects the pods of all versions again. Needs neither
        an update in progress nor the controller.
    type: str
    choices: [split, restored]
    default: split
  weight:
    description:
      - Share of the requests for the new pods in percent, with at most three decimals, such as
        V(1), V(0.5) or V(10%).
      - By default V(0) with O(match) or O(mirror); otherwise required.
      - V(0) without O(match) and O(mirror) is also possible before an update. The rules then send
        all requests to the present pods, and the new pods of the next update get none until the
        next task with a share.
    type: str
  mirror:
    description:
      - Share of the requests in percent, as O(weight), that the Gateway copies to the new pods. It
        discards the answers of the new pods to these copies. V(0) copies no requests.
      - The copies have the same effects as other requests, so mirror only requests that are safe to
        repeat, or new pods with data of their own.
      - Requests of O(match) are not copied.
      - Only for an HTTPRoute. A share below 100% needs Gateway API v1.3 or newer. Not every Gateway
        mirrors requests, and some ignore the share and copy all requests, such as Contour 1.33.
    type: str
  before_update:
    description:
      - Whether the update begins in a later task. If an update is in progress, this task changes
        nothing.
    type: bool
    default: false
  update:
    description:
      - Options of the later task of M(baton.kubernetes.rolling_update). If that task would change
        nothing, this task changes nothing. Used by the role P(baton.kubernetes.image_bump#role).
    type: dict
  match:
    description:
      - Requests for the new pods regardless of O(weight). A request has to match one entry, and in
        addition the rule of the route.
      - Each rule that names the Service gets another rule before it.
    type: list
    elements: dict
    suboptions:
      headers:
        description: Headers, all of which a request has to have.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the header.
            type: str
            required: true
          value:
            description: Value of the header, or a regular expression.
            type: str
            required: true
          type:
            description: How the value is compared. Not every Gateway supports
              V(RegularExpression).
            type: str
            choices: [Exact, RegularExpression]
            default: Exact
      query_params:
        description: Query parameters, all of which a request has to have. Only for an HTTPRoute.
        type: list
        elements: dict
        suboptions:
          name:
            description: Name of the parameter.
            type: str
            required: true
          value:
            description: Value of the parameter, or a regular expression.
            type: str
            required: true
          type:
            description: How the value is compared. Not every Gateway supports
              V(RegularExpression).
            type: str
            choices: [Exact, RegularExpression]
            default: Exact
  deployment_label_key:
    description:
      - Key of the label that distinguishes the old from the new pods of a ReplicationController or
        a ReplicaSet, as in M(baton.kubernetes.rolling_update). Old pods without the label get the
        label.
    type: str
    default: kubernetes.io/deployment
  timeout:
    description:
      - Time to wait for a ready endpoint of each Service, and for each Gateway to observe the
        route.
    type: str
    aliases: [wait_timeout]
    default: "60"
  progress:
    description:
      - Whether to show each step, and what the task is waiting for, as a line on standard error
        while the task runs.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - A rule with several backends, of which the Service is one, cannot be split. A rule that mirrors
    requests to the Service cannot also have O(mirror).
  - Policies that are attached to the Service by its name do not apply to the two Services. Before
    its first change, the task ends with an error if a BackendTLSPolicy lacks one of them, and warns
    of other policies, and of requests that the split does not reach, as far as it may read them.
  - The task needs the permissions of C(docs/reference/permissions/traffic.yaml), or without a route
    of C(docs/reference/permissions/traffic-service.yaml); warnings and causes also those of
    C(docs/reference/permissions/traffic-warnings.yaml).
seealso:
  - module: baton.kubernetes.rolling_update
  - module: baton.kubernetes.rollout_analysis
"""

EXAMPLES = r"""
- name: Before an update, hold the requests for the present pods
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    weight: 0%

- name: Update one pod of a Deployment, and pause
  baton.kubernetes.rolling_update:
    name: shop
    kind: Deployment
    image: registry.example.com/shop:v2
    pause_at: 1

- name: Send 1% of the requests to the new pod
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    weight: 1%

- name: Send only the requests of testers to the new pod
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    match:
      - headers:
          - name: x-tester
            value: "yes"

- name: Copy 10% of the requests to the new pod, whose answers are discarded
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    mirror: 10%

- name: Without a route, let the Service select all new pods beside all old pods (keep_old)
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    service: shop
    weight: 100%

- name: Send the requests to all pods again
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    state: restored
"""

RETURN = r"""
msg:
  description: The state of the split. If the task failed, also the reason, and the next command.
  returned: always
  type: str
  sample: 1% of the requests for shop go to the new pods of shop
namespace:
  description: Namespace of the route, also without O(namespace).
  returned: success
  type: str
route:
  description: Name of the route; V(null) without a route.
  returned: success
  type: str
route_kind:
  description: Kind of the route; V(null) without a route.
  returned: success
  type: str
services:
  description: Names of the Services of the split, or of the Service that selects one version;
    empty after a restoration.
  returned: success
  type: list
  elements: str
  sample: [shop-0c1d2e3f4a, shop-5b6c7d8e9f]
weight:
  description: Share of the requests for the new pods; V(null) with O(state=restored), and if
    O(before_update) leaves the requests as they are.
  returned: success
  type: str
  sample: 1%
mirror:
  description: Share of the requests that are copied to the new pods; V(null) without O(mirror).
  returned: success
  type: str
  sample: 10%
steps:
  description: The changes of this task in the cluster, in order. In check mode, the planned
    changes.
  returned: always, except for invalid options
  type: list
  elements: dict
  contains:
    action:
      description: The action.
      type: str
      choices: [annotate, create, update, restore, delete]
    kind:
      description: Kind of the object.
      type: str
    name:
      description: Name of the object.
      type: str
    from:
      description: The weights or the selector before the step, or V(null).
      type: raw
    to:
      description: The weights, the selector or the state after the step, or V(null).
      type: raw
    at:
      description: Time of the step in RFC 3339, UTC.
      type: str
failure:
  description: The parts of RV(msg), as M(baton.kubernetes.rolling_update) returns them.
  returned: failure
  type: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # the first import, because it ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.TRAFFIC_OPTIONS, supports_check_mode=True)
    task.run_module(
        module, functools.partial(task.traffic, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
