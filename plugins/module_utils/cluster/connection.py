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
import tempfile
import threading
import time
import typing as t
from urllib.parse import unquote, urlsplit

from ..model.errors import RolloutError
from ..model.fields import Json, objects, text
from ..model.identity import did_you_mean

ARGUMENT_SPEC: Json = dict(
    kubeconfig=dict(type="raw"),
    context=dict(type="str"),
    host=dict(type="str"),
    api_key=dict(type="str", no_log=True),
    username=dict(type="str"),
    password=dict(type="str", no_log=True),
    client_cert=dict(type="path", aliases=["cert_file"]),
    client_key=dict(type="path", aliases=["key_file"]),
    ca_cert=dict(type="path", aliases=["ssl_ca_cert"]),
    validate_certs=dict(type="bool", aliases=["verify_ssl"]),
    proxy=dict(type="str"),
    no_proxy=dict(type="str"),
    impersonate_user=dict(type="str"),
    impersonate_groups=dict(type="list", elements="str"),
)

#: Kept open at most; only a task for many controllers needs more than two.
CONNECTIONS = 32
#: Seconds until the package is asked again for a token: it reads its whole configuration anew for each.
HEADERS_LAST = 1.0
#: kubernetes.core looks at K8S_AUTH_ and the option's name first, then at K8S_AUTH_ and the kubernetes package's name.
_PACKAGE_NAMES = {"validate_certs": "verify_ssl", "ca_cert": "ssl_ca_cert", "client_cert": "cert_file", "client_key": "key_file"}
_SECRET_KEYS = {"token", "password", "client-key-data", "auth-provider", "env"}
#: Inside them, what is no secret: the names of a plugin's variables.
_NAMES = {"name"}
_FALSE = ("0", "false", "no", "off", "n", "f")
#: Of a kubeconfig, in an error.
_MOST_CONTEXTS = 10
_HINT = "give kubeconfig (or K8S_AUTH_KUBECONFIG), or host and api_key, or run inside the cluster"


