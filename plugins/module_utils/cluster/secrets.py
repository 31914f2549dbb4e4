# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Secrets among the options of a connection: no result, error or log shows them.

No function here reads a file, or raises an error.
"""

from __future__ import annotations

import base64
import os
import re
import typing as t
from urllib.parse import quote, unquote

from ..model.fields import Json, mapping, objects, text

#: Secret fields of a user in a kubeconfig, with all their content.
_KEYS = {"token", "password", "client-key-data", "auth-provider"}
#: Fields inside them that are not secret: the provider's name.
_NAMES = {"name"}
#: Options with an address, which may contain a password.
_ADDRESSES = ("host", "proxy")
#: Options with the path of a file; a user may give the content instead.
_FILES = ("client_cert", "client_key", "ca_cert")
#: Variables with the kubernetes package's proxy.
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
#: Largest number of characters of a file name; and of a text that is shown as a path although no
#: file exists there, and the text has no sign of a path.
_LONGEST_NAME, _SHORT = 255, 40
#: End of a longer text that is shown as a path: no token, key or base64 ends like this.
_FILE_NAME = re.compile(r"\.(ya?ml|json|conf|config|kubeconfig)$")
#: Begin of an address; any other text before :// may be part of a password.
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
#: Ansible's replacements for a secret, and for an option as a whole.
MASK, HIDDEN = "********", "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"


def option_secrets(options: t.Mapping[str, t.Any], environment: t.Mapping[str, str]) -> set[str]:
    """Return the secrets of these options. A path is not secret.

    The other parts of a kubeconfig's content are shown nowhere (see shown()).
    """
    secrets = {str(options[option]) for option in ("api_key", "password") if options.get(option)}
    if options.get("password"):
        secrets.add(_basic(f"{options.get('username')}:{options['password']}"))
    headers = (text(options.get("proxy_headers"), part)
               for part in ("proxy_basic_auth", "basic_auth"))
    for pair in filter(None, headers):
        secrets |= {pair, pair.partition(":")[2], _basic(pair)}
    secrets |= {str(options[option]) for option in _FILES
                if options.get(option) and not is_path(str(options[option]))}
    addresses = [options.get(option) for option in _ADDRESSES]
    addresses += [environment.get(name) for variable in _PROXIES
                  for name in (variable, variable.lower())]
    for address in addresses:
        secrets |= _address_secrets(str(address or ""))
    kubeconfig = options.get("kubeconfig")
    if isinstance(kubeconfig, str) and not is_path(kubeconfig):
        secrets.add(kubeconfig)  # YAML may break a secret into lines: the text has no such secret
    secrets |= kubeconfig_secrets(_content(kubeconfig))
    return {spelling for secret in secrets for spelling in (secret, secret.strip()) if spelling}


def kubeconfig_secrets(kubeconfig: t.Any) -> set[str]:
    """Return the secrets of a kubeconfig's content."""
    secrets: set[str] = set()

    def search(value: t.Any, is_secret: bool) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                search(child, (is_secret or key in _KEYS) and key not in _NAMES)
        elif isinstance(value, list):
            for child in value:
                search(child, is_secret)
        elif is_secret and isinstance(value, str) and value:
            secrets.add(value)

    search(kubeconfig, False)
    for entry in objects(kubeconfig, "clusters"):
        for key in ("server", "proxy-url"):
            secrets |= _address_secrets(text(mapping(entry, "cluster"), key))
    return secrets


def plugin_secrets(kubeconfig: t.Any) -> set[str]:
    """Return the arguments and variables of the credential plugins of a kubeconfig.

    Most are words such as a profile's name: they are hidden in the message of a plugin, and not
    in a whole result.
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
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, MASK)
    return message


def shown(params: Json) -> Json:
    """Return a module's parameters as Ansible may show them, without a kubeconfig's content.

    The text of a manifest is hidden too: the file that it was read from may be a vault.
    """
    kubeconfig = params.get("kubeconfig")
    is_hidden = {
        "kubeconfig": kubeconfig and not (isinstance(kubeconfig, str) and is_path(kubeconfig)),
        "definition": isinstance(params.get("definition"), str),
    }
    return params | {option: HIDDEN for option, hides in is_hidden.items() if hides}


def decoded(kubeconfig: str) -> str:
    """Return a kubeconfig as text, also from base64."""
    try:
        content = base64.b64decode("".join(kubeconfig.split()), validate=True).decode()
    except ValueError:
        return kubeconfig
    return content if is_content(content) else kubeconfig


def is_content(kubeconfig: str) -> bool:
    return "\n" in kubeconfig or kubeconfig.lstrip().startswith("{")


def is_path(value: str) -> bool:
    """Return whether a text may be a path, or several paths (of a kubeconfig).

    Otherwise the text is the content of a file, or a misplaced secret.
    """
    if is_content(decoded(value)):
        return False
    paths = value.split(os.pathsep)
    if any(os.path.exists(os.path.expanduser(path)) for path in paths):
        return True
    has_short_names = all(len(name) <= _LONGEST_NAME for path in paths
                          for name in path.split(os.sep))
    return has_short_names and (len(value) <= _SHORT or value.startswith((os.sep, ".", "~"))
                                or bool(_FILE_NAME.search(value)))


def without_password(address: str) -> str:
    """Return an address without user and password."""
    scheme, _credentials, rest = _parts(address)
    return f"{scheme}{rest}"


def _parts(address: str) -> tuple[str, str, str]:
    """Return scheme, credentials and rest of an address.

    The rest begins after the last @: an unescaped password may contain any of / ? # : @.
    """
    scheme = match[0] if (match := _SCHEME.match(address)) else ""
    credentials, _at, rest = address[len(scheme):].rpartition("@")
    return scheme, credentials, rest


def _content(kubeconfig: t.Any) -> t.Any:
    """Return the parsed content of a kubeconfig in a text."""
    if not isinstance(kubeconfig, str) or is_path(kubeconfig):
        return kubeconfig
    try:
        import yaml

        return yaml.safe_load(decoded(kubeconfig))
    except (ImportError, RecursionError, ValueError):  # without PyYAML, the content is not used
        return None
    except yaml.YAMLError:
        return None


def _basic(pair: str) -> str:
    """Return "user:password" as a header contains them."""
    return base64.b64encode(pair.encode(errors="replace")).decode()


def _address_secrets(address: str) -> set[str]:
    """Return the password of an address, or all before the host where there is no colon.

    Not every address is a valid URL.
    """
    credentials = _parts(address)[1]
    password = credentials.partition(":")[2] or credentials
    if not password:
        return set()
    return {password, unquote(password), quote(unquote(password), safe="")}
