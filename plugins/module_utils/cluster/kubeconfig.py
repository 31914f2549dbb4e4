# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubeconfig: the cluster and the user of one context.

The kubernetes package merges the files and loads all fields without a program or a temporary file:
addresses, tokens, passwords, auth providers. Credential plugins run in exec_plugin.py, and inline
certificates stay in memory (certificates.py). The package alone runs the cmd-path of the auth
provider gcp, without a time limit; Kubernetes removed gcp in 1.26.
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
from . import secrets as hidden
from .certificates import Certificates

#: Largest number of contexts in an error.
_MOST_CONTEXTS = 10
HINT = ("give kubeconfig (or K8S_AUTH_KUBECONFIG), or host and api_key, or run inside the cluster")
#: Fields of a user loaded by the package, and the files among them with the fields of their
#: content. Content has precedence.
_USER_FIELDS = ("auth-provider", "token", "username", "password")
_USER_FILES = (("tokenFile", "token"), ("client-certificate", "client-certificate-data"),
               ("client-key", "client-key-data"))


class Kubeconfig:
    """Context of a kubeconfig, as used by a task."""

    def __init__(self, content: t.Any, context: str | None, timeout: float,
                 persists: bool) -> None:
        """Read the kubeconfig. Raises ConfigException, and many others for a broken file.

        content: the content as a dictionary, or the paths of files. timeout: time limit of a
        credential plugin in seconds. persists: write a refreshed token to the file.
        """
        from kubernetes.config import kube_config

        self._timeout = timeout
        self._merger: t.Any = None
        if isinstance(content, dict):
            root: t.Any = kube_config.ConfigNode("kube-config", content)
        else:
            merger = kube_config.KubeConfigMerger(content)
            root = merger.config
            self._merger = merger if persists else None
        if root is None:
            raise ValueError("no configuration found")
        names = root["contexts"].get_with_name(context or root["current-context"])["context"]
        cluster = root["clusters"].get_with_name(names["cluster"])["cluster"]
        self._cluster, self._folder = cluster.value, _folder(cluster)
        self._user: Json = {}
        self._user_folder = ""
        if names.safe_get("user") and root.safe_get("users"):
            entry = root["users"].get_with_name(names["user"], safe=True)
            if entry:
                user = entry["user"]
                self._user, self._user_folder = mapping(user.value), _folder(user)
        self._credential: exec_plugin.Credential | None = None

    def load(self, configuration: t.Any) -> None:
        """Set the address and the credentials. Raises RolloutError for a failed plugin."""
        from kubernetes.config import kube_config

        plain = {"current-context": "main",
                 "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
                 "clusters": [{"name": "main", "cluster": self._plain_cluster()}],
                 "users": [{"name": "main", "user": self._plain_user()}]}
        kube_config.load_kube_config_from_dict(
            plain, client_configuration=configuration, persist_config=False)
        self.save()
        if "exec" in self._user and not configuration.api_key:
            self._run_plugin(configuration)

    def refresh(self, configuration: t.Any) -> None:
        """Ask the plugin for another token at the expiry of the last. Raises RolloutError."""
        if self._credential and self._credential.token and _is_expired(self._credential.expires):
            self._run_plugin(configuration)

    def save(self) -> None:
        """Write a refreshed token to the kubeconfig's file, if the task persists tokens."""
        if self._merger:
            self._merger.save_changes()

    def certificates(self) -> Certificates:
        """Return the inline certificates. Raises ValueError for invalid base64."""
        if not text(self._cluster, "server").startswith("https"):
            return Certificates()
        authority = _decoded(self._cluster, "certificate-authority-data")
        if self._credential and self._credential.certificate:
            return Certificates(authority, self._credential.certificate.encode(),
                                self._credential.key.encode())
        return Certificates(authority, _decoded(self._user, "client-certificate-data"),
                            _decoded(self._user, "client-key-data"))

    def _run_plugin(self, configuration: t.Any) -> None:
        self._credential = exec_plugin.run(mapping(self._user, "exec"), self._cluster,
                                           self._folder, self._timeout)
        if self._credential.token:
            configuration.api_key["BearerToken"] = f"Bearer {self._credential.token}"
        else:  # files of the user do not belong to the plugin's certificate
            configuration.cert_file = configuration.key_file = None

    def _plain_cluster(self) -> Json:
        """Return the cluster without its inline certificate, and with an absolute path."""
        cluster = {field: value for field, value in self._cluster.items()
                   if field not in ("certificate-authority", "certificate-authority-data")}
        return cluster | _files(self._cluster, self._folder,
                                (("certificate-authority", "certificate-authority-data"),))

    def _plain_user(self) -> Json:
        """Return the user without plugin and inline certificates, and with absolute paths.

        The auth provider is the same object: the package refreshes a token in place.
        """
        fields = _USER_FIELDS[:2] if "exec" in self._user else _USER_FIELDS
        user = {field: self._user[field] for field in fields if field in self._user}
        return user | _files(self._user, self._user_folder, _USER_FILES)


