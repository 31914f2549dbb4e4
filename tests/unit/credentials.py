# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List all ways to pass credentials to a task."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import typing as t

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PASSWORD = "correct-horse-battery-staple"
PLUGIN_ARGUMENT = "an-argument-of-the-plugin-71c2"
#: Connection options whose values never contain a secret.
PUBLIC_OPTIONS = {"context", "username", "ca_cert", "validate_certs", "no_proxy", "persist_config",
                  "impersonate_user",
                  "impersonate_groups"}

#: Credential plugin that prints its arguments and the token on stderr.
PLUGIN = """#!/bin/sh
echo "I was given $* and $TOKEN" >&2
[ -z "$FAILS" ] || exit 1
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", \
"status": {"token": "'"$TOKEN"'"}}'
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """Options and environment of a task, and the secrets in them."""

    secrets: list[str]
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Secrets that the process list shows: arguments of a credential plugin.
    arguments: list[str] = dataclasses.field(default_factory=list)
    #: Pattern of the error, if no task can work with the options.
    error_pattern: str = ""


def credential_cases(host: str, ca_cert: str | None, token: str,
                     write: t.Callable[[str, str], str], proxy: str = "") -> dict[str, Case]:
    """Return all cases by name.

    write(name, text): creates a file outside of Ansible's folders, and returns its path.
    proxy: host and port. Without it, the cases with a proxy are left out.
    """
    server = {"host": host, **({"ca_cert": ca_cert} if ca_cert else {})}
    certificate, key = self_signed_certificate()
    data = {"client-certificate-data": base64.b64encode(certificate.encode()).decode(),
            "client-key-data": base64.b64encode(key.encode()).decode()}
    key_line = key.splitlines()[1]
    key_texts = [token, data["client-key-data"], key_line]
    password_texts = [PASSWORD, base64.b64encode(f"me:{PASSWORD}".encode()).decode()]
    files = {"client_cert": write("cert.pem", certificate), "client_key": write("key.pem", key)}
    with_key = kubeconfig(server, {"token": token, **data})
    as_text = yaml.safe_dump(with_key, width=60)
    as_base64 = base64.b64encode(as_text.encode()).decode()
    plugin = kubeconfig(server, {"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
        "args": [write("plugin", PLUGIN), PLUGIN_ARGUMENT],
        "interactiveMode": "Never", "env": [{"name": "TOKEN", "value": token}]}})
    proxy_url = f"http://me:{PASSWORD}@{proxy}"
    with_proxy = kubeconfig(server, {"token": token}, **{"proxy-url": proxy_url})
    path_error_pattern = "neither the path|must be the path|not valid YAML|there is no kubeconfig"
    environment = {"K8S_AUTH_HOST": host, **({"K8S_AUTH_SSL_CA_CERT": ca_cert} if ca_cert else {})}
    cases = {
        "api-key": Case([token], {**server, "api_key": token}),
        "api-key-variable": Case([token], {}, {**environment, "K8S_AUTH_API_KEY": token}),
        "password": Case(password_texts, {**server, "username": "me", "password": PASSWORD},
                         error_pattern="anonymous"),
        "password-variable": Case(password_texts, {},
                                  {**environment, "K8S_AUTH_USERNAME": "me",
                                   "K8S_AUTH_PASSWORD": PASSWORD},
                                  error_pattern="anonymous"),
        "key": Case([token, key_line], {**server, **files, "api_key": token}),
        "key-as-text": Case([key, key_line], {**server, **files, "client_key": key},
                            error_pattern=path_error_pattern),
        "key-variable": Case([key, key_line], {},
                             {**environment, "K8S_AUTH_CERT_FILE": files["client_cert"],
                              "K8S_AUTH_KEY_FILE": key}, error_pattern=path_error_pattern),
        "certificate-with-key": Case([key, key_line],
                                     {**server, **files, "client_cert": certificate + key},
                                     error_pattern=path_error_pattern),
        "address": Case([PASSWORD, token],
                        {**server, "host": host.replace("://", f"://me:{PASSWORD}@"),
                         "api_key": token}),
        "kubeconfig": Case(key_texts, {"kubeconfig": with_key}),
        "kubeconfig-file": Case(key_texts, {"kubeconfig": write("with-key", json.dumps(with_key))}),
        "kubeconfig-as-json": Case(key_texts, {"kubeconfig": " " + json.dumps(with_key)}),
        "kubeconfig-as-yaml": Case(key_texts, {"kubeconfig": as_text}),
        "kubeconfig-as-base64": Case([*key_texts, as_base64, as_base64[:60]],
                                     {"kubeconfig": as_base64}),
        "cut-kubeconfig": Case([as_base64[9:], as_base64[9:69]], {"kubeconfig": as_base64[9:]},
                               error_pattern=path_error_pattern),
        "kubeconfig-as-json-variable": Case(key_texts, {},
                                            {"K8S_AUTH_KUBECONFIG": json.dumps(with_key)}),
        "kubeconfig-variable": Case(key_texts, {}, {"KUBECONFIG": write("in-variable", as_text)}),
        "plugin": Case([token], {"kubeconfig": plugin}, arguments=[PLUGIN_ARGUMENT]),
        "plugin-file": Case([token], {"kubeconfig": write("with-plugin", yaml.safe_dump(plugin))},
                            arguments=[PLUGIN_ARGUMENT]),
        "plugin-variable": Case([token], {},
                                {"KUBECONFIG": write("plugin-in-variable", yaml.safe_dump(
                                    plugin))},
                                arguments=[PLUGIN_ARGUMENT]),
        "failing-plugin": Case([token], {"kubeconfig": plugin}, {"FAILS": "1"},
                               arguments=[PLUGIN_ARGUMENT], error_pattern="I was given"),
        "invalid-proxy": Case([PASSWORD, token],
                              {**server, "api_key": token, "proxy": f"http://me:{PASSWORD}@["},
                              error_pattern="cannot be set up"),
    }
    if proxy:
        cases |= {
            "proxy": Case([*password_texts, token],
                          {**server, "api_key": token, "proxy": proxy_url}),
            "proxy-headers": Case([*password_texts, token],
                                  {**server, "api_key": token, "proxy": f"http://{proxy}",
                                   "proxy_headers": {
                                       "proxy_basic_auth": f"me:{PASSWORD}",
                                       "basic_auth": f"me:{PASSWORD}", "user_agent": "curl/8"}}),
            "proxy-headers-variable": Case([*password_texts, token], {}, {
                **environment, "K8S_AUTH_API_KEY": token, "K8S_AUTH_PROXY": f"http://{proxy}",
                "K8S_AUTH_PROXY_HEADERS_PROXY_BASIC_AUTH": f"me:{PASSWORD}"}),
            "proxy-variable": Case([PASSWORD, token], {},
                                   {**environment, "K8S_AUTH_API_KEY": token,
                                    "K8S_AUTH_PROXY": proxy_url}),
            "proxy-environment": Case([PASSWORD, token], {},
                                      {**environment, "K8S_AUTH_API_KEY": token,
                                       "HTTPS_PROXY": proxy_url, "HTTP_PROXY": proxy_url}),
            "kubeconfig-with-proxy": Case([PASSWORD, token], {"kubeconfig": with_proxy}),
            "file-with-proxy": Case([PASSWORD, token], {},
                                    {"KUBECONFIG": write("with-proxy", json.dumps(with_proxy))}),
        }
    return cases


def kubeconfig(server: dict[str, t.Any], user: dict[str, t.Any],
               **cluster: t.Any) -> dict[str, t.Any]:
    trust = {"certificate-authority": server["ca_cert"]} if "ca_cert" in server else {}
    return {"apiVersion": "v1", "kind": "Config", "current-context": "prod",
            "users": [{"name": "me", "user": user}],
            "clusters": [{"name": "prod",
                          "cluster": {"server": server["host"], **trust, **cluster}}],
            "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "me"}}]}


def self_signed_certificate() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "me")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(
        key.public_key()).serial_number(1)
        .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(
        key, hashes.SHA256()))
    key_format = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                  serialization.NoEncryption())
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), key.private_bytes(
        *key_format).decode()
