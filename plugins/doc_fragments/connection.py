# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How to reach the API server; names and environment variables are those of kubernetes.core."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig file, or its content as a dictionary or as text.
      - Without it, and without O(host) and credentials, the configuration of the pod that the task runs in is used,
        then the file that E(KUBECONFIG) names, then C(~/.kube/config).
      - Can also be given by the environment variable E(K8S_AUTH_KUBECONFIG).
    type: raw
  context:
    description:
      - Name of a context of the kubeconfig; the current one by default.
      - Can also be given by the environment variable E(K8S_AUTH_CONTEXT).
    type: str
  host:
    description:
      - URL of the API server.
      - Can also be given by the environment variable E(K8S_AUTH_HOST).
    type: str
  api_key:
    description:
      - Bearer token.
      - Can also be given by the environment variable E(K8S_AUTH_API_KEY).
    type: str
  username:
    description:
      - User for HTTP basic authentication, where something before the API server accepts it.
      - Can also be given by the environment variable E(K8S_AUTH_USERNAME).
    type: str
  password:
    description:
      - Password for HTTP basic authentication.
      - Can also be given by the environment variable E(K8S_AUTH_PASSWORD).
    type: str
  client_cert:
    description:
      - Path of a client certificate.
      - Can also be given by the environment variable E(K8S_AUTH_CERT_FILE).
    type: path
    aliases: [cert_file]
  client_key:
    description:
      - Path of the client certificate's key.
      - Can also be given by the environment variable E(K8S_AUTH_KEY_FILE).
    type: path
    aliases: [key_file]
  ca_cert:
    description:
      - Path of the certificate authority that the API server's certificate is checked with.
      - Can also be given by the environment variable E(K8S_AUTH_SSL_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  validate_certs:
    description:
      - Whether to check the API server's certificate; V(true) unless the kubeconfig says otherwise.
      - Can also be given by the environment variable E(K8S_AUTH_VERIFY_SSL).
    type: bool
    aliases: [verify_ssl]
  proxy:
    description:
      - URL of an HTTP proxy. E(HTTPS_PROXY) and its relatives are used where neither this nor the kubeconfig names one.
      - Can also be given by the environment variable E(K8S_AUTH_PROXY).
    type: str
  no_proxy:
    description:
      - Hosts, domains and networks that are reached without the proxy, separated by commas.
      - Can also be given by the environment variable E(K8S_AUTH_NO_PROXY).
    type: str
  impersonate_user:
    description:
      - User to act as.
      - Can also be given by the environment variable E(K8S_AUTH_IMPERSONATE_USER).
    type: str
  impersonate_groups:
    description:
      - Groups to act as a member of.
      - Can also be given by the environment variable E(K8S_AUTH_IMPERSONATE_GROUPS), separated by commas.
    type: list
    elements: str
requirements:
  - python >= 3.11
  - kubernetes >= 29.0.0 (the Python package; 36.0.0 is broken)
  - PyYAML >= 5.1
"""
