# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the API server is and how to prove who we are, by the kubernetes package's own loaders.

Options and environment variables have the names that kubernetes.core gave them, and the same order of precedence.
The kubernetes package is imported inside the functions, and of it only the configuration and the connection pool: with its
clients and models a short task would take twice as long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import typing as t
from urllib.parse import unquote, urlsplit

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, objects, text
from ..model.identity import did_you_mean
from . import certificates, plugins
from . import secrets as hidden

#: no_log has every option that may hold a secret: in the system's log, and in the error of arguments that make no sense, Ansible
#: shows nothing of them. Of what is in them, task.py shows in results what is no secret.
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
        proxy_basic_auth=dict(type="str", no_log=True), basic_auth=dict(type="str", no_log=True), user_agent=dict(type="str"))),
    persist_config=dict(type="bool"),
    impersonate_user=dict(type="str"),
    impersonate_groups=dict(type="list", elements="str"),
)

#: The API server takes the part before the slash for the manager of what we write (managedFields), and logs all of it (audit).
#: The version is galaxy.yml's.
USER_AGENT = "baton.kubernetes/0.1.0"
#: Kept open at most; only a task for many controllers needs more than two.
CONNECTIONS = 32
#: Seconds until the package is asked again for a token: it reads its whole configuration anew for each.
HEADERS_LAST = 1.0
#: kubernetes.core looks at K8S_AUTH_ and the option's name first, then at K8S_AUTH_ and the kubernetes package's name.
_PACKAGE_NAMES = {"validate_certs": "verify_ssl", "ca_cert": "ssl_ca_cert", "client_cert": "cert_file", "client_key": "key_file"}
_FALSE = ("0", "false", "no", "off", "n", "f")
#: Of a kubeconfig, in an error; and characters of a reason.
_MOST_CONTEXTS, _LONGEST_REASON = 10, 500
_HINT = "give kubeconfig (or K8S_AUTH_KUBECONFIG), or host and api_key, or run inside the cluster"


class Connection:
    """A connection pool, the server's address, and headers that prove who we are."""

    def __init__(self, params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> None:
        """Load the configuration; no request is made.

        Raises RolloutError when there is none, or it cannot be read.
        """
        self._options, self._environment = _given(params, environment), environment
        #: Seconds that a credential plugin may take.
        self._patience = min(plugins.PATIENCE, params.get("timeout") or plugins.PATIENCE)
        self._lock = threading.RLock()
        self._headers: t.Any = None
        self._headers_until = 0.0
        #: How often the configuration has been read.
        self.generation = 0
        self.renew(0)

    def renew(self, generation: int) -> None:
        """Read the configuration again: a token in a file may be a new one, an exec plugin is asked for another.

        Nothing is done when another thread has renewed that generation already.
        """
        with self._lock:
            if generation == self.generation:
                self._read()
                self._headers = None
                self.generation += 1

    def _read(self) -> None:
        with self._errors("the connection to Kubernetes cannot be set up", _HINT), certificates.in_memory() as written:
            from kubernetes.client import rest

            self._configuration = _configuration(self._options)
            #: The API server's URL; kept, because the package's renewal of a token sets the kubeconfig's own again.
            self.server: str = hidden.without_password(self._configuration.host.rstrip("/"))
            # Any, since by its types urllib3 takes no options but texts where nothing is encoded.
            self.pool: t.Any = rest.RESTClientObject(self._configuration).pool_manager
            self.pool.connection_pool_kw["block"] = True  # no more than that many requests at once
            if written:
                certificates.read_now(self.pool.connection_pool_kw)

    @contextlib.contextmanager
    def _errors(self, what: str, next_command: str = "") -> t.Iterator[None]:
        """Let whatever fails be a RolloutError that tells nothing secret of the options, nor of the files that they name."""
        try:
            with plugins.bounded(self._patience):  # without either, the package kubernetes is what is missing: it brings PyYAML
                import yaml

                yield
            return
        except RolloutError as known:
            error = known
        except ImportError:
            raise  # task.py tells what has to be installed
        except yaml.YAMLError as broken:
            error = _not_yaml("the kubeconfig", broken)
        except Exception as failure:  # the loaders raise whatever a broken file leads to: KeyError, TypeError, binascii.Error
            error = RolloutError(what, why=str(failure) or type(failure).__name__, next_command=next_command)
        secrets = hidden.of_options(self._options, self._environment)
        for kubeconfig in _kubeconfigs(self._options):
            secrets |= hidden.of_kubeconfig(kubeconfig) | hidden.of_plugins(kubeconfig)
        why = " ".join(hidden.masked(error.why, secrets).split())[:_LONGEST_REASON]  # in this order: half a secret is one, too
        raise RolloutError(hidden.masked(error.what, secrets), where=error.where, why=why,
                           next_command=error.next_command.splitlines()) from None

    def headers(self) -> t.Any:
        """Headers for one request: our name, the bearer token (renewed by the package when its expiry is known), impersonation.

        Raises RolloutError when a credential plugin fails.
        """
        with self._lock:
            if self._headers is None or time.monotonic() > self._headers_until:
                self._headers, self._headers_until = self._read_headers(), time.monotonic() + HEADERS_LAST
            return self._headers.copy()

    def _read_headers(self) -> t.Any:
        from urllib3._collections import HTTPHeaderDict  # urllib3 1.26 has it nowhere else

        headers = HTTPHeaderDict({"User-Agent": USER_AGENT})
        with self._errors("the credentials cannot be renewed"):
            token = self._token().strip()  # a file ends with a line end
        if not (token.isascii() and token.isprintable()):
            # Said here: the message of the HTTP library would show it.
            raise RolloutError("the token is not valid: it contains line breaks or non-ASCII characters", next_command=_HINT)
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
        """The token that the package has, renewed if it is about to expire; "" if it has none.

        The package's own function for this has other arguments, and knows another name, from one version to the next.
        """
        if self._configuration.refresh_api_key_hook:
            self._configuration.refresh_api_key_hook(self._configuration)
        keys = self._configuration.api_key
        return keys.get("BearerToken") or keys.get("authorization") or ""


def secrets(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str] | None = None) -> set[str]:
    """What must not be shown of a module's parameters, wherever they come from; environment: os.environ unless given."""
    environment = os.environ if environment is None else environment
    return hidden.of_options(_given(params, environment), environment)


