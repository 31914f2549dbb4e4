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
  - Creates one Service for the old pods and one for the new pods, and adds both to the rules of the
    route, with weights. The Service that selects all pods remains in the rules with the weight
    0. An annotation of the route stores the previous weights.
  - Sends no request to a Service that has no ready endpoint, or that a Gateway may not know yet.
    The task waits 5 seconds before it sends the first requests to the two Services, and before it
    deletes them.
  - The task may be killed at any moment. Run it again to resume.
  - Changes of the route by other clients are kept. If another client changes the same rules as the
    task while the task runs, the task ends with an error.
  - Without O(route), no Gateway is needed. The task changes the selector of O(service), so that all
    requests go to the old pods (O(weight=0%)) or to the new pods (O(weight=100%)). Each change is a
    single write. An annotation of the Service stores the previous selector.
  - An annotation of the controller names the route, so M(baton.kubernetes.rolling_update) restores
    the route before it updates the remaining pods. Before a rollback, that module changes the
    route so that the new pods get no requests. To restore only the route, use O(state=restored).
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: Predicts RV(steps) by running the task on a simulated copy of the cluster's objects.
  diff_mode:
    support: full
    details: Shows the rules of the route, or the selector of the Service.
  idempotent:
    support: full
options:
  name:
    description:
      - Name of the controller whose update is paused or has not begun yet.
    type: str
    required: true
  namespace:
    description:
      - Namespace of the controller, the Service and the route.
      - The default is, as with C(kubectl), the namespace of the context, or V(default) if the
        context has no namespace. In a pod, without O(kubeconfig) and O(context), the default is the
        namespace of the pod.
    type: str
  kind:
    description:
      - Kind of the controller.
      - By default, V(ReplicationController). If no ReplicationController has the name O(name), or
        the user may not list ReplicationControllers, but exactly one controller of another kind has
        this name, the default is that kind.
    type: str
  route:
    description:
      - Name of the route that has the Service of the pods as a backend.
      - Required unless O(service) is set.
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
        then V(0%) or V(100%), and O(match) and O(mirror) are not possible. Existing connections
        stay with their pods. It takes a moment until the change reaches every node.
    type: str
  state:
    description:
      - With V(split), the rules of the route send O(weight) of the requests, and the requests of
        O(match), to the new pods.
      - With V(restored), the Service has its previous weight in the rules again, and the two
        Services of the split are deleted. Without a route, the Service selects the pods of all
        versions again. V(restored) needs neither an update in progress nor the controller.
    type: str
    choices: [split, restored]
    default: split
  weight:
    description:
      - Share of the requests for the new pods in percent, with at most three decimals, such as
        V(1), V(0.5) or V(10%).
      - Required if neither O(match) nor O(mirror) is set. Otherwise, the default is V(0).
      - V(0) is also possible before an update, with neither O(match) nor O(mirror). The rules then
        send all requests to the present pods. The new pods of the update get no requests until a
        later task sets a weight, O(match) or O(mirror).
    type: str
  mirror:
    description:
      - Share of the requests, in percent, in the format of O(weight). The Gateway sends a copy of
        these requests to the new pods, and discards the responses to the copies. V(0) copies no
        requests.
      - The copies have the same effects as other requests. Use this option only if the requests are
        safe to repeat, or if the new pods have their own data.
      - Requests of O(match) are not copied.
      - Only for an HTTPRoute. A share below 100% needs Gateway API v1.3 or newer. Not every Gateway
        mirrors requests. Some, such as Contour 1.33, ignore the share and copy all requests.
    type: str
  before_update:
    description:
      - Set this option to V(true) if the task prepares an update that a later task begins. The task
        then changes nothing if an update is already in progress.
    type: bool
    default: false
  update:
    description:
      - With O(before_update), the options of the later M(baton.kubernetes.rolling_update) task. If
        that task would change nothing, this task changes nothing. The role
        P(baton.kubernetes.image_bump#role) uses this option.
      - The connection is that of this task. Options of the connection, such as O(api_key), are not
        possible here. The log and the result do not show this option.
    type: dict
  match:
    description:
      - Requests that go to the new pods regardless of O(weight). A request has to match at least
        one entry, and also the rule of the route.
      - The task adds a rule for these requests before each rule that names the Service.
    type: list
    elements: dict
    suboptions:
      headers:
        description: Headers. A request has to have all of them.
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
        description: Query parameters. A request has to have all of them. Only for an HTTPRoute.
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
        a ReplicaSet, as in M(baton.kubernetes.rolling_update). The task adds the label to old pods
        that do not have it.
    type: str
    default: kubernetes.io/deployment
  timeout:
    description:
      - Maximum time to wait until each Service has a ready endpoint, and until each Gateway has
        observed the route.
    type: str
    aliases: [wait_timeout]
    default: "60"
  progress:
    description:
      - Whether to print a line for each step and each wait on standard error while the task runs.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
  - A route has the split of one controller at a time. If the route has a split of a Service that
    selects no pods of the controller, the task fails before its first change.
  - A rule that names other backends besides the Service cannot be split. A rule that already
    mirrors requests to the Service cannot also have O(mirror).
  - Policies that name the Service do not apply to the two Services of the split. If a
    BackendTLSPolicy applies to the Service, but not to each of the two Services of the split, the
    task fails before its first change. The task warns of other policies, and of requests to the
    Service that are not split. The task checks only the objects that it has the permission to read.
  - The task needs the permissions of C(docs/reference/permissions/traffic.yaml). Without a route,
    it needs those of C(docs/reference/permissions/traffic-service.yaml) instead. To show warnings
    and the causes of failures, it also needs those of
    C(docs/reference/permissions/traffic-warnings.yaml).
seealso:
  - module: baton.kubernetes.rolling_update
  - module: baton.kubernetes.rollout_analysis
"""

EXAMPLES = r"""
- name: Before an update, keep all requests on the present pods
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

- name: Copy 10% of the requests to the new pod, and discard its responses to the copies
  baton.kubernetes.traffic_split:
    name: shop
    kind: Deployment
    route: shop
    mirror: 10%

- name: Without a route, switch the Service to the new pods while all old pods still run (keep_old)
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
  description: The state of the split. After a failure, also the reason and the next command.
  returned: always
  type: str
  sample: 1% of the requests for shop go to the new pods of shop
namespace:
  description: Namespace of the route, even if O(namespace) is not set.
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
  description: Names of the two Services of the split. Without a route, the name of the Service
    that selects one version. Empty after a restoration.
  returned: success
  type: list
  elements: str
  sample: [shop-0c1d2e3f4a, shop-5b6c7d8e9f]
weight:
  description: Share of the requests for the new pods. V(null) with O(state=restored), and if the
    task changes nothing because of O(before_update).
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
  description: The parts of RV(msg), in the format of M(baton.kubernetes.rolling_update).
  returned: failure
  type: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # must be imported first, because floor ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.TRAFFIC_OPTIONS, supports_check_mode=True)
    task.run_module(
        module, functools.partial(task.traffic, check_mode=module.check_mode, diff=module._diff))


if __name__ == "__main__":
    main()
