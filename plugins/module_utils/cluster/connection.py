# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connect to an API server: address, certificates and credentials.

Options and environment variables have the names and the precedence of kubernetes.core. The API
clients of the kubernetes package are not used: their import would double the time of a short task.
(Old versions of the package, for example 24.2, import the API clients in any case.)
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import typing as t
from urllib.parse import unquote, urlsplit

from ..model.errors import RolloutError
from ..model.fields import Json, mapping
from ..model.options import parse_duration
from ..model.request import Request
from . import certificates, exec_plugin
from . import secrets as masking
from .certificates import Certificates
from .kubeconfig import (
    HINT,
    Kubeconfig,
    documents,
    invalid_yaml_error,
    parse_inline_content,
    translate_unknown_context_error,
)

#: Each option that may contain a secret has no_log.
ARGUMENT_SPEC: Json = dict(
    kubeconfig=dict(type="raw", no_log=True),
    context=dict(type="str"),
    host=dict(type="str", no_log=True),
    api_key=dict(type="str", no_log=True),
    username=dict(type="str"),
    password=dict(type="str", no_log=True),
    client_cert=dict(type="path", aliases=["cert_file"], no_log=True),
    client_key=dict(type="path", aliases=["key_file"], no_log=True),
    ca_cert=dict(type="path", aliases=["ssl_ca_cert"]),
    validate_certs=dict(type="bool", aliases=["verify_ssl"]),
    proxy=dict(type="str", no_log=True),
    no_proxy=dict(type="str"),
    proxy_headers=dict(type="dict", no_log=True, options=dict(
        proxy_basic_auth=dict(type="str", no_log=True),
        basic_auth=dict(type="str", no_log=True), user_agent=dict(type="str"))),
    persist_config=dict(type="bool"),
    impersonate_user=dict(type="str"),
    impersonate_groups=dict(type="list", elements="str"),
)

#: The part before the slash becomes the field manager in managedFields.
USER_AGENT = "baton.kubernetes/0.1.0"
MAX_CONNECTIONS = 32
#: Headers are reused for this many seconds, because new headers need a call of the kubernetes
#: package's refresh hook, and may need a run of an exec plugin.
HEADER_LIFETIME = 1.0
#: Aliases of options in the kubernetes package and in environment variables.
_PACKAGE_NAMES = {"validate_certs": "verify_ssl", "ca_cert": "ssl_ca_cert",
                  "client_cert": "cert_file", "client_key": "key_file"}
_FALSE_TEXTS = ("0", "false", "no", "off", "n", "f")
_POD_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_MAX_REASON_LENGTH = 500
_AMBIGUOUS_ADDRESS = ("in the address of the API server, percent-encode an @ in the path as %40, "
                      "and / ? # @ in a password")


