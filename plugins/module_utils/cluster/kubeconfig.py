# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Load the cluster and the user of a context in a kubeconfig.

This module handles exec plugins, certificates and paths, and the kubernetes package the rest.
"""

from __future__ import annotations

import base64
import contextlib
import os
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, objects, text
from ..model.identity import did_you_mean
from . import exec_plugin
from . import secrets as masking
from .certificates import Certificates

_MAX_SHOWN_CONTEXTS = 10
HINT = ("give kubeconfig (or K8S_AUTH_KUBECONFIG), or host and api_key, or run inside the cluster")
#: For a user with an exec plugin, the kubernetes package gets only the first two fields.
_USER_FIELDS = ("auth-provider", "token", "username", "password")
#: In each pair, the first field has the path of a file. The second field can have the content of
#: the file instead.
_USER_FILES = (("tokenFile", "token"), ("client-certificate", "client-certificate-data"),
               ("client-key", "client-key-data"))
_CLUSTER_FILES = (("certificate-authority", "certificate-authority-data"),)


class Kubeconfig:
    """The cluster and the user of a context in a kubeconfig."""

    def __init__(self, content: t.Any, context: str | None, timeout: float,
                 persist_token: bool, overrides: Json | None = None) -> None:
        """Read the kubeconfig. An invalid file raises various exceptions.

        content: a dictionary, or the paths of files. timeout: seconds for an exec plugin.
        overrides: fields that replace those of the cluster, for the exec plugin.
        """
        from kubernetes.config import kube_config

        self._plugin_timeout, self._overrides = timeout, overrides or {}
        self._merger: t.Any = None
        if isinstance(content, dict):
            root: t.Any = kube_config.ConfigNode("kube-config", content)
        else:
            merger = kube_config.KubeConfigMerger(content)
            root = merger.config
            self._merger = merger if persist_token else None
        if root is None:
            raise ValueError("no configuration found")
        #: The name of the context.
        self.context: t.Any = context or root["current-context"]
        selected_context = root["contexts"].get_with_name(self.context)["context"]
        self.namespace = str(selected_context.safe_get("namespace") or "")
        cluster = root["clusters"].get_with_name(selected_context["cluster"])["cluster"]
        self._cluster, self._cluster_folder = cluster.value, _folder(cluster)
        self._user: Json = {}
        self._user_folder = ""
        if selected_context.safe_get("user") and root.safe_get("users"):
            entry = root["users"].get_with_name(selected_context["user"], safe=True)
            if entry:
                user = entry["user"]
                self._user, self._user_folder = mapping(user.value), _folder(user)
        self._credential: exec_plugin.Credential | None = None

    def load(self, configuration: t.Any) -> None:
        """Set the address and the credentials in a Configuration of the kubernetes package.

        Raises RolloutError, and exceptions of the kubernetes package.
        """
        from kubernetes.config import kube_config

        content = {"current-context": "main",
                   "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
                   "clusters": [{"name": "main", "cluster": self._resolved_cluster()}],
                   "users": [{"name": "main", "user": self._resolved_user()}]}
        kube_config.load_kube_config_from_dict(
            content, client_configuration=configuration, persist_config=False)
        self.save()
        if "exec" in self._user and not configuration.api_key:
            self._run_plugin(configuration)

    def refresh(self, configuration: t.Any) -> None:
        """Run the exec plugin again if its token expires soon. Raises RolloutError."""
        if (self._credential and self._credential.token
                and _expires_soon(self._credential.expiration_time)):
            self._run_plugin(configuration)

    def save(self) -> None:
        """Write a refreshed token to the file, if persist_token is True."""
        if self._merger:
            self._merger.save_changes()

    def certificates(self) -> Certificates:
        """Return the certificates from inline fields and from the exec plugin.

        Raises ValueError for invalid base64.
        """
        if not text(self._cluster, "server").startswith("https"):
            return Certificates()
        ca_certificates = _decode(self._cluster, "certificate-authority-data")
        if self._credential and self._credential.certificate:
            return Certificates(ca_certificates, self._credential.certificate.encode(),
                                self._credential.key.encode())
        return Certificates(ca_certificates, _decode(self._user, "client-certificate-data"),
                            _decode(self._user, "client-key-data"))

    def _run_plugin(self, configuration: t.Any) -> None:
        self._credential = exec_plugin.run(mapping(self._user, "exec"), self._overridden_cluster(),
                                           self._cluster_folder, self._plugin_timeout)
        if self._credential.token:
            configuration.api_key["BearerToken"] = f"Bearer {self._credential.token}"
        else:  # the certificate of the plugin replaces the files of the user
            configuration.cert_file = configuration.key_file = None

    def _overridden_cluster(self) -> Json:
        """Return the cluster with the options of the task, for the exec plugin.

        As in kubectl, ca_cert and validate_certs=false replace the authority of the kubeconfig.
        """
        if ("certificate-authority" in self._overrides
                or self._overrides.get("insecure-skip-tls-verify")):
            return _without_authority(self._cluster) | self._overrides
        return self._cluster | self._resolved_cluster() | self._overrides

    def _resolved_cluster(self) -> Json:
        """Return the cluster with resolved paths, and without the inline certificate.

        The kubernetes package resolves relative paths only in a kubeconfig that is a file.
        """
        return _without_authority(self._cluster) | _absolute_paths(
            self._cluster, self._cluster_folder, _CLUSTER_FILES)

    def _resolved_user(self) -> Json:
        """Return the user without the exec plugin and the inline certificates.

        The auth provider stays the same object, because the kubernetes package stores a refreshed
        token in this object.
        """
        fields = _USER_FIELDS[:2] if "exec" in self._user else _USER_FIELDS
        user = {field: self._user[field] for field in fields if field in self._user}
        return user | _absolute_paths(self._user, self._user_folder, _USER_FILES)


def _folder(node: t.Any) -> str:
    return os.path.abspath(os.path.dirname(node.path)) if node.path else ""


def _without_authority(cluster: Json) -> Json:
    """Return the cluster without the fields of its certificate authority."""
    return {field: value for field, value in cluster.items() if field not in _CLUSTER_FILES[0]}


def _absolute_paths(fields: Json, folder: str, field_pairs: t.Iterable[tuple[str, str]]) -> Json:
    """Return the path fields, resolved in the folder, except paths with an inline field."""
    return {path_field: os.path.normpath(os.path.join(folder, fields[path_field]))
            for path_field, inline_field in field_pairs
            if path_field in fields and inline_field not in fields}


def _decode(fields: Json, name: str) -> bytes:
    return base64.standard_b64decode(fields.get(name) or "")


def _expires_soon(expiry: str) -> bool:
    """Return whether a time in RFC 3339 is past, or less than five minutes away."""
    if not expiry:
        return False
    import datetime

    from kubernetes.config.dateutil import parse_rfc3339

    now = datetime.datetime.now(datetime.timezone.utc)
    return parse_rfc3339(expiry) - datetime.timedelta(minutes=5) <= now


def parse_inline_content(kubeconfig: t.Any) -> t.Any:
    """Return inline content as a dictionary, and anything else unchanged. Raises RolloutError."""
    if not isinstance(kubeconfig, str) or masking.is_path(kubeconfig):
        return kubeconfig
    import yaml

    try:
        content = yaml.safe_load(masking.decode(kubeconfig))
    except yaml.YAMLError as error:
        raise invalid_yaml_error("the content of kubeconfig", error) from None
    except RecursionError:
        content = None
    if isinstance(content, dict):
        return content
    raise RolloutError("kubeconfig is neither the path of a file nor the content of one",
                       next_command=HINT)


def invalid_yaml_error(what: str, error: Exception) -> RolloutError:
    """Return the error for invalid YAML, without the parser's message, which may quote secrets."""
    mark = getattr(error, "problem_mark", None)
    why = f"line {mark.line + 1}" if mark else ""
    return RolloutError(f"{what} is not valid YAML", why=why, next_command=HINT)