class Connection:
    """A connection pool, the server's address, and headers that prove who we are."""

    def __init__(self, params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> None:
        """Load the configuration; no request is made.

        Raises RolloutError when there is none, or it cannot be read.
        """
        self._options = _given(params, environment)
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
        import yaml

        try:
            from kubernetes.client import rest

            with _no_files_left() as written:
                self._configuration = _configuration(self._options)
                #: The API server's URL; kept, because the package's renewal of a token sets the kubeconfig's own again.
                self.server: str = self._configuration.host.rstrip("/")
                self.pool = rest.RESTClientObject(self._configuration).pool_manager
                self.pool.connection_pool_kw["block"] = True  # no more than that many requests at once
                if written:
                    _read_certificates_now(self.pool.connection_pool_kw)
        except RolloutError:
            raise
        except yaml.YAMLError as error:
            raise _not_yaml("the kubeconfig", error) from None
        except Exception as error:  # the loaders raise whatever a broken file leads to: KeyError, TypeError, binascii.Error
            raise RolloutError("the connection to Kubernetes cannot be set up", why=_one_line(error), next_command=_HINT) from error

    def headers(self) -> t.Any:
        """Headers for one request: the bearer token (renewed by the package when its expiry is known) and impersonation.

        Raises RolloutError when an exec plugin fails.
        """
        with self._lock:
            if self._headers is None or time.monotonic() > self._headers_until:
                self._headers, self._headers_until = self._read_headers(), time.monotonic() + HEADERS_LAST
            return self._headers.copy()

    def _read_headers(self) -> t.Any:
        from urllib3 import HTTPHeaderDict

        headers = HTTPHeaderDict()
        try:
            with _plugin_failures(self._options):
                token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except RolloutError:
            raise
        except Exception as error:  # whatever a credential plugin's failure leads to
            raise RolloutError("the credentials cannot be renewed", why=_one_line(error)) from error
        token = (token or "").strip()  # a file ends with a line end
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


def secrets(params: t.Mapping[str, t.Any]) -> set[str]:
    """What must not be shown of the options: a kubeconfig given as content (a path tells nothing), a proxy's password."""
    found = set()
    kubeconfig = params.get("kubeconfig")
    try:
        content = _content(kubeconfig)
    except RolloutError:
        content = None
        found.add(str(kubeconfig))
    if isinstance(content, dict):
        found |= _secrets_of(content)
        if isinstance(kubeconfig, str):
            found.add(kubeconfig)  # YAML can break a secret into lines, which would not be found in the text
    password = urlsplit(str(params.get("proxy") or "")).password
    return found | ({password, unquote(password)} if password else set())


def _secrets_of(content: t.Any) -> set[str]:
    """The secrets of a kubeconfig."""
    found: set[str] = set()

    def search(value: t.Any, is_secret: bool) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                search(each, (is_secret or key in _SECRET_KEYS) and key not in _NAMES)
        elif isinstance(value, list):
            for each in value:
                search(each, is_secret)
        elif is_secret and isinstance(value, str) and value:
            found.add(value)

    search(content, False)
    return found


def _given(params: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> Json:
    options: Json = {}
    for option in ARGUMENT_SPEC:
        value = params.get(option)
        for name in (option, _PACKAGE_NAMES.get(option, option)):
            if value in (None, "", []):
                value = environment.get(f"K8S_AUTH_{name.upper()}")
        if value in (None, "", []):
            continue
        if isinstance(value, str) and option == "validate_certs":
            value = value.lower() not in _FALSE
        if isinstance(value, str) and option == "impersonate_groups":
            value = [group.strip() for group in value.split(",") if group.strip()]
        options[option] = value
    return options


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
            raise RolloutError(f"{option} {options[option]} does not exist")
    if not configuration.verify_ssl:
        import urllib3

        urllib3.disable_warnings()
    configuration.connection_pool_maxsize = CONNECTIONS
    return configuration


def _load(options: Json, configuration: t.Any) -> None:
    from kubernetes.config import incluster_config, kube_config
    from kubernetes.config.config_exception import ConfigException

    context = {"context": options.get("context"), "client_configuration": configuration, "persist_config": False}
    content = _content(options.get("kubeconfig"))
    if isinstance(content, dict):
        with _plugin_failures(options), _context_is_named(options, lambda: [content]):
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
    with _plugin_failures(options), _context_is_named(options, lambda: _files(path)):
        kube_config.load_kube_config(path, **context)


@contextlib.contextmanager
def _context_is_named(options: Json, kubeconfigs: t.Callable[[], t.Iterable[t.Any]]) -> t.Iterator[None]:
    """Raise RolloutError that tells which contexts there are where the kubeconfig cannot be loaded, and has not the wanted one."""
    from kubernetes.config.config_exception import ConfigException

    try:
        yield
    except ConfigException:
        wanted = options.get("context")
        names = list(dict.fromkeys(text(each, "name") for kubeconfig in kubeconfigs() for each in objects(kubeconfig, "contexts")))
        if wanted is None or wanted in names:
            raise
        more = len(names) - _MOST_CONTEXTS
        told = ", ".join(names[:_MOST_CONTEXTS]) + (f" and {more} more" if more > 0 else "")
        raise RolloutError(f"there is no context {wanted} in the kubeconfig{did_you_mean(wanted, names)}",
                           why=f"it has: {told}" if names else "it has no contexts",
                           next_command="give another context (or K8S_AUTH_CONTEXT), or check kubeconfig") from None


def _files(path: str) -> t.Iterator[t.Any]:
    """The content of the files of a kubeconfig's path, as far as they can be read."""
    import yaml

    for each in path.split(os.pathsep):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError), open(os.path.expanduser(each), encoding="utf-8") as file:
            yield yaml.safe_load(file)


@contextlib.contextmanager
def _plugin_failures(options: Json) -> t.Iterator[None]:
    """Raise RolloutError when a credential plugin fails: the package only logs that, and goes on as nobody."""
    import logging

    import yaml

    class Heard(logging.Handler):
        said = ""

        def emit(self, record: logging.LogRecord) -> None:
            self.said = self.said or record.getMessage()

    heard = Heard(logging.ERROR)
    logging.getLogger().addHandler(heard)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(heard)
    if heard.said:
        content = _content(options.get("kubeconfig"))
        if isinstance(content, str):
            with contextlib.suppress(OSError, yaml.YAMLError), open(os.path.expanduser(content), encoding="utf-8") as file:
                content = yaml.safe_load(file)
        for secret in sorted(_secrets_of(content), key=len, reverse=True):
            heard.said = heard.said.replace(secret, "********")  # a script may print its environment
        raise RolloutError("the credential plugin in the kubeconfig failed", why=_one_line(heard.said))


@contextlib.contextmanager
def _no_files_left() -> t.Iterator[list[str]]:
    """Let the package write keys and certificates of a kubeconfig to memory, and forget them at the end.

    It writes them to files, because Python's ssl reads nothing else, and removes these when Python ends: not in a process
    that is killed, nor in a worker of Ansible. Yields the list of what was written, which grows meanwhile.
    """
    from kubernetes.config import kube_config

    written: list[str] = []
    descriptors: list[int] = []

    def write(content: str | bytes, *_unused: object, **_options: object) -> str:
        try:
            descriptor = os.memfd_create("kubeconfig")
            path = f"/proc/self/fd/{descriptor}"
        except AttributeError:  # no Linux
            descriptor, path = tempfile.mkstemp()
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        descriptors.append(descriptor)
        written.append(path)
        return path

    original: t.Any = getattr(kube_config, "_create_temp_file_with_content", None)  # a package without it writes files, and goes on
    kube_config._create_temp_file_with_content = write
    try:
        yield written
    finally:
        kube_config._create_temp_file_with_content = original
        for descriptor, path in zip(descriptors, written, strict=True):
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.remove(path)


def _read_certificates_now(options: Json) -> None:
    """Replace the files among the options of a connection pool by what is in them."""
    from urllib3.util import ssl_

    context = ssl_.create_urllib3_context(cert_reqs=options["cert_reqs"])
    authority, certificate, key = (options.pop(option, None) for option in ("ca_certs", "cert_file", "key_file"))
    if authority:
        context.load_verify_locations(authority)
    else:
        context.load_default_certs()
    if certificate:
        context.load_cert_chain(certificate, key)
    options["ssl_context"] = context


def _content(kubeconfig: t.Any) -> t.Any:
    """A dictionary for the content of a kubeconfig, the path if it is one."""
    import yaml

    if not isinstance(kubeconfig, str) or not ("\n" in kubeconfig or kubeconfig.lstrip().startswith("{")):
        return kubeconfig
    try:
        return yaml.safe_load(kubeconfig)
    except yaml.YAMLError as error:
        raise _not_yaml("the content of kubeconfig", error) from None


def _not_yaml(what: str, error: Exception) -> RolloutError:
    """The parser quotes what it could not read, which may be a secret: only its place is told."""
    place = getattr(error, "problem_mark", None)
    return RolloutError(f"{what} is not valid YAML", why=f"line {place.line + 1}" if place else "", next_command=_HINT)


def _one_line(error: Exception | str) -> str:
    return f"{' '.join(str(error).split())[:300]}" or type(error).__name__