def _folder(node: t.Any) -> str:
    """Return the folder of the file with a part of a kubeconfig, "" for a text."""
    return os.path.abspath(os.path.dirname(node.path)) if node.path else ""


def _files(fields: Json, folder: str, names: t.Iterable[tuple[str, str]]) -> Json:
    return {file: os.path.normpath(os.path.join(folder, fields[file])) for file, data in names
            if file in fields and data not in fields}


def _decoded(fields: Json, name: str) -> bytes:
    return base64.standard_b64decode(fields.get(name) or "")


def _is_expired(time: str) -> bool:
    """Return whether a time in RFC 3339 is past, or within the next five minutes."""
    if not time:
        return False
    import datetime

    from kubernetes.config.dateutil import parse_rfc3339

    now = datetime.datetime.now(datetime.timezone.utc)
    return parse_rfc3339(time) - datetime.timedelta(minutes=5) <= now


def content_of(kubeconfig: t.Any) -> t.Any:
    """Return the content of a kubeconfig as a dictionary, or its path. Raises RolloutError."""
    if not isinstance(kubeconfig, str) or hidden.is_path(kubeconfig):
        return kubeconfig
    import yaml

    try:
        content = yaml.safe_load(hidden.decoded(kubeconfig))
    except yaml.YAMLError as error:
        raise not_yaml("the content of kubeconfig", error) from None
    except RecursionError:
        content = None
    if isinstance(content, dict):
        return content
    raise RolloutError("kubeconfig is neither the path of a file nor the content of one",
                       next_command=HINT)


def not_yaml(what: str, error: Exception) -> RolloutError:
    """Return the error for invalid YAML: the place alone, as the parser quotes secrets."""
    place = getattr(error, "problem_mark", None)
    why = f"line {place.line + 1}" if place else ""
    return RolloutError(f"{what} is not valid YAML", why=why, next_command=HINT)


def documents(kubeconfig: t.Any) -> t.Iterator[t.Any]:
    """Yield the content of a kubeconfig, or of each of its files, as far as readable."""
    with contextlib.suppress(RolloutError, ImportError):
        import yaml
        from kubernetes.config import kube_config

        content = content_of(kubeconfig)
        if isinstance(content, dict):
            yield content
            return
        for path in str(content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION).split(os.pathsep):
            unreadable = contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError)
            with unreadable, open(os.path.expanduser(path), encoding="utf-8") as file:
                yield yaml.safe_load(file)


@contextlib.contextmanager
def known_context(kubeconfig: t.Any, context: str | None) -> t.Iterator[None]:
    """Raise RolloutError with the existing contexts where the requested context is missing."""
    from kubernetes.config.config_exception import ConfigException

    try:
        yield
    except ConfigException:
        contexts = (entry for document in documents(kubeconfig)
                    for entry in objects(document, "contexts"))
        names = list(dict.fromkeys(text(entry, "name") for entry in contexts))
        if context is None or context in names:
            raise
        more = len(names) - _MOST_CONTEXTS
        shown_names = ", ".join(names[:_MOST_CONTEXTS]) + (f" and {more} more" if more > 0 else "")
        raise RolloutError(
            f"there is no context {context} in the kubeconfig{did_you_mean(context, names)}",
            why=f"it has: {shown_names}" if names else "it has no contexts",
            next_command="give another context (or K8S_AUTH_CONTEXT), or check kubeconfig",
        ) from None
