#!/usr/bin/python
# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: rollout_analysis
short_description: Compare the new pods of an update with the old pods, by metrics or by logs
version_added: 0.1.0
description:
  - Queries metrics of the new and the old pods of a controller from Prometheus, or counts the lines
    with errors in the logs of these pods. Fails if the new pods violate a threshold. Changes
    nothing.
  - The queries select the pods by name. The versions need no distinguishing label, and nothing has
    to be installed in the cluster.
  - Intended for a paused update (O(baton.kubernetes.rolling_update#module:pause_at)). If no update
    is in progress, all pods of the controller count as new. If the update ends during the analysis,
    the task fails.
  - A measurement is V(failed) if one of its values violates a threshold, even if other values of
    this measurement are unknown. Otherwise, a measurement with an unknown value is
    V(inconclusive). A failed or inconclusive measurement fails the task, unless O(failure_limit),
    O(inconclusive_limit) or O(on_inconclusive) allows it.
  - If an address, the credentials or a query are invalid, the task fails at once, regardless of
    O(on_inconclusive). If Prometheus is temporarily unavailable, the query is sent three times.
    After that, the measurement is inconclusive.
author:
  - baton.kubernetes contributors (@baton-kubernetes)
extends_documentation_fragment:
  - baton.kubernetes.connection
  - baton.kubernetes.attributes
  - baton.kubernetes.attributes.action_group
attributes:
  check_mode:
    support: full
    details: This module never changes anything. Check mode makes no difference.
  diff_mode:
    support: N/A
  idempotent:
    support: N/A
    details: This module never changes anything, but its outcome depends on the pods.
options:
  name:
    description: Name of the controller.
    type: str
    required: true
  namespace:
    description: Namespace of the controller. The default is, as with C(kubectl), the namespace of
      the context, or V(default) if the context has no namespace. In a pod, without O(kubeconfig)
      and O(context), the default is the namespace of the pod.
    type: str
  kind:
    description: Kind of the controller. By default, V(ReplicationController). If no
      ReplicationController has the name O(name), or the user may not list ReplicationControllers,
      but exactly one controller of another kind has this name, the default is that kind.
    type: str
  prometheus_url:
    description:
      - URL of Prometheus, or of a server with the same HTTP API, without C(/api/v1/query). The
        queries are sent from the machine where the task runs, and do not follow redirects.
      - Required unless all metrics have O(metrics[].type=error_lines).
    type: str
  prometheus_token:
    description: Bearer token, instead of a user name and a password.
    type: str
  prometheus_username:
    description: User name for HTTP basic authentication. By default, the user name in
      O(prometheus_url).
    type: str
  prometheus_password:
    description: Password for HTTP basic authentication. By default, the password in
      O(prometheus_url).
    type: str
  prometheus_ca_cert:
    description: Path of the CA bundle of Prometheus, in PEM format. By default, the CA bundle of
      the system.
    type: path
  prometheus_client_cert:
    description: Path of the client certificate, in PEM format.
    type: path
  prometheus_client_key:
    description: Path of the private key of O(prometheus_client_cert), in PEM format.
    type: path
  prometheus_validate_certs:
    description: Whether to verify Prometheus' certificate.
    type: bool
    default: true
  prometheus_timeout:
    description: Timeout of a query in seconds.
    type: str
    default: "10"
  metrics:
    description:
      - The metrics to measure, at most 20. Each metric needs at least one threshold. It passes if
        it violates no threshold. A value equal to the threshold passes.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - Unique name of the metric in progress lines and results. By default, the
            O(metrics[].type).
        type: str
      type:
        description:
          - V(success_rate) is the share, from 0 to 1, of the requests in the counter
            O(metrics[].requests_metric) that have no error.
          - V(latency) is a quantile of the durations, in seconds, of the requests in the histogram
            O(metrics[].duration_metric).
          - V(query) is the result of O(metrics[].query).
          - V(error_lines) counts the lines in the logs that match O(metrics[].pattern). Use it for
            pods without metrics. It does not use Prometheus.
          - By default, V(query) if O(metrics[].query) is set, or else V(success_rate).
        type: str
        choices: [success_rate, latency, query, error_lines]
      query:
        description:
          - A PromQL query that returns a single number.
          - C($pods) is replaced by a regular expression for the names of the new pods. For a
            comparison, the query is sent again, with the names of the old pods. C($pods) must be
            part of a string, as in V(avg(queue_length{pod=~"$pods"})).
          - For a query that compares the versions itself, C($new_pods) and C($old_pods) are
            replaced by regular expressions for the names of the new and of the old pods.
          - C($namespace) is replaced by the namespace of the controller, and C($window) by
            O(window).
          - If a query names more than 500 new or old pods, the task queries only a sample, and
            warns.
        type: str
      samples_query:
        description:
          - A query with C($pods) that returns the number of samples for O(metrics[].min_samples),
            such as the number of requests in the window. For V(success_rate) and V(latency), the
            samples are counted without this option.
        type: str
      requests_metric:
        description:
          - Name of the counter of requests for O(metrics[].type=success_rate).
        type: str
        default: http_requests_total
      status_label:
        description:
          - Label of O(metrics[].requests_metric) that contains the status of the response.
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
          - Label that contains the name of the pod, for V(success_rate) and V(latency).
        type: str
        default: pod
      namespace_label:
        description:
          - Label that contains the namespace of the pod, for V(success_rate) and V(latency). Set
            V("") if the series do not have this label, because the queries would otherwise not find
            the series.
        type: str
        default: namespace
      labels:
        description:
          - Additional labels with their required values, for V(success_rate) and V(latency).
        type: dict
      pattern:
        description:
          - For O(metrics[].type=error_lines), a Python regular expression. A line counts as a line
            with an error if the expression matches anywhere in the line.
          - Escape sequences for colors are removed, and only the first 4096 characters of a line
            are searched. The search in all lines of a measurement may take at most 10 seconds.
        type: str
        default: (?i)\b(error|fatal|panic|critical|exception|traceback)\b
      per:
        description:
          - The unit of O(metrics[].type=error_lines). With V(minute), the value is the number of
            lines with errors per minute and pod. With V(line), the value is the share of lines with
            errors, from 0 to 1. Use V(line) if the pods receive different numbers of requests.
        type: str
        choices: [minute, line]
        default: minute
      containers:
        description:
          - For O(metrics[].type=error_lines), the names of at most 10 containers whose logs are
            read. By default, all containers except init containers. A sidecar that is declared as
            an init container must be named.
        type: list
        elements: str
      min:
        description:
          - Minimum value of the new pods.
        type: float
      max:
        description:
          - Maximum value of the new pods.
        type: float
      min_ratio_to_old:
        description:
          - Minimum ratio of the value of the new pods to the value of the old pods.
        type: float
      max_ratio_to_old:
        description:
          - Maximum ratio of the value of the new pods to the value of the old pods. If the value of
            the old pods is 0, the value of the new pods must not exceed 0.
        type: float
      max_decrease:
        description:
          - The value of the new pods may be lower than the value of the old pods by at most this
            number. With V(0.01) and O(metrics[].type=success_rate), the error rate may increase
            by one percentage point.
        type: float
      max_increase:
        description:
          - The value of the new pods may be higher than the value of the old pods by at most this
            number.
        type: float
      min_samples:
        description:
          - Minimum number of samples, such as requests in the window. With fewer samples, a
            measurement is inconclusive. The minimum applies to the new pods. In a comparison, it
            also applies to the old pods. By default, samples are not counted.
          - For O(metrics[].type=error_lines), a sample is a line.
        type: float
      on_empty:
        description:
          - The outcome if the query returns no series or C(NaN), or if the logs contain no lines.
            For example, a success rate has no value without requests.
          - V(zero) uses the value 0, for the new and the old pods. Use V(zero) for example to count
            errors, because a counter of errors often has no series before the first error. The
            other choices apply only to the new pods. With these choices, a comparison without a
            number for the old pods is inconclusive.
          - For a ratio of errors to requests, add V(or vector(0\)) to the errors in the query. The
            result is then empty only if there are no requests.
        type: str
        choices: [inconclusive, pass, fail, zero]
        default: inconclusive
  window:
    description:
      - The period before each measurement, as a Prometheus duration. The period applies to
        V(success_rate), V(latency), C($window) and O(metrics[].type=error_lines). Prometheus needs
        two scrapes within the window. Use at least four times the scrape interval.
    type: str
    default: 1m
  initial_delay:
    description:
      - Seconds to wait before the first measurement, for example until the new pods have received
        requests for a whole O(window).
    type: str
    default: "0"
  count:
    description: Number of measurements of each metric.
    type: int
    default: 1
  interval:
    description: Seconds from one measurement to the next. With V(11) measurements and the default,
      the analysis takes five minutes.
    type: str
    default: "30"
  failure_limit:
    description:
      - Number of measurements of a metric that may fail. If more fail, the task fails at once. Must
        be less than O(count).
    type: int
    default: 0
  inconclusive_limit:
    description:
      - Number of measurements of a metric that may be inconclusive. If more are inconclusive, the
        metric is inconclusive, and the task fails at once unless O(on_inconclusive=pass).
      - If none of the O(count) measurements of a metric has passed, the outcome of the metric is
        V(failed) if at least one of them has failed, and V(inconclusive) otherwise.
    type: int
    default: 0
  on_inconclusive:
    description:
      - Whether the task fails if the worst outcome of all metrics is V(inconclusive). With V(pass),
        RV(outcome) is still V(inconclusive).
    type: str
    choices: [fail, pass]
    default: fail
  on_no_old_pods:
    description:
      - The outcome of a comparison with old pods, or of a query with C($old_pods), if there are no
        old pods. In a comparison, O(metrics[].min) and O(metrics[].max) still apply.
    type: str
    choices: [inconclusive, pass]
    default: inconclusive
  progress:
    description: Whether to print a line for each measurement.
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

- name: Compare the new pods with the old pods for five minutes (ten intervals)
  baton.kubernetes.rollout_analysis:
    name: shop
    prometheus_url: https://prometheus.example.com
    prometheus_token: "{{ prometheus_token }}"
    count: 11
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

- name: Compare the lines with errors in the logs of the new and the old pods
  baton.kubernetes.rollout_analysis:
    name: shop
    initial_delay: 60
    metrics:
      - type: error_lines
        containers: [web]
        max_increase: 2

- name: Compare new and old pods in one query
  baton.kubernetes.rollout_analysis:
    name: shop
    prometheus_url: https://prometheus.example.com
    metrics:
      - name: memory
        query: avg(memory_bytes{pod=~"$new_pods"}) / avg(memory_bytes{pod=~"$old_pods"})
        max: 1.2
"""

RETURN = r"""
outcome:
  description:
    - The worst outcome of all metrics. With V(failed), the task fails. With V(inconclusive), the
      task fails unless O(on_inconclusive=pass).
    - If an error ends the analysis, for example because the update ends, the task fails, and the
      outcome is V(failed) or V(inconclusive).
  returned: if something was measured
  type: str
  choices: [passed, failed, inconclusive]
namespace:
  description: Namespace of the controller, even if O(namespace) is not set.
  returned: if something was measured
  type: str
name:
  description: Name of the controller.
  returned: if something was measured
  type: str
kind:
  description: Kind of the controller, even if O(kind) is not set.
  returned: if something was measured
  type: str
metrics:
  description: The metrics, with the outcomes of their measurements.
  returned: if something was measured
  type: list
  elements: dict
  contains:
    name:
      description: Name of the metric.
      type: str
    outcome:
      description: The outcome of the metric.
      type: str
      choices: [passed, failed, inconclusive]
    query:
      description: The query, with its placeholders. For logs, a description of the counted lines.
      type: str
    thresholds:
      description: The thresholds of the metric.
      type: dict
    passed:
      description: Number of passed measurements.
      type: int
    failed:
      description: Number of failed measurements.
      type: int
    inconclusive:
      description: Number of inconclusive measurements.
      type: int
measurements:
  description: The measurements in order, at most 2000.
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
      description: Time of the measurement in RFC 3339, UTC.
      type: str
    outcome:
      description: The outcome of the measurement.
      type: str
      choices: [passed, failed, inconclusive]
    reason:
      description: Why the measurement has not passed, or which comparison was omitted. Otherwise
        empty.
      type: str
    new:
      description: The value of the new pods. V(null) if unknown. An infinite value is the string
        V(+Inf) or V(-Inf).
      type: raw
    old:
      description: The value of the old pods. V(null) if unknown or not measured.
      type: raw
    samples:
      description:
        - The number of samples of the new pods. For O(metrics[].type=error_lines), the number of
          lines.
        - For other types, V(null) without O(metrics[].min_samples).
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
  description: The outcome in one sentence. After a failure, also the reason and the next command.
  returned: always
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
      description: The controller, or the address of Prometheus.
      type: str
    why:
      description: The reasons, one per line.
      type: str
    next_command:
      description: The next commands or hints, one per line.
      type: str
    commands:
      description: The commands of RV(failure.next_command) without the hints.
      type: list
      elements: str
    causes:
      description: Always empty.
      type: list
      elements: dict
    url:
      description: Address of the documentation page that explains the error. Empty unless the
        collection was built with the address of the documentation.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baton.kubernetes.plugins.module_utils import (  # noqa: F401  pylint: disable=unused-import
    floor,  # must be imported first, because floor ends the module if Python is too old
    task,
)


def main() -> None:
    module = AnsibleModule(argument_spec=task.ANALYSIS_OPTIONS, supports_check_mode=True)
    task.run_module(module, task.analysis)


if __name__ == "__main__":
    main()
