# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the secrets in connection options, and mask them in messages and results."""

from __future__ import annotations

import base64
import os
import re
import typing as t
from urllib.parse import quote, unquote

from ..model.fields import Json, mapping, objects, text

#: Fields of a kubeconfig, at any depth. Nested fields are secret, too, except _PUBLIC_FIELDS.
_SECRET_FIELDS = {"token", "password", "client-key-data", "auth-provider"}
_PUBLIC_FIELDS = {"name"}
_URL_OPTIONS = ("host", "proxy")
#: Options with the path of a file. The value is secret if a user gives the content by mistake.
_FILE_OPTIONS = ("client_cert", "client_key", "ca_cert")
_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_MAX_NAME_LENGTH = 255
#: A longer value counts as a path only if it exists or looks like a path.
_MAX_PATH_LENGTH = 40
#: Endings of file names. Tokens, keys and base64 texts end otherwise.
_FILE_ENDINGS = re.compile(r"\.(ya?ml|json|conf|config|kubeconfig)$")
_SCHEME = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//+")
#: As in urllib3, a backslash ends user name, password, host and port, too.
_AUTHORITY_END = re.compile(r"[/?#\\]")
#: Ansible shows MASK instead of a secret within a text, and HIDDEN instead of a value that equals a
#: secret.
MASK, HIDDEN = "********", "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"


def option_secrets(options: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> set[str]:
    """Return the secrets of the connection options, and of the proxies in the environment."""
    secrets = {str(options[option]) for option in ("api_key", "password") if options.get(option)}
    if options.get("password"):
        secrets.add(_basic_auth(f"{options.get('username')}:{options['password']}"))
    header_values = (text(options.get("proxy_headers"), part)
                     for part in ("proxy_basic_auth", "basic_auth"))
    for credentials in filter(None, header_values):
        secrets |= {credentials, credentials.partition(":")[2], _basic_auth(credentials)}
    secrets |= {str(options[option]) for option in _FILE_OPTIONS
                if options.get(option) and not is_path(str(options[option]))}
    urls = [options.get(option) for option in _URL_OPTIONS]
    urls += [environment.get(name) for variable in _PROXY_VARIABLES
             for name in (variable, variable.lower())]
    for url in urls:
        secrets |= url_secrets(str(url or ""))
    kubeconfig = options.get("kubeconfig")
    if isinstance(kubeconfig, str) and not is_path(kubeconfig):
        # Mask the whole content, too: YAML may fold a secret over several lines.
        secrets.add(kubeconfig)
    secrets |= kubeconfig_secrets(_content(kubeconfig))
    return {spelling for secret in secrets for spelling in (secret, secret.strip()) if spelling}


def kubeconfig_secrets(kubeconfig: t.Any) -> set[str]:
    """Return the secrets in the parsed content of a kubeconfig."""
    secrets: set[str] = set()

    def search(value: t.Any, is_secret: bool) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                search(child, (is_secret or key in _SECRET_FIELDS) and key not in _PUBLIC_FIELDS)
        elif isinstance(value, list):
            for child in value:
                search(child, is_secret)
        elif is_secret and isinstance(value, str) and value:
            secrets.add(value)

    search(kubeconfig, False)
    for entry in objects(kubeconfig, "clusters"):
        for key in ("server", "proxy-url"):
            secrets |= url_secrets(text(mapping(entry, "cluster"), key))
    return secrets


def plugin_values(kubeconfig: t.Any) -> set[str]:
    """Return the values of more than 3 characters in arguments and variables of exec plugins.

    Most of these values are not secret, so mask the values only in errors of the connection.
    """
    plugins = [mapping(entry, "user", "exec") for entry in objects(kubeconfig, "users")]
    arguments = [str(argument) for plugin in plugins if isinstance(plugin.get("args"), list)
                 for argument in plugin["args"]]
    values = [argument.partition("=")[2] if argument.startswith("-") else argument
              for argument in arguments]
    values += [text(variable, "value") for plugin in plugins
               for variable in objects(plugin, "env")]
    return {value for value in values if len(value) > 3}


def mask(message: str, secrets: t.Iterable[str]) -> str:
    """Replace each secret in a message by MASK."""
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, MASK)
    return message


def visible_params(params: Json) -> Json:
    """Return the parameters without `update`, and without the content of a kubeconfig or manifest.

    Only a manifest in text form is hidden: the text may come from a file encrypted with Ansible
    Vault.
    """
    kubeconfig = params.get("kubeconfig")
    # Whether to hide the value, by option.
    hidden_flags = {
        "kubeconfig": kubeconfig and not (isinstance(kubeconfig, str) and is_path(kubeconfig)),
        "definition": isinstance(params.get("definition"), str),
        "update": params.get("update"),
    }
    return params | {option: HIDDEN for option, is_hidden in hidden_flags.items() if is_hidden}


def decode(kubeconfig: str) -> str:
    """Decode a kubeconfig in base64, and return any other value as it is."""
    try:
        content = base64.b64decode("".join(kubeconfig.split()), validate=True).decode()
    except ValueError:
        return kubeconfig
    return content if is_content(content) else kubeconfig


def is_content(kubeconfig: str) -> bool:
    return "\n" in kubeconfig or kubeconfig.lstrip().startswith("{")


def is_path(value: str) -> bool:
    """Return whether a value is a path or several paths, and not content or a secret."""
    if is_content(decode(value)):
        return False
    paths = value.split(os.pathsep)
    if any(os.path.exists(os.path.expanduser(path)) for path in paths):
        return True
    has_short_names = all(len(name) <= _MAX_NAME_LENGTH for path in paths
                          for name in path.split(os.sep))
    return has_short_names and (len(value) <= _MAX_PATH_LENGTH
                                or value.startswith((os.sep, ".", "~"))
                                or bool(_FILE_ENDINGS.search(value)))


def without_credentials(address: str) -> str:
    """Return a URL without user name and password. The host is always the same."""
    scheme, authority, rest = _split_url(address)
    return scheme + authority.rpartition("@")[2] + rest


def url_secrets(address: str) -> set[str]:
    """Return the password of a URL, or else its user name, in several encodings.

    After a colon, return also the text up to the last @: an unescaped password may contain / or @.
    Never use this text to find the host, because a path may contain @, too.
    """
    _scheme, authority, rest = _split_url(address)
    credentials = authority.rpartition("@")[0]
    secrets = {credentials.partition(":")[2] or credentials}
    if ":" in authority:
        secrets.add((authority + rest).rpartition("@")[0].partition(":")[2])
    return {spelling for secret in secrets if secret
            for spelling in (secret, unquote(secret), quote(unquote(secret), safe=""))}


def _split_url(address: str) -> tuple[str, str, str]:
    """Return the scheme, the authority (user name, password, host and port), and the rest."""
    scheme = match[0] if (match := _SCHEME.match(address)) else ""
    address = address[len(scheme):]
    authority = _AUTHORITY_END.split(address, maxsplit=1)[0]
    return scheme, authority, address[len(authority):]


def _content(kubeconfig: t.Any) -> t.Any:
    """Parse inline content (None if invalid), and return any other value as it is."""
    if not isinstance(kubeconfig, str) or is_path(kubeconfig):
        return kubeconfig
    try:
        import yaml

        return yaml.safe_load(decode(kubeconfig))
    except (ImportError, RecursionError, ValueError):
        return None
    except yaml.YAMLError:
        return None


def _basic_auth(credentials: str) -> str:
    return base64.b64encode(credentials.encode(errors="replace")).decode()