class Connection:
    """The address of an API server, a connection pool, and the credentials."""

    def __init__(self, params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> None:
        """Load the configuration, without a request to the API server. Raises RolloutError."""
        self._options, self._environment = _options(params, environment), environment
        timeout = params.get("timeout") or exec_plugin.TIMEOUT
        #: Seconds.
        self._plugin_timeout = min(exec_plugin.TIMEOUT, parse_duration("timeout", timeout))
        self._lock = threading.RLock()
        self._group_count = 1
        self._headers: t.Any = None
        self._headers_expiry = 0.0
        #: The number of reads of the configuration.
        self.generation = 0
        self.renew(0)

    def renew(self, generation: int) -> None:
        """Read the configuration again, unless another thread already has. Raises RolloutError.

        generation: the value of self.generation when the task read the token that the API server
        has rejected.
        """
        with self._lock:
            if generation == self.generation:
                self._read_configuration()
                self._headers = None
                self.generation += 1

    def _read_configuration(self) -> None:
        with self._translate_errors("the connection to Kubernetes cannot be set up", HINT):
            from kubernetes.client import rest

            self._configuration, self._kubeconfig = _configuration(
                self._options, self._plugin_timeout)
            # Keep a copy of the host, because the refresh hook of the kubernetes package resets
            # `configuration.host`, even if the task has the option host.
            self.server: str = masking.without_credentials(self._configuration.host.rstrip("/"))
            if masking.url_secrets(self.server):
                # The server would be another one than the user may mean, and errors would show it.
                raise ValueError(_AMBIGUOUS_ADDRESS)
            self.pool: t.Any = rest.RESTClientObject(self._configuration).pool_manager
            self.pool.connection_pool_kw["block"] = True
            self._set_pool_size()
            inline_certificates = _inline_certificates(self._options, self._kubeconfig)
            certificates.refuse_encrypted_keys(inline_certificates, (
                self._configuration.cert_file, self._configuration.key_file))
            if any(inline_certificates):
                certificates.set_ssl_context(inline_certificates, self.pool.connection_pool_kw)

    @contextlib.contextmanager
    def _translate_errors(self, what: str, next_command: str = "") -> t.Iterator[None]:
        """Turn each error except ImportError into a RolloutError, and mask the secrets."""
        try:
            # Import kubernetes first: if kubernetes and PyYAML are missing, the error must name
            # kubernetes, which installs PyYAML, too.
            import kubernetes.config  # noqa: F401
            import yaml

            yield
            return
        except RolloutError as failure:
            error = failure
        except ImportError:
            raise  # task.py names the missing package
        except yaml.YAMLError as yaml_error:
            error = invalid_yaml_error("the kubeconfig", yaml_error)
        except Exception as failure:
            why = str(failure) or type(failure).__name__
            error = RolloutError(what, why=why, next_command=next_command)
        secrets = masking.option_secrets(self._options, self._environment)
        for document in documents(self._options.get("kubeconfig")):
            secrets |= masking.kubeconfig_secrets(document) | masking.plugin_values(document)
        # Mask before truncating: a truncated secret would not match.
        why = " ".join(masking.mask(error.why, secrets).split())[:_MAX_REASON_LENGTH]
        raise RolloutError(masking.mask(error.what, secrets), where=error.where, why=why,
                           next_command=error.next_command.splitlines()) from None

    def enlarge_pool(self, group_count: int) -> None:
        """Enlarge the pool for several groups of controllers: each watch needs a connection."""
        with self._lock:
            self._group_count = group_count
            self._set_pool_size()

    def _set_pool_size(self) -> None:
        size = self._configuration.connection_pool_maxsize or 1
        self.pool.connection_pool_kw["maxsize"] = size * self._group_count

    def headers(self) -> t.Any:
        """Return the headers of a request. Raises RolloutError, for example if a plugin fails."""
        with self._lock:
            if self._headers is None or time.monotonic() > self._headers_expiry:
                self._headers = self._read_headers()
                self._headers_expiry = time.monotonic() + HEADER_LIFETIME
            return self._headers.copy()

    def _read_headers(self) -> t.Any:
        from urllib3._collections import HTTPHeaderDict  # not public in urllib3 1.26

        headers = HTTPHeaderDict({"User-Agent": USER_AGENT})
        with self._translate_errors("the credentials cannot be renewed"):
            token = self._token().strip()  # the file of a token may end with a newline
        if not (token.isascii() and token.isprintable()):
            # The error of the HTTP library would contain the token.
            raise RolloutError(
                "the token is not valid: it contains line breaks or non-ASCII characters",
                next_command=HINT)
        if not token and {"username", "password"} <= self._options.keys():
            token = self._configuration.get_basic_auth_token()
        if token:
            headers["Authorization"] = token
        if "impersonate_user" in self._options:
            headers["Impersonate-User"] = self._options["impersonate_user"]
        for group in self._options.get("impersonate_groups", []):
            headers.add("Impersonate-Group", group)
        return headers

    def _token(self) -> str:
        """Return the header Authorization (for example "Bearer TOKEN"), or "" without a token.

        Renews a token that expires soon.
        """
        if self._kubeconfig and "api_key" not in self._options:
            self._kubeconfig.refresh(self._configuration)
        if self._configuration.refresh_api_key_hook:
            self._configuration.refresh_api_key_hook(self._configuration)
            if self._kubeconfig:
                self._kubeconfig.save()
        keys = self._configuration.api_key
        return keys.get("BearerToken") or keys.get("authorization") or ""


def secrets(params: t.Mapping[str, t.Any],
            environment: t.Mapping[str, str] | None = None) -> set[str]:
    """Return the secrets in the parameters of a module and in the environment."""
    environment = os.environ if environment is None else environment
    return masking.option_secrets(_options(params, environment), environment)


def command_options(params: t.Mapping[str, t.Any],
                    environment: t.Mapping[str, str]) -> dict[str, str | None]:
    """Return the connection options for commands in messages, without secrets.

    A value is None if it cannot be written in a command.
    """
    options = _options(params, environment)
    visible_options: dict[str, str | None] = {}
    if context := options.get("context") or _context_of_several_files(options):
        visible_options["context"] = context
    if "kubeconfig" in options:
        kubeconfig = options["kubeconfig"]
        names = kubeconfig.split(os.pathsep) if isinstance(kubeconfig, str) else []
        paths = [os.path.abspath(os.path.expanduser(name)) for name in names]
        are_files = paths and all(map(os.path.isfile, paths))
        visible_options["kubeconfig"] = os.pathsep.join(paths) if are_files else None
    if "host" in options:
        visible_options["host"] = None
        with contextlib.suppress(ValueError):
            url = urlsplit(masking.without_credentials(options["host"]))
            if url.scheme in ("http", "https"):
                visible_options["host"] = url._replace(query="", fragment="").geturl()
    return visible_options


def _context_of_several_files(options: Json) -> str:
    """Return the current context if several kubeconfig files are in use, else "".

    kubectl uses the first current-context of the files, and the kubernetes package the last.
    """
    with contextlib.suppress(Exception):  # Connection reports an invalid kubeconfig
        from kubernetes.client.configuration import Configuration
        from kubernetes.config import kube_config

        content = parse_inline_content(options.get("kubeconfig"))
        paths = content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
        if (isinstance(paths, str) and os.pathsep in paths and not _needs_no_kubeconfig(options)
                and (content or not _load_service_account(Configuration()))):
            return str(Kubeconfig(paths, None, 0, persist_token=False).context)
    return ""


def default_namespace(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> str:
    """Return the namespace of the context or of the pod, or else "default"."""
    options = _options(params, environment)
    with contextlib.suppress(Exception):  # Connection reports an invalid kubeconfig
        from kubernetes.client.configuration import Configuration

        namespace = "" if _needs_no_kubeconfig(options) else _namespace(options, Configuration())
        return namespace or Request.namespace
    return Request.namespace


def _namespace(options: Json, configuration: t.Any) -> str:
    """Return the namespace of the given kubeconfig, of the pod, or of the default kubeconfig.

    Returns "" if the context has none.
    """
    from kubernetes.config import kube_config

    content, context = parse_inline_content(options.get("kubeconfig")), options.get("context")
    if content is None and context is None and _load_service_account(configuration):
        with open(_POD_NAMESPACE_FILE, encoding="utf-8") as file:
            return file.read().strip()
    content = content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    return Kubeconfig(content, context, 0, persist_token=False).namespace


def _load_service_account(configuration: t.Any) -> bool:
    """Load the ServiceAccount of the pod. Returns False outside of a pod."""
    from kubernetes.config import incluster_config
    from kubernetes.config.config_exception import ConfigException

    try:
        incluster_config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        return False
    return True


def _options(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> Json:
    """Return the options from the parameters, or else from the environment."""
    options: Json = {}
    for option in ARGUMENT_SPEC:
        value = params.get(option)
        for name in (option, _PACKAGE_NAMES.get(option, option)):
            if value in (None, "", []):
                value = environment.get(f"K8S_AUTH_{name.upper()}")
        if option == "proxy_headers":
            value = _proxy_headers_option(params.get(option), environment)
        if value in (None, "", [], {}):
            continue
        if isinstance(value, str) and ARGUMENT_SPEC[option]["type"] == "bool":
            value = value.lower() not in _FALSE_TEXTS
        if isinstance(value, str) and option == "impersonate_groups":
            value = [group.strip() for group in value.split(",") if group.strip()]
        options[option] = value
    return options


def _proxy_headers_option(value: t.Any, environment: t.Mapping[str, str]) -> Json:
    suboptions = ARGUMENT_SPEC["proxy_headers"]["options"]
    values = {suboption: mapping(value).get(suboption) for suboption in suboptions}
    if not any(values.values()):
        values = {suboption: environment.get(f"K8S_AUTH_PROXY_HEADERS_{suboption.upper()}")
                  for suboption in suboptions}
    return {suboption: value for suboption, value in values.items() if value}


def _configuration(options: Json, timeout: float) -> tuple[t.Any, Kubeconfig | None]:
    """Return a Configuration of the kubernetes package, and the loaded kubeconfig, if any."""
    from kubernetes.client.configuration import Configuration

    _refuse_missing_files(options)
    configuration, kubeconfig = Configuration(), None
    if not _needs_no_kubeconfig(options):
        kubeconfig = _load_kubeconfig(options, configuration, timeout)
    configuration.host = options.get("host", configuration.host)
    configuration.username = options.get("username", configuration.username)
    configuration.password = options.get("password", configuration.password)
    configuration.cert_file = options.get("client_cert", configuration.cert_file)
    configuration.key_file = options.get("client_key", configuration.key_file)
    configuration.ssl_ca_cert = options.get("ca_cert", configuration.ssl_ca_cert)
    configuration.verify_ssl = options.get("validate_certs", configuration.verify_ssl)
    configuration.proxy = options.get("proxy", configuration.proxy)
    configuration.no_proxy = options.get("no_proxy", configuration.no_proxy)
    if "api_key" in options:
        configuration.api_key = {"BearerToken": f"Bearer {options['api_key']}"}
        configuration.refresh_api_key_hook = None
    if not configuration.verify_ssl:
        import urllib3

        urllib3.disable_warnings()
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    configuration.proxy_headers = _headers_for_proxy(configuration.proxy,
                                                     options.get("proxy_headers", {}))
    return configuration, kubeconfig


def _needs_no_kubeconfig(options: Json) -> bool:
    """Return whether the options name a server and credentials, so that no kubeconfig is read."""
    return "host" in options and ("api_key" in options
                                  or {"username", "password"} <= options.keys()
                                  or {"client_cert", "client_key"} <= options.keys())


def _refuse_missing_files(options: Json) -> None:
    for option in ("ca_cert", "client_cert", "client_key"):
        if option in options and not os.path.isfile(options[option]):
            raise RolloutError(
                f"{option} {options[option]} does not exist" if masking.is_path(options[option])
                else f"{option} must be the path of a file in PEM format, not its content")


def _inline_certificates(options: Json, kubeconfig: Kubeconfig | None) -> Certificates:
    if kubeconfig is None:
        return Certificates()
    inline_certificates = kubeconfig.certificates()
    return Certificates(b"" if "ca_cert" in options else inline_certificates.ca_certificates,
                        b"" if "client_cert" in options else inline_certificates.certificate,
                        b"" if "client_key" in options else inline_certificates.key)


def _headers_for_proxy(proxy: str | None, header_options: Json) -> t.Any:
    """Return the headers for a proxy.

    The credentials of the proxy URL become a header, because urllib3 ignores credentials in a URL.
    """
    from urllib3.util import make_headers

    address = urlsplit(proxy or "")
    if address.username is not None:  # make_headers encodes as latin-1, so decode as latin-1
        user, password = (unquote(part or "", "latin-1")
                          for part in (address.username, address.password))
        header_options = {"proxy_basic_auth": f"{user}:{password}", **header_options}
    return make_headers(**{"user_agent": USER_AGENT, **header_options})


def _cluster_overrides(options: Json) -> Json:
    """Return the options as fields of a cluster in a kubeconfig."""
    overrides: Json = {}
    if "host" in options:
        overrides["server"] = masking.without_credentials(options["host"])
    if "ca_cert" in options:
        overrides["certificate-authority"] = options["ca_cert"]
    if "validate_certs" in options:
        overrides["insecure-skip-tls-verify"] = not options["validate_certs"]
    if "proxy" in options:
        overrides["proxy-url"] = options["proxy"]
    return overrides


def _load_kubeconfig(options: Json, configuration: t.Any, timeout: float) -> Kubeconfig | None:
    """Load the kubeconfig and return it, or load the ServiceAccount of the pod and return None."""
    from kubernetes.config import kube_config

    content, context = parse_inline_content(options.get("kubeconfig")), options.get("context")
    if content is None and context is None and _load_service_account(configuration):
        return None
    if not isinstance(content, dict):
        content = str(content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
        paths = content.split(os.pathsep)
        if not any(os.path.exists(os.path.expanduser(path)) for path in paths):
            raise RolloutError(f"there is no kubeconfig at {content}", next_command=HINT)
    with translate_unknown_context_error(options.get("kubeconfig"), context):
        kubeconfig = Kubeconfig(content, context, timeout, options.get("persist_config", False),
                                _cluster_overrides(options))
        kubeconfig.load(configuration)
    return kubeconfig