def documents(kubeconfig: t.Any) -> t.Iterator[t.Any]:
    """Yield the parsed inline content, or else the parsed content of each readable file."""
    with contextlib.suppress(RolloutError, ImportError):
        import yaml
        from kubernetes.config import kube_config

        content_or_paths = parse_inline_content(kubeconfig)
        if isinstance(content_or_paths, dict):
            yield content_or_paths
            return
        paths = str(content_or_paths or kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        for path in paths.split(os.pathsep):
            ignore_errors = contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError)
            with ignore_errors, open(os.path.expanduser(path), encoding="utf-8") as file:
                yield yaml.safe_load(file)


@contextlib.contextmanager
def translate_unknown_context_error(kubeconfig: t.Any, context: str | None) -> t.Iterator[None]:
    """Turn the error for an unknown context into a RolloutError."""
    from kubernetes.config.config_exception import ConfigException

    try:
        yield
    except ConfigException:
        contexts = (entry for document in documents(kubeconfig)
                    for entry in objects(document, "contexts"))
        names = list(dict.fromkeys(text(entry, "name") for entry in contexts))
        if context is None or context in names:
            raise
        more_count = len(names) - _MAX_SHOWN_CONTEXTS
        shown_names = ", ".join(names[:_MAX_SHOWN_CONTEXTS]) + (
            f" and {more_count} more" if more_count > 0 else "")
        raise RolloutError(
            f"the kubeconfig has no context {context}{did_you_mean(context, names)}",
            why=f"available contexts: {shown_names}" if names else "the kubeconfig has no contexts",
            next_command="give another context (or K8S_AUTH_CONTEXT), or check kubeconfig",
        ) from None
