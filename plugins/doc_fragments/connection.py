# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of the connection to the API server, named as in kubernetes.core."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig file, or its content as a dictionary or as text (YAML, JSON, base64).
        The file may be encrypted with Ansible Vault.
      - By default, a task that runs in a pod and does not set O(context) uses the ServiceAccount of
        the pod. The default of any other task is the file in E(KUBECONFIG), or else
        C(~/.kube/config). No kubeconfig is needed if O(host) and credentials are set.
      - A credential plugin with C(provideClusterInfo) gets the cluster of the kubeconfig, with
        O(host), O(proxy), O(ca_cert) and O(validate_certs), but without a CA bundle of more than
        about 96 KiB, since the operating system limits the size of a variable.
    type: raw
  context:
    description: Name of the context in the kubeconfig. By default, the current context; of several
      files, the current context of the last file, as in C(kubernetes.core).
    type: str
  host:
    description: URL of the API server. By default, the URL in the kubeconfig.
    type: str
  api_key:
    description: Bearer token.
    type: str
  username:
    description: User name for HTTP basic authentication by a proxy in front of the API server.
    type: str
  password:
    description: Password for HTTP basic authentication.
    type: str
  client_cert:
    description: Path of the client certificate, in PEM format.
    type: path
    aliases: [cert_file]
  client_key:
    description: Path of the private key of O(client_cert), in PEM format.
    type: path
    aliases: [key_file]
  ca_cert:
    description: Path of the CA bundle of the API server, in PEM format.
    type: path
    aliases: [ssl_ca_cert]
  validate_certs:
    description: Whether to verify the API server's certificate. By default, the setting of the
      kubeconfig, or else V(true).
    type: bool
    aliases: [verify_ssl]
  proxy:
    description: URL of an HTTP proxy. By default, the proxy of the kubeconfig, or else the proxy of
      E(HTTPS_PROXY).
    type: str
  no_proxy:
    description: Comma-separated hosts, domains and networks to connect to without a proxy.
    type: str
  proxy_headers:
    description: Headers for the proxy. Not needed for credentials that are part of the proxy's URL.
    type: dict
    suboptions:
      proxy_basic_auth:
        description: Credentials for the proxy, as V(user:password).
        type: str
      basic_auth:
        description: Credentials for a proxy that reads the header C(Authorization).
        type: str
      user_agent:
        description: User agent. By default, V(baton.kubernetes/VERSION).
        type: str
  persist_config:
    description: Whether to write a refreshed OIDC token to the kubeconfig file.
    type: bool
  impersonate_user:
    description: User to impersonate.
    type: str
  impersonate_groups:
    description: Groups to impersonate.
    type: list
    elements: str
notes:
  - Each connection option can be set by an environment variable. The name of the variable is
    C(K8S_AUTH_), followed by the name or alias of the option in capitals, as in
    E(K8S_AUTH_KUBECONFIG) or E(K8S_AUTH_VERIFY_SSL).
requirements:
  - python >= 3.9
  - kubernetes >= 24.2.0 (the Python package)
  - PyYAML >= 5.1
"""
