#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rollout_analysis
short_description: Compare the new pods of an update with the old ones by metrics in Prometheus or
  by their logs
version_added: 0.1.0
description:
  - Asks Prometheus for metrics of the new pods of a controller and of its old ones, or counts the
    lines with errors in their logs, compares them with thresholds, and fails if the new pods do not
    keep them. Changes nothing.
  - The pods are found in the cluster by name, so that no label has to tell versions apart, and
    nothing has to be installed in the cluster.
  - Meant for an update that is paused (O(baton.kubernetes.rolling_update#module:pause_at)). If no
    update is in progress, all pods of the controller count as new, and there are no old ones. An
    update that ends meanwhile fails the task.
  - A violated threshold fails, even if other measurements are unknown. An unknown measurement is
    V(inconclusive), which fails as well, with a different message, unless O(on_inconclusive=pass).
  - An address, credentials or a query that cannot work fail at once, regardless of
    O(on_inconclusive). If Prometheus is unreachable or temporarily unavailable, the query is sent
    three times; then the measurement is inconclusive.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: This module never changes anything. In check mode it measures just the same, and takes
      as long.
  diff_mode:
    support: N/A
  idempotent:
    support: N/A
    details: Nothing is changed, but the pods may not be what they were the last time.
options:
  name:
    description:
      - Name of the controller.
    type: str
    required: true
  namespace:
    description:
      - Namespace of the controller.
      - By default, the namespace of the context, or in a pod that of the pod, or else V(default),
        as with C(kubectl).
    type: str
  kind:
    description:
      - Kind of the controller.
      - By default, V(ReplicationController), or if there is none of that name, the kind of the only
        other object that has it.
    type: str
  prometheus_url:
    description:
      - URL of Prometheus, or of anything else that has its HTTP API, without C(/api/v1/query).
        Redirects are not followed.
      - Required, unless all metrics are of O(metrics[].type=error_lines).
      - A user name and a password in it count as O(prometheus_username) and O(prometheus_password).
        Special characters in them must be escaped by C(%).
    type: str
  prometheus_token:
    description:
      - Bearer token to authenticate with. Cannot be combined with a user name and a password.
    type: str
  prometheus_username:
    description:
      - User name for HTTP basic authentication.
    type: str
  prometheus_password:
    description:
      - Password for HTTP basic authentication with O(prometheus_username).
    type: str
  prometheus_ca_cert:
    description:
      - Path of the certificate authority (CA) bundle to verify Prometheus' certificate with, in PEM
        format. By default, the system's.
    type: path
  prometheus_client_cert:
    description:
      - Path of the client certificate to authenticate with, in PEM format.
    type: path
  prometheus_client_key:
    description:
      - Path of the private key that belongs to O(prometheus_client_cert), in PEM format.
    type: path
  prometheus_validate_certs:
    description:
      - Whether to verify Prometheus' certificate.
    type: bool
    default: true
  prometheus_timeout:
    description:
      - Seconds that an answer of Prometheus may take.
    type: str
    default: "10"
  metrics:
    description:
      - What to measure, at most 20 metrics. Each needs a threshold, and passes if it keeps all that
        are given; a value equal to the threshold keeps it.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - What to call the metric in lines and results. By default, its O(metrics[].type). No two
            may have the same name.
        type: str
      type:
        description:
          - V(success_rate) is the share of requests without an error, from 0 to 1, in a counter of
            requests (O(metrics[].requests_metric)).
          - V(latency) is a quantile of the duration of requests, in seconds, in a histogram
            (O(metrics[].duration_metric)).
          - V(query) is the result of O(metrics[].query). This is the default if a query is
            given; otherwise V(success_rate) is.
          - V(error_lines) counts the lines in the pods' logs that match O(metrics[].pattern), for
            pods that have no metrics. Prometheus is not asked.
        type: str
        choices: [success_rate, latency, query, error_lines]
      query:
        description:
          - A query in PromQL that comes to a single number.
          - C($pods) stands for a regular expression that matches the names of the new pods, and for
            the old pods when the same query is asked for those. It belongs into a string, as in
            V(avg(queue_length{pod=~"$pods"})).
          - C($new_pods) and C($old_pods) stand for the pods of either side, for a query that
            compares them itself.
          - C($namespace) stands for O(namespace), and C($window) for O(window).
          - They can also be written as C(${pods}), or in double braces, which must be marked with
            C(!unsafe), or Ansible would evaluate them itself.
          - At most 500 pods of each side are named in a query. Of more pods, 500 are taken from all
            over the list, with a warning.
        type: str
      samples_query:
        description:
          - A query with C($pods) that counts what O(metrics[].min_samples) is about, such as the
            requests in the window. The ready-made types have their own.
        type: str
      requests_metric:
        description:
          - Name of the counter of requests for O(metrics[].type=success_rate).
        type: str
        default: http_requests_total
      status_label:
        description:
          - Label of O(metrics[].requests_metric) that has the status of the answer.
        type: str
        default: code
      errors:
        description:
          - Regular expression for the values of O(metrics[].status_label) that are errors. It must
            match the whole value.
        type: str
        default: 5..
      duration_metric:
        description:
          - Name of the histogram for O(metrics[].type=latency), without C(_bucket).
        type: str
        default: http_request_duration_seconds
      quantile:
        description:
          - Quantile for O(metrics[].type=latency), between 0 and 1.
        type: float
        default: 0.99
      pod_label:
        description:
          - Label that has the name of the pod, for the ready-made types.
        type: str
        default: pod
      namespace_label:
        description:
          - Label that has the namespace of the pod, for the ready-made types. Empty if there is
            none.
        type: str
        default: namespace
      labels:
        description:
          - More labels, and the values that they must have, for the ready-made types.
        type: dict
      pattern:
        description:
          - For O(metrics[].type=error_lines), a regular expression of Python that a line with an
            error has somewhere in it.
          - The first 4096 characters of a line are looked at, without escape sequences such as
            colors. All lines of a measurement have to be looked at within 10 seconds.
        type: str
        default: (?i)\b(error|fatal|panic|critical|exception|traceback)\b
      per:
        description:
          - What O(metrics[].type=error_lines) comes to. With V(minute), lines with errors a minute
            and pod. With V(line), the share of all lines that are such, from 0 to 1, for pods that
            get different numbers of requests.
        type: str
        choices: [minute, line]
        default: minute
      containers:
        description:
          - For O(metrics[].type=error_lines), the names of the containers whose logs are read, at
            most 10. By default, all but init containers; a sidecar that is one can be named.
        type: list
        elements: str
      min:
        description:
          - The value of the new pods must not be less.
        type: float
      max:
        description:
          - The value of the new pods must not be more.
        type: float
      min_ratio_to_old:
        description:
          - The value of the new pods must not be less than this many times that of the old ones.
        type: float
      max_ratio_to_old:
        description:
          - The value of the new pods must not be more than this many times that of the old ones. If
            the old pods have 0, neither may the new ones have more.
        type: float
      max_decrease:
        description:
          - The value of the new pods must not be less than that of the old ones by more than this.
        type: float
      max_increase:
        description:
          - The value of the new pods must not be more than that of the old ones by more than this.
        type: float
      min_samples:
        description:
          - The number of samples, such as requests in the window, below which a measurement is
            inconclusive. It is demanded of the new pods, and of the old ones if they are compared.
            By default, nobody counts.
          - Of O(metrics[].type=error_lines), a sample is a line.
        type: float
      on_empty:
        description:
          - What it means if Prometheus answers without a number, which is either no series at all
            (C(no data)) or C(NaN), such as the success rate of no requests; or if there are no
            lines at all in the logs.
          - V(zero) takes it for 0, also for the old pods. The other three are about the new pods;
            without a number of the old ones, a comparison is inconclusive.
        type: str
        choices: [inconclusive, pass, fail, zero]
        default: inconclusive
  window:
    description:
      - Up to now, how long a time the ready-made queries, C($window) and
        O(metrics[].type=error_lines) are about, as Prometheus writes durations. Prometheus needs
        two scrapes within it. Use at least four times the scrape interval.
    type: str
    default: 1m
  initial_delay:
    description:
      - Seconds to wait before the first measurement, such as until the new pods have had a
        O(window) full of requests.
    type: str
    default: "0"
  count:
    description:
      - Number of measurements of each metric.
    type: int
    default: 1
  interval:
    description:
      - Seconds from one measurement to the next.
    type: str
    default: "30"
  failure_limit:
    description:
      - How many measurements of a metric may fail. With one more, the task fails at once. Must be
        less than O(count).
    type: int
    default: 0
  inconclusive_limit:
    description:
      - How many measurements of a metric may be inconclusive. With one more, the metric is
        inconclusive, and without O(on_inconclusive=pass) the task fails at once. A metric of which
        no measurement has passed is inconclusive in any case, or has failed if any of them has.
    type: int
    default: 0
  on_inconclusive:
    description:
      - What to do if nothing has failed, but not everything has passed. With V(pass), RV(outcome)
        is still V(inconclusive).
    type: str
    choices: [fail, pass]
    default: fail
  on_no_old_pods:
    description:
      - What the comparison with the old pods comes to if there are none. Absolute thresholds are
        kept or not in any case.
    type: str
    choices: [inconclusive, pass]
    default: inconclusive
  progress:
    description:
      - Whether to show a line for each measurement on the terminal while the task runs.
    type: bool
    default: true
notes:
  - A time is a number of seconds, or has units, such as V(90s), V(10m) or V(1h30m).
seealso:
  - module: baton.kubernetes.rolling_update
"""

EXAMPLES = r"""
- name: Update a tenth of the pods
  baton.kubernetes.rolling_update:
    name: shop
    image: registry.example.com/shop:v2
    pause_at: 10%

- name: Compare them with the others for five minutes
  baton.kubernetes.rollout_analysis:
    name: shop
    prometheus_url: https://prometheus.example.com
    prometheus_token: "{{ prometheus_token }}"
    count: 10
    interval: 30
    failure_limit: 1
    metrics:
      - type: success_rate
        min: 0.99
        min_samples: 100
      - type: latency
        quantile: 0.95
        max_ratio_to_old: 1.5
      - name: queue length
        query: avg(queue_length{namespace="$namespace",pod=~"$pods"})
        max_increase: 10

- name: Compare lines with errors in their logs
  baton.kubernetes.rollout_analysis:
    name: shop
    initial_delay: 60
    metrics:
      - type: error_lines
        containers: [web]
        max_increase: 2

- name: A query that compares them itself, in braces that Ansible must not evaluate
  baton.kubernetes.rollout_analysis:
    name: shop
    prometheus_url: https://prometheus.example.com
    metrics:
      - name: memory
        query: !unsafe >-
          avg(memory_bytes{pod=~"{{ new_pods }}"}) / avg(memory_bytes{pod=~"{{ old_pods }}"})
        max: 1.2
"""

RETURN = r"""
outcome:
  description:
    - The worst of the outcomes of all metrics. V(failed), and V(inconclusive) without
      O(on_inconclusive=pass), come with a task that has failed.
    - Missing if nothing could be measured.
  returned: if something was measured
  type: str
  choices: [passed, failed, inconclusive]
namespace:
  description: Namespace of the controller, also if O(namespace) was not given.
  returned: if something was measured
  type: str
name:
  description: Name of the controller.
  returned: if something was measured
  type: str
kind:
  description: Kind of the controller, also if O(kind) was not given.
  returned: if something was measured
  type: str
metrics:
  description: Each metric, and how many of its measurements came to what.
  returned: if something was measured
  type: list
  elements: dict
  contains:
    name:
      description: Name of the metric.
      type: str
    outcome:
      description: What its measurements come to.
      type: str
      choices: [passed, failed, inconclusive]
    query:
      description: The query, before the names of the pods are put into it; of logs, in words which
        lines are counted.
      type: str
    thresholds:
      description: The thresholds that were given.
      type: dict
    passed:
      description: How many measurements have passed.
      type: int
    failed:
      description: How many measurements have failed.
      type: int
    inconclusive:
      description: How many measurements were inconclusive.
      type: int
measurements:
  description: Every measurement, in order; at most 2000.
  returned: if something was measured
  type: list
  elements: dict
  contains:
    metric:
      description: Name of the metric.
      type: str
    number:
      description: Number of the measurement, from 1 to O(count).
      type: int
    at:
      description: When it was made, in RFC 3339, UTC.
      type: str
    outcome:
      description: What it comes to.
      type: str
      choices: [passed, failed, inconclusive]
    reason:
      description: Why it has not passed, or what was not compared; empty if all thresholds are
        kept.
      type: str
    new:
      description: The value of the new pods; V(null) if there is none, and V(+Inf) or V(-Inf) as a
        string.
      type: raw
    old:
      description: The value of the old pods; V(null) if there is none, or none was asked for.
      type: raw
    samples:
      description:
        - The number of samples of the new pods; V(null) without O(metrics[].min_samples).
        - Of O(metrics[].type=error_lines), always the number of lines that were read.
      type: raw
new_pods:
  description: Names of the new pods at the last measurement.
  returned: if something was measured
  type: list
  elements: str
old_pods:
  description: Names of the old pods at the last measurement.
  returned: if something was measured
  type: list
  elements: str
msg:
  description: The outcome in one sentence, or what has failed, why, and what to type next.
  returned: always
  type: str
failure:
  description: The parts of RV(msg).
  returned: failure
  type: dict
  contains:
    what:
      description: What has failed.
      type: str
    where:
      description: The controller, or the address of Prometheus.
      type: str
    why:
      description: One reason in each line.
      type: str
    next_command:
      description: What to do next, a command or a hint in each line.
      type: str
    causes:
      description: Always empty.
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # first: it ends the module on an older Python
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.ANALYSIS_OPTIONS, supports_check_mode=True)
    task.end(module, task.analysis)


if __name__ == "__main__":
    main()