def to_type(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> dict[str, str | None]:
    """What a command has to repeat to reach the same cluster, by its option; never a secret.

    None for a kubeconfig that is no path to a file, and for a host that is no address.
    """
    options = _given(params, environment)
    found: dict[str, str | None] = {option: options[option] for option in ("context",) if option in options}
    if "kubeconfig" in options:
        given = options["kubeconfig"]
        paths = [os.path.abspath(os.path.expanduser(each)) for each in given.split(os.pathsep)] if isinstance(given, str) else []
        found["kubeconfig"] = os.pathsep.join(paths) if paths and all(map(os.path.isfile, paths)) else None
    if "host" in options:
        found["host"] = None
        with contextlib.suppress(ValueError):  # no URL
            parts = urlsplit(options["host"])
            if parts.scheme in ("http", "https"):
                found["host"] = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return found


def _given(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> Json:
    options: Json = {}
    for option in ARGUMENT_SPEC:
        value = params.get(option)
        for name in (option, _PACKAGE_NAMES.get(option, option)):
            if value in (None, "", []):
                value = environment.get(f"K8S_AUTH_{name.upper()}")
        if option == "proxy_headers":
            value = _proxy_headers(params.get(option), environment)
        if value in (None, "", [], {}):
            continue
        if isinstance(value, str) and ARGUMENT_SPEC[option]["type"] == "bool":
            value = value.lower() not in _FALSE
        if isinstance(value, str) and option == "impersonate_groups":
            value = [group.strip() for group in value.split(",") if group.strip()]
        options[option] = value
    return options


def _proxy_headers(given: t.Any, environment: t.Mapping[str, str]) -> Json:
    """Those that are given, or else the variables', of which each has one of its own."""
    parts = ARGUMENT_SPEC["proxy_headers"]["options"]
    found = {part: mapping(given).get(part) for part in parts}
    if not any(found.values()):
        found = {part: environment.get(f"K8S_AUTH_PROXY_HEADERS_{part.upper()}") for part in parts}
    return {part: value for part, value in found.items() if value}


def _configuration(options: Json) -> t.Any:
    """A kubernetes Configuration; the order of precedence is kubernetes.core's."""
    from kubernetes.client.configuration import Configuration

    configuration = Configuration()
    complete = "host" in options and ("api_key" in options or {"username", "password"} <= options.keys()
                                      or {"client_cert", "client_key"} <= options.keys())
    if not complete:
        _load(options, configuration)
    for option, field in (("host", "host"), ("username", "username"), ("password", "password"), ("client_cert", "cert_file"),
                          ("client_key", "key_file"), ("ca_cert", "ssl_ca_cert"), ("validate_certs", "verify_ssl"),
                          ("proxy", "proxy"), ("no_proxy", "no_proxy")):
        if option in options:
            setattr(configuration, field, options[option])
    if "api_key" in options:
        configuration.api_key = {"BearerToken": f"Bearer {options['api_key']}"}
        configuration.refresh_api_key_hook = None
    for option in ("ca_cert", "client_cert", "client_key"):
        if option in options and not os.path.isfile(options[option]):
            raise RolloutError(f"{option} {options[option]} does not exist" if hidden.is_path(options[option])
                               else f"{option} must be the path of a file in PEM format, not its content")
    if not configuration.verify_ssl:
        import urllib3

        urllib3.disable_warnings()
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.proxy_headers = _headers_for(configuration.proxy, options.get("proxy_headers", {}))
    return configuration


def _headers_for(proxy: str | None, given: Json) -> t.Any:
    """What a proxy gets beside the request: urllib3 sends it neither user nor password of its address."""
    from urllib3.util import make_headers

    address = urlsplit(proxy or "")
    if address.username is not None:  # make_headers has latin-1: each byte as it is in the address
        user, password = (unquote(each or "", "latin-1") for each in (address.username, address.password))
        given = {"proxy_basic_auth": f"{user}:{password}", **given}
    return make_headers(**{"user_agent": USER_AGENT, **given})


def _load(options: Json, configuration: t.Any) -> None:
    from kubernetes.config import incluster_config, kube_config
    from kubernetes.config.config_exception import ConfigException

    context = {"context": options.get("context"), "client_configuration": configuration,
               "persist_config": options.get("persist_config", False)}
    content = _content(options.get("kubeconfig"))
    if isinstance(content, dict):
        with _context_is_named(options):
            kube_config.load_kube_config_from_dict(content, **context)
        return
    if content is None and "context" not in options:
        try:
            incluster_config.load_incluster_config(client_configuration=configuration)
            return
        except ConfigException:
            pass
    path = str(content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
    if not any(os.path.exists(os.path.expanduser(each)) for each in path.split(os.pathsep)):
        raise RolloutError(f"there is no kubeconfig at {path}", next_command=_HINT)
    with _context_is_named(options):
        kube_config.load_kube_config(path, **context)


@contextlib.contextmanager
def _context_is_named(options: Json) -> t.Iterator[None]:
    """Raise RolloutError that tells which contexts there are where the kubeconfig cannot be loaded, and has not the wanted one."""
    from kubernetes.config.config_exception import ConfigException

    try:
        yield
    except ConfigException:
        wanted = options.get("context")
        contexts = (each for kubeconfig in _kubeconfigs(options) for each in objects(kubeconfig, "contexts"))
        names = list(dict.fromkeys(text(each, "name") for each in contexts))
        if wanted is None or wanted in names:
            raise
        more = len(names) - _MOST_CONTEXTS
        told = ", ".join(names[:_MOST_CONTEXTS]) + (f" and {more} more" if more > 0 else "")
        raise RolloutError(f"there is no context {wanted} in the kubeconfig{did_you_mean(wanted, names)}",
                           why=f"it has: {told}" if names else "it has no contexts",
                           next_command="give another context (or K8S_AUTH_CONTEXT), or check kubeconfig") from None


def _kubeconfigs(options: Json) -> t.Iterator[t.Any]:
    """What is in the kubeconfig, or in the files that it names, as far as it can be read."""
    with contextlib.suppress(RolloutError, ImportError):
        import yaml
        from kubernetes.config import kube_config

        content = _content(options.get("kubeconfig"))
        paths = [] if isinstance(content, dict) else str(content or kube_config.KUBE_CONFIG_DEFAULT_LOCATION).split(os.pathsep)
        if not paths:
            yield content
        for path in paths:
            unreadable = contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError)
            with unreadable, open(os.path.expanduser(path), encoding="utf-8") as file:
                yield yaml.safe_load(file)


def _content(kubeconfig: t.Any) -> t.Any:
    """A dictionary for the content of a kubeconfig, the path if it is one. Raises RolloutError."""
    if not isinstance(kubeconfig, str) or hidden.is_path(kubeconfig):
        return kubeconfig
    import yaml

    try:
        content = yaml.safe_load(hidden.decoded(kubeconfig))
    except yaml.YAMLError as error:
        raise _not_yaml("the content of kubeconfig", error) from None
    except RecursionError:
        content = None
    if isinstance(content, dict):
        return content
    raise RolloutError("kubeconfig is neither the path of a file nor the content of one", next_command=_HINT)


def _not_yaml(what: str, error: Exception) -> RolloutError:
    """The parser quotes what it could not read, which may be a secret: only its place is told."""
    place = getattr(error, "problem_mark", None)
    return RolloutError(f"{what} is not valid YAML", why=f"line {place.line + 1}" if place else "", next_command=_HINT)
