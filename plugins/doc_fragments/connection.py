# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Options of the connection to the API server, with the names of kubernetes.core."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig file, or its content as a dictionary or as text (YAML or JSON,
        optionally in base64).
      - With a local connection, a relative path is also searched in C(files/) of the role and the
        playbook, and the file may be encrypted with Ansible Vault. It is decrypted only in memory.
      - The timeout of an exec credential plugin is 60 seconds, or the task's C(timeout) if that is
        shorter.
      - By default, and without O(host) and credentials, the task uses the ServiceAccount of its pod
        if it runs in a cluster, or else the file in E(KUBECONFIG), or else C(~/.kube/config).
      - Can also be set with the environment variable E(K8S_AUTH_KUBECONFIG).
    type: raw
  context:
    description:
      - Name of the context in the kubeconfig to use. By default, the kubeconfig's current context.
      - Can also be set with the environment variable E(K8S_AUTH_CONTEXT).
    type: str
  host:
    description:
      - URL of the API server, such as V(https://api.example.com:6443). By default, the URL in the
        kubeconfig.
      - Can also be set with the environment variable E(K8S_AUTH_HOST).
    type: str
  api_key:
    description:
      - Bearer token to authenticate with.
      - Can also be set with the environment variable E(K8S_AUTH_API_KEY).
    type: str
  username:
    description:
      - User name for HTTP basic authentication. The API server itself does not support this, but a
        proxy in front of it may.
      - Can also be set with the environment variable E(K8S_AUTH_USERNAME).
    type: str
  password:
    description:
      - Password for HTTP basic authentication with O(username).
      - Can also be set with the environment variable E(K8S_AUTH_PASSWORD).
    type: str
  client_cert:
    description:
      - Path of the client certificate to authenticate with, in PEM format.
      - Can also be set with the environment variable E(K8S_AUTH_CERT_FILE).
    type: path
    aliases: [cert_file]
  client_key:
    description:
      - Path of the private key that belongs to O(client_cert), in PEM format.
      - Can also be set with the environment variable E(K8S_AUTH_KEY_FILE).
    type: path
    aliases: [key_file]
  ca_cert:
    description:
      - Path of the certificate authority (CA) bundle to verify the API server's certificate with,
        in PEM format.
      - Can also be set with the environment variable E(K8S_AUTH_SSL_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  validate_certs:
    description:
      - Whether to verify the API server's certificate. By default, the setting of the kubeconfig,
        or else V(true).
      - Can also be set with the environment variable E(K8S_AUTH_VERIFY_SSL).
    type: bool
    aliases: [verify_ssl]
  proxy:
    description:
      - URL of an HTTP proxy to connect through. By default, the proxy in the kubeconfig, or else in
        E(HTTPS_PROXY) and similar environment variables.
      - Can also be set with the environment variable E(K8S_AUTH_PROXY).
    type: str
  no_proxy:
    description:
      - Comma-separated list of hosts, domains and networks to connect to without a proxy.
      - Can also be set with the environment variable E(K8S_AUTH_NO_PROXY).
    type: str
  proxy_headers:
    description:
      - Headers for the proxy, which are sent only to the proxy, when a connection is established.
      - The user name and the password in the URL of a proxy are sent without this option.
    type: dict
    suboptions:
      proxy_basic_auth:
        description:
          - User name and password for the proxy, as V(user:password). By default, the credentials
            in its URL.
          - Can also be set with the environment variable
            E(K8S_AUTH_PROXY_HEADERS_PROXY_BASIC_AUTH).
        type: str
      basic_auth:
        description:
          - User name and password for a proxy that expects them in the header C(Authorization).
          - Can also be set with the environment variable E(K8S_AUTH_PROXY_HEADERS_BASIC_AUTH).
        type: str
      user_agent:
        description:
          - The user agent for the proxy. By default, V(baton.kubernetes/VERSION), as for the API
            server.
          - Can also be set with the environment variable E(K8S_AUTH_PROXY_HEADERS_USER_AGENT).
        type: str
  persist_config:
    description:
      - Whether to write a refreshed token of an OIDC provider to the kubeconfig file. The next task
        needs it if each refresh token can be used only once.
      - Can also be set with the environment variable E(K8S_AUTH_PERSIST_CONFIG).
    type: bool
  impersonate_user:
    description:
      - Name of the user to impersonate.
      - Can also be set with the environment variable E(K8S_AUTH_IMPERSONATE_USER).
    type: str
  impersonate_groups:
    description:
      - Names of the groups to impersonate a member of.
      - Can also be set with the environment variable E(K8S_AUTH_IMPERSONATE_GROUPS), as a
        comma-separated list.
    type: list
    elements: str
requirements:
  - python >= 3.9
  - kubernetes >= 24.2.0 (the Python package)
  - PyYAML >= 5.1
"""
